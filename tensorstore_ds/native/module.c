/* The Python side, in the limited API of 3.11: one build for all versions from there on.
 *
 * Each function checks that its buffers fit each other, and lets go of the GIL while it works. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>

#include "context.h"

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

/* --- crops ---------------------------------------------------------------------------------------------------------- */

/* A thread's memory, and whether a call is in it. */
typedef struct {
    context *memory;
    atomic_flag is_busy;
} own_context;

context *context_new(void) { return calloc(1, sizeof(context)); }

void context_free(context *c) {
    if (!c) return;
    memory *all[] = {&c->scan,   &c->pieces,  &c->planes, &c->lines,       &c->rows,
                     &c->turned, &c->entries, &c->across.memory, &c->down.memory};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->bytes);
    free(c);
}

static void forget(PyObject *capsule) {
    own_context *own = PyCapsule_GetPointer(capsule, "tensorstore_ds.context");
    context_free(own->memory);
    free(own);
}

static PyObject *new_context(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    own_context *own = calloc(1, sizeof *own);
    if (own && !(own->memory = context_new())) free(own), own = NULL;
    if (!own) return PyErr_NoMemory();
    atomic_flag_clear(&own->is_busy);
    PyObject *capsule = PyCapsule_New(own, "tensorstore_ds.context", forget);
    if (!capsule) context_free(own->memory), free(own);
    return capsule;
}

/* The context of a capsule, for this call alone; NULL with an error if it is none, or another call is in it. */
static own_context *enter(PyObject *capsule) {
    own_context *own = PyCapsule_GetPointer(capsule, "tensorstore_ds.context");
    if (own && atomic_flag_test_and_set(&own->is_busy))
        return PyErr_SetString(PyExc_RuntimeError, "a context serves one call at a time"), NULL;
    return own;
}

static void leave(own_context *own) { atomic_flag_clear(&own->is_busy); }

/* crops(context, ((file, restarts, entries), ...), jobs, out, height, width, channels, status) -> failed */
static PyObject *crops(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *tuple;
    Py_buffer jobs, out, status;
    int height, width, channels;
    if (!PyArg_ParseTuple(args, "OO!y*w*iiiw*", &capsule, &PyTuple_Type, &tuple, &jobs, &out, &height, &width, &channels,
                          &status))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t shards = PyTuple_Size(tuple), held = 0;
    Py_buffer *buffers = calloc((size_t)shards * 3 + 1, sizeof *buffers);
    crop_shard *views = calloc((size_t)shards + 1, sizeof *views);
    own_context *own = NULL;
    if (!buffers || !views) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < shards; i++) {
        PyObject *three = PyTuple_GetItem(tuple, i);
        if (!PyTuple_Check(three) || PyTuple_Size(three) != 3) {
            PyErr_SetString(PyExc_TypeError, "crops: expected three buffers for each shard");
            goto done;
        }
        bytes_view *parts[3] = {&views[i].file, &views[i].restarts, &views[i].entries};
        for (int k = 0; k < 3; k++, held++) {
            if (PyObject_GetBuffer(PyTuple_GetItem(three, k), &buffers[held], PyBUF_SIMPLE) < 0) goto done;
            *parts[k] = (bytes_view){buffers[held].buf, (size_t)buffers[held].len};
        }
    }
    Py_ssize_t count = jobs.len / (Py_ssize_t)sizeof(crop_job);
    if (jobs.len % (Py_ssize_t)sizeof(crop_job) || height < 1 || width < 1 || height > 0xFFFF || width > 0xFFFF ||
        (channels != 1 && channels != 3) || status.len != 4 * count || (uintptr_t)status.buf % 4) {
        PyErr_SetString(PyExc_ValueError, "crops: buffers do not fit each other");
        goto done;
    }
    size_t nbytes = (size_t)height * (size_t)width * (size_t)channels;
    if ((size_t)out.len / nbytes != (size_t)count || (size_t)out.len % nbytes) {
        PyErr_SetString(PyExc_ValueError, "crops: `out` does not fit the jobs");
        goto done;
    }
    if (!(own = enter(capsule))) goto done;
    long failed = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        crop_job job; /* a copy: what was checked is what is used */
        memcpy(&job, (const char *)jobs.buf + (size_t)i * sizeof job, sizeof job);
        int code = chosen->crop(own->memory, views, (size_t)shards, &job, height, width, channels,
                                (uint8_t *)out.buf + (size_t)i * nbytes);
        ((int32_t *)status.buf)[i] = code;
        failed += code != CROP_OK;
    }
    Py_END_ALLOW_THREADS
    leave(own);
    result = PyLong_FromLong(failed);
done:
    while (held) PyBuffer_Release(&buffers[--held]);
    free(buffers), free(views);
    PyBuffer_Release(&jobs), PyBuffer_Release(&out), PyBuffer_Release(&status);
    return result;
}

/* index(context, file) -> bytes: the entries, none if the file cannot have any */
static PyObject *index_of(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *result = NULL;
    Py_buffer file;
    if (!PyArg_ParseTuple(args, "Oy*", &capsule, &file)) return NULL;
    own_context *own = enter(capsule);
    if (own) {
        const jpeg_entry *entries = NULL;
        int64_t count;
        Py_BEGIN_ALLOW_THREADS
        count = chosen->index(own->memory, (bytes_view){file.buf, (size_t)file.len}, &entries);
        Py_END_ALLOW_THREADS
        if (count == -2) PyErr_NoMemory();
        else
            result = PyBytes_FromStringAndSize((const char *)entries,
                                               count < 0 ? 0 : (Py_ssize_t)count * (Py_ssize_t)sizeof *entries);
        leave(own);
    }
    PyBuffer_Release(&file);
    return result;
}

#ifndef SOURCES
#define SOURCES ""
#endif

/* The digest of the sources that this was compiled from: with other ones beside it, it is an old one, and is not used. */
static PyObject *sources(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyUnicode_FromString(SOURCES);
}

static PyMethodDef methods[] = {{"context", new_context, METH_NOARGS, NULL},
                                {"crops", crops, METH_VARARGS, NULL},
                                {"gather", gather, METH_VARARGS, NULL},
                                {"index", index_of, METH_VARARGS, NULL},
                                {"sources", sources, METH_NOARGS, NULL},
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
