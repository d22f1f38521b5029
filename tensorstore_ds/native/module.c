/* The Python side, in the limited API of 3.11: one build for all versions from there on.
 *
 * Each function checks that its buffers fit each other, and lets go of the GIL while it works. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core.h"

static const kernels *chosen = &kernels_plain;

static void choose(int is_plain) {
    chosen = &kernels_plain;
#if defined(__x86_64__)
    if (!is_plain && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) chosen = &kernels_avx2;
#else
    (void)is_plain;
#endif
}

static PyObject *use_plain(PyObject *self, PyObject *args) {
    (void)self;
    int is_plain;
    if (!PyArg_ParseTuple(args, "p", &is_plain)) return NULL;
    choose(is_plain);
    Py_RETURN_NONE;
}

static PyObject *variant(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyUnicode_FromString(chosen->name);
}

/* gather(table, row_nbytes, rows, out) */
static PyObject *gather(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer table, rows, out;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "y*ny*w*", &table, &nbytes, &rows, &out)) return NULL;
    size_t count = (size_t)rows.len / 8;
    int fits = nbytes > 0 && rows.len % 8 == 0 && (uintptr_t)rows.buf % 8 == 0 && out.len % nbytes == 0 &&
               (size_t)(out.len / nbytes) == count;
    if (fits) {
        const int64_t *row = rows.buf;
        int64_t have = table.len / nbytes;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < count; i++) fits &= row[i] >= 0 && row[i] < have;
        if (fits) chosen->gather(table.buf, (size_t)nbytes, row, count, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&table), PyBuffer_Release(&rows), PyBuffer_Release(&out);
    if (!fits) return PyErr_SetString(PyExc_ValueError, "gather: rows, table and out do not fit each other"), NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"gather", gather, METH_VARARGS, NULL},
                                {"variant", variant, METH_NOARGS, NULL},
                                {"use_plain", use_plain, METH_VARARGS, NULL},
                                {NULL, NULL, 0, NULL}};

static int start(PyObject *module) {
    (void)module;
    choose(0);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)start}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
