/* The Python side, in the limited API of 3.11: one build for all versions from there on. A Python without the GIL has no
 * such API: there, a build is for one version.
 *
 * Each function checks that its buffers fit each other, and lets go of the GIL while it works. */
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>

#include "context.h"
#if defined(__SIZEOF_INT128__)
#include "order.h"
#endif

static const kernels *chosen = &kernels_plain;

static void choose(int is_plain) {
    chosen = &kernels_plain;
#if defined(__x86_64__)
    if (!is_plain && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) chosen = &kernels_avx2;
#else
    (void)is_plain;
#endif
}

/* For tests, while no other thread is in a kernel. */
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

/* --- rows --- */

/* A table, and the buffers that its shards lie in. It is freed with its capsule, and no shard before. */
typedef struct {
    row_table rows;
    Py_buffer *shards;
} py_table;

static const char TABLE[] = "tensorstore_ds table";

static void free_table(PyObject *capsule) {
    py_table *table = PyCapsule_GetPointer(capsule, TABLE);
    for (size_t i = 0; table->shards && i < table->rows.shards; i++)
        if (table->shards[i].obj) PyBuffer_Release(&table->shards[i]);
    PyMem_Free(table->shards), PyMem_Free(table->rows.edges), PyMem_Free((void *)table->rows.from), PyMem_Free(table);
}

/* table(edges, nbytes) -> table: of rows of `nbytes`, shards from edges[i] to edges[i + 1], without any of them yet */
static PyObject *make_table(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer edges;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "y*n", &edges, &nbytes)) return NULL;
    size_t count = (size_t)edges.len / 8;
    py_table *table = PyMem_Calloc(1, sizeof *table);
    PyObject *capsule = table ? PyCapsule_New(table, TABLE, free_table) : NULL;
    if (capsule && (nbytes < 1 || edges.len % 8 || count < 2)) {
        PyErr_SetString(PyExc_ValueError, "table: expected rows of a byte at least, and where the shards begin and end");
    } else if (capsule) {
        table->rows.nbytes = (size_t)nbytes, table->rows.shards = count - 1;
        table->rows.edges = PyMem_Malloc((size_t)edges.len);
        table->rows.from = PyMem_Calloc(count, sizeof *table->rows.from);
        table->shards = PyMem_Calloc(count, sizeof *table->shards);
        if (!table->rows.edges || !table->rows.from || !table->shards) PyErr_NoMemory();
        else {
            memcpy(table->rows.edges, edges.buf, (size_t)edges.len);
            int rises = table->rows.edges[0] == 0;
            for (size_t i = 1; i < count; i++) rises &= table->rows.edges[i - 1] <= table->rows.edges[i];
            /* no byte of any shard, nor of a batch of as many rows, is beyond what a size can count */
            rises = rises && table->rows.edges[count - 1] <= PY_SSIZE_T_MAX / nbytes;
            if (!rises) PyErr_SetString(PyExc_ValueError, "table: expected edges that begin at 0 and rise");
        }
    } else {
        PyMem_Free(table);
        if (!PyErr_Occurred()) PyErr_NoMemory();
    }
    PyBuffer_Release(&edges);
    if (PyErr_Occurred()) Py_CLEAR(capsule);
    return capsule;
}

/* add(table, shard, buffer): the rows of a shard; a shard that is there stays. The table keeps the buffer. */
static PyObject *add(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    Py_ssize_t shard;
    Py_buffer buffer;
    if (!PyArg_ParseTuple(args, "Ony*", &capsule, &shard, &buffer)) return NULL;
    py_table *table = PyCapsule_GetPointer(capsule, TABLE);
    if (table && shard >= 0 && (size_t)shard < table->rows.shards) {
        size_t rows = (size_t)(table->rows.edges[shard + 1] - table->rows.edges[shard]);
        if ((size_t)buffer.len == rows * table->rows.nbytes) {
            const unsigned char *none = NULL;
            if (rows && atomic_compare_exchange_strong(&table->rows.from[shard], &none, buffer.buf))
                table->shards[shard] = buffer; /* of whoever was first, and read again by free_table alone */
            else
                PyBuffer_Release(&buffer);
            Py_RETURN_NONE;
        }
    }
    PyBuffer_Release(&buffer);
    if (table) PyErr_SetString(PyExc_ValueError, "add: expected a shard of the table, with all of its rows");
    return NULL;
}

/* Bytes that are copied sooner than another thread has taken and given back the GIL, from so many pages: each may have
 * to be read from a disk. */
enum { SHORT = 1 << 15, FEW_PAGES = 128 };

static int is_short(const row_table *rows, size_t count, size_t nbytes) {
    size_t pages = (size_t)rows->edges[rows->shards] * rows->nbytes / 4096;
    return nbytes <= SHORT && (count < pages ? count : pages) <= FEW_PAGES;
}

/* gather(table, rows, out) -> how many rows were copied: see `kernels` */
static PyObject *gather(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    Py_buffer rows, out;
    if (!PyArg_ParseTuple(args, "Oy*w*", &capsule, &rows, &out)) return NULL;
    const py_table *table = PyCapsule_GetPointer(capsule, TABLE);
    size_t count = (size_t)rows.len / 8, done = 0;
    int fits = table && rows.len % 8 == 0 && (size_t)out.len % table->rows.nbytes == 0 &&
               (size_t)out.len / table->rows.nbytes == count;
    if (fits && is_short(&table->rows, count, (size_t)out.len)) done = chosen->gather(&table->rows, rows.buf, count, out.buf);
    else if (fits) {
        Py_BEGIN_ALLOW_THREADS
        done = chosen->gather(&table->rows, rows.buf, count, out.buf);
        Py_END_ALLOW_THREADS
    } else if (table)
        PyErr_SetString(PyExc_ValueError, "gather: expected a row of out for each of rows");
    PyBuffer_Release(&rows), PyBuffer_Release(&out);
    return fits ? PyLong_FromSize_t(done) : NULL;
}

enum { STAGED = 1 << 14 }; /* bytes of pixels that are moved before they are looked up: they stay in the cache */

/* Fills in what follows from the sizes; whether all buffers fit them. */
static int check_moves(moves *all, const row_table *table, const Py_buffer *buffers, size_t count) {
    size_t pixel = all->image[2], most = (size_t)PY_SSIZE_T_MAX;
    for (int i = 0; i < 3; i++)
        if (all->image[i] < 1 || all->image[i] > 1 << 15) return 0;
    for (int i = 0; i < 2; i++)
        if (all->canvas[i] < 1 || all->canvas[i] > 1 << 16) return 0;
    if (sizeof most < 8 || all->image[0] * all->image[1] * pixel != table->nbytes) return 0; /* at most 2^45 */
    size_t line = all->canvas[1] * pixel, image = all->canvas[0] * line * all->item; /* at most 2^49 */
    for (int i = 1; i < 4; i++)
        if ((size_t)buffers[i].len != 16 * count) return 0;
    if ((size_t)buffers[4].len != count || count > most / image || (size_t)buffers[5].len != count * image) return 0;
    if (all->levels ? (size_t)buffers[6].len != 256 * pixel * all->item : all->item != 1) return 0;
    if (all->factors && (size_t)buffers[7].len != 8 * pixel) return 0;
    all->count = count;
    all->scratch = line > STAGED ? line : STAGED;
    return 1;
}

/* small(table, image, rows, offset, first, last, flip, fill, levels, factors, canvas, item, out) -> images moved
 *
 * image: (height, width, channels) of a row; canvas: (height, width) of a result; offset, first, last: (2, B) int64;
 * flip: (B,) bool; levels: (channels, 256) of `item` bytes, or None; factors: (2, channels) float32, or None;
 * out: (B, height, width, channels). */
static PyObject *small(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    Py_ssize_t image[3], canvas[2], item;
    Py_buffer buffers[8]; /* rows, offset, first, last, flip, out, levels, factors */
    unsigned char fill;
    if (!PyArg_ParseTuple(args, "O(nnn)y*y*y*y*y*bz*z*(nn)nw*", &capsule, image, image + 1, image + 2, buffers,
                          buffers + 1, buffers + 2, buffers + 3, buffers + 4, &fill, buffers + 6, buffers + 7,
                          canvas, canvas + 1, &item, buffers + 5))
        return NULL;
    const py_table *table = PyCapsule_GetPointer(capsule, TABLE);
    moves all = {.image = {(size_t)image[0], (size_t)image[1], (size_t)image[2]},
                 .canvas = {(size_t)canvas[0], (size_t)canvas[1]},
                 .offset = buffers[1].buf,
                 .first = buffers[2].buf,
                 .last = buffers[3].buf,
                 .flip = buffers[4].buf,
                 .levels = buffers[6].buf,
                 .factors = buffers[7].buf,
                 .item = (size_t)item,
                 .fill = fill};
    size_t count = (size_t)buffers[0].len / 8, done = 0;
    const uintptr_t together = (uintptr_t)all.levels | (uintptr_t)buffers[5].buf;
    int fits = table && (item == 1 || item == 2 || item == 4) && buffers[0].len % 8 == 0 &&
               together % (size_t)item == 0 && (uintptr_t)all.factors % 4 == 0 &&
               check_moves(&all, &table->rows, buffers, count);
    uint8_t *scratch = fits ? malloc(all.scratch) : NULL;
    if (scratch) {
        Py_BEGIN_ALLOW_THREADS
        done = chosen->small(&table->rows, &all, buffers[0].buf, count, buffers[5].buf, scratch);
        Py_END_ALLOW_THREADS
        free(scratch);
    } else if (fits) PyErr_NoMemory();
    else if (table)
        PyErr_SetString(PyExc_ValueError, "small: expected buffers that fit the images, the canvas and each other");
    for (int i = 0; i < 8; i++)
        if (buffers[i].obj) PyBuffer_Release(&buffers[i]);
    return scratch ? PyLong_FromSize_t(done) : NULL;
}

#define ROWS_METHODS                                                                                            \
    {"table", make_table, METH_VARARGS, NULL}, {"add", add, METH_VARARGS, NULL},                                \
        {"gather", gather, METH_VARARGS, NULL}, {"small", small, METH_VARARGS, NULL}

/* --- crops ---------------------------------------------------------------------------------------------------------- */

#define KEPT_NBYTES ((size_t)16 << 20)
#define MOST_VIEWS 32

/* A thread's memory, and whether a call is in it. */
typedef struct {
    context *memory;
    atomic_flag is_busy;
} own_context;

context *context_new(void) { return calloc(1, sizeof(context)); }

void context_free(context *c) {
    if (!c) return;
    trim(c, 0);
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

/* One very large image is no reason to keep its memory for as long as the thread lives. */
static void leave(own_context *own) {
    trim(own->memory, KEPT_NBYTES);
    atomic_flag_clear(&own->is_busy);
}

/* One int64, which other threads change or read meanwhile. */
static _Atomic int64_t *shared_number(const Py_buffer *buffer) {
    return buffer->len == 8 && (uintptr_t)buffer->buf % 8 == 0 ? buffer->buf : NULL;
}

/* Where the results of one view are. */
typedef struct {
    Py_buffer buffer;
    int height, width;
    uint64_t nbytes; /* of an image */
} crop_view;

/* Whether a view has room for `count` images. */
static int is_room(crop_view *view, int channels, Py_ssize_t count) {
    if (view->height < 1 || view->width < 1 || view->height > 0xFFFF || view->width > 0xFFFF) return 0;
    view->nbytes = (uint64_t)view->height * (uint64_t)view->width * (uint64_t)channels;
    return (uint64_t)view->buffer.len / view->nbytes == (uint64_t)count && (uint64_t)view->buffer.len % view->nbytes == 0;
}

static int32_t pixel(double place) { return place > 0 ? place < 0x10000 ? (int32_t)place : 0x10000 : 0; }

/* Adds what a crop needs along an axis, at most; returns how much that is. */
static double add_axis(crop_cover *cover, int axis, const crop_axis *a, int scale) {
    double step = a->extent / (a->resized > 0 ? a->resized : 1), reach = (step > scale ? step : scale) + scale;
    int32_t low = pixel(a->origin + a->first * step - reach);
    int32_t high = pixel(a->origin + ((double)a->first + a->count) * step + reach + 1);
    if (low < cover->low[axis]) cover->low[axis] = low;
    if (high > cover->high[axis]) cover->high[axis] = high;
    return high - low;
}

/* All views of an image. Those at one scale are decoded once, if together they need fewer pixels than one by one. */
static long crop_views(context *own, const crop_shard *shards, size_t shard_count, crop_job *jobs, const crop_view *views,
                       int count, size_t image, int channels, int32_t *status) {
    long failed = 0;
    for (int scale = 1; scale <= 8; scale *= 2) {
        crop_cover cover = {{0x10000, 0x10000}, {0, 0}, {0}};
        double apart = 0;
        for (int v = 0; v < count; v++)
            if (jobs[v].scale == scale)
                apart += add_axis(&cover, 0, &jobs[v].y, scale) * add_axis(&cover, 1, &jobs[v].x, scale);
        double together = (double)(cover.high[0] - cover.low[0]) * (cover.high[1] - cover.low[1]);
        for (int v = 0; v < count; v++)
            if (jobs[v].scale == scale)
                status[v] = chosen->crop(own, shards, shard_count, jobs + v, together < apart ? &cover : NULL,
                                         views[v].height, views[v].width, channels,
                                         (uint8_t *)views[v].buffer.buf + image * views[v].nbytes);
    }
    for (int v = 0; v < count; v++) failed += status[v] != CROP_OK;
    return failed;
}

/* crops(context, ((file, restarts, entries), ...), jobs, out, height, width, channels, status,
 *       taken, oldest, number, ((out, height, width), ...)) -> failed
 *
 * Without `taken`, `oldest` and `number`: all images. With them: images that no other thread has taken (`taken` counts
 * them), as long as `oldest` is not below `number`: a thread then leaves its loop for an older one. The last argument
 * has more views: then `jobs` and `status` have one of each image after the other. */
static PyObject *crops(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *tuple, *others = NULL;
    Py_buffer jobs, status, taken = {0}, oldest = {0};
    crop_view outs[MOST_VIEWS] = {0};
    long long number = 0;
    int channels;
    if (!PyArg_ParseTuple(args, "OO!y*w*iiiw*|w*y*LO!", &capsule, &PyTuple_Type, &tuple, &jobs, &outs[0].buffer,
                          &outs[0].height, &outs[0].width, &channels, &status, &taken, &oldest, &number, &PyTuple_Type,
                          &others))
        return NULL;
    PyObject *result = NULL;
    Py_ssize_t shards = PyTuple_Size(tuple), held = 0, outs_held = 1, more = others ? PyTuple_Size(others) : 0;
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
    if (more >= MOST_VIEWS) {
        PyErr_SetString(PyExc_ValueError, "crops: too many views");
        goto done;
    }
    for (; outs_held <= more; outs_held++) {
        crop_view *view = outs + outs_held;
        PyObject *three = PyTuple_GetItem(others, outs_held - 1);
        if (!PyTuple_Check(three) || !PyArg_ParseTuple(three, "w*ii", &view->buffer, &view->height, &view->width)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "crops: expected a tuple for each view");
            goto done;
        }
    }
    Py_ssize_t job_count = jobs.len / (Py_ssize_t)sizeof(crop_job), count = job_count / outs_held;
    if (jobs.len % (Py_ssize_t)sizeof(crop_job) || job_count % outs_held || (channels != 1 && channels != 3) ||
        status.len != 4 * job_count || (uintptr_t)status.buf % 4) {
        PyErr_SetString(PyExc_ValueError, "crops: buffers do not fit each other");
        goto done;
    }
    for (Py_ssize_t v = 0; v < outs_held; v++)
        if (!is_room(outs + v, channels, count)) {
            PyErr_SetString(PyExc_ValueError, "crops: `out` does not fit the jobs");
            goto done;
        }
    _Atomic int64_t alone = 0, *next = taken.obj ? shared_number(&taken) : &alone, zero = 0;
    const _Atomic int64_t *first = oldest.obj ? shared_number(&oldest) : &zero;
    if (!next || !first || !taken.obj != !oldest.obj) {
        PyErr_SetString(PyExc_ValueError, "crops: expected one int64 each as `taken` and `oldest`");
        goto done;
    }
    if (!(own = enter(capsule))) goto done;
    long failed = 0;
    Py_BEGIN_ALLOW_THREADS
    while (!oldest.obj || atomic_load_explicit(first, memory_order_relaxed) >= number) {
        int64_t i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (i < 0 || i >= count) break;
        crop_job each[MOST_VIEWS]; /* copies: what was checked is what is used */
        int32_t *codes = (int32_t *)status.buf + i * outs_held;
        memcpy(each, (const char *)jobs.buf + (size_t)(i * outs_held) * sizeof *each, (size_t)outs_held * sizeof *each);
        for (Py_ssize_t v = 0; v < outs_held; v++) codes[v] = CROP_OTHER; /* of no known scale */
        failed += crop_views(own->memory, views, (size_t)shards, each, outs, (int)outs_held, (size_t)i, channels, codes);
    }
    Py_END_ALLOW_THREADS
    leave(own);
    result = PyLong_FromLong(failed);
done:
    while (held) PyBuffer_Release(&buffers[--held]);
    free(buffers), free(views);
    while (outs_held) PyBuffer_Release(&outs[--outs_held].buffer);
    PyBuffer_Release(&jobs), PyBuffer_Release(&status);
    if (taken.obj) PyBuffer_Release(&taken);
    if (oldest.obj) PyBuffer_Release(&oldest);
    return result;
}

/* A tuple of `count` numbers, and then of as many others. */
static PyObject *numbers(const uint64_t *first, const uint64_t *second, size_t count) {
    PyObject *result = PyTuple_New(2 * (Py_ssize_t)count);
    for (size_t i = 0; result && i < 2 * count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(i < count ? first[i] : second[i - count]);
        if (!number || PyTuple_SetItem(result, (Py_ssize_t)i, number) < 0) Py_CLEAR(result);
    }
    return result;
}

static PyObject *walked(PyObject *args, pixel_sums *sums) {
    PyObject *capsule, *result = NULL;
    Py_buffer file;
    if (!PyArg_ParseTuple(args, "Oy*", &capsule, &file)) return NULL;
    own_context *own = enter(capsule);
    if (own) {
        const jpeg_entry *entries = NULL;
        int64_t count;
        Py_BEGIN_ALLOW_THREADS
        count = chosen->index(own->memory, (bytes_view){file.buf, (size_t)file.len}, &entries, sums);
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

/* index(context, file) -> bytes: the entries, none if the file cannot have any */
static PyObject *index_of(PyObject *self, PyObject *args) {
    (void)self;
    return walked(args, NULL);
}

/* walk(context, file) -> the entries, and of all pixels the sum of each channel, and then of its squares: no numbers if
 * these kernels cannot decode all of it, or the file cannot have entries */
static PyObject *walk(PyObject *self, PyObject *args) {
    (void)self;
    pixel_sums sums;
    PyObject *entries = walked(args, &sums), *found = entries ? numbers(sums.sums, sums.squares, sums.channels) : NULL;
    PyObject *result = found ? PyTuple_Pack(2, entries, found) : NULL;
    Py_XDECREF(entries), Py_XDECREF(found);
    return result;
}

/* sums(pixels, channels) -> the sum of each channel, of 1 to 4, and then of its squares, of uint8 pixels */
static PyObject *sums(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer pixels;
    Py_ssize_t channels;
    uint64_t found[8];
    if (!PyArg_ParseTuple(args, "y*n", &pixels, &channels)) return NULL;
    int fits = channels >= 1 && channels <= 4 && pixels.len % channels == 0;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        chosen->sums(pixels.buf, (size_t)(pixels.len / channels), (size_t)channels, found);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "sums: expected pixels of 1 to 4 channels");
    PyBuffer_Release(&pixels);
    return fits ? numbers(found, found + channels, (size_t)channels) : NULL;
}

/* decode(context, file, out) -> whether it was: a JPEG file's pixels as they are stored, (height, width, components) */
static PyObject *decode(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    Py_buffer file, out;
    if (!PyArg_ParseTuple(args, "Oy*w*", &capsule, &file, &out)) return NULL;
    own_context *own = enter(capsule);
    int code = CROP_OTHER;
    if (own) {
        Py_BEGIN_ALLOW_THREADS
        code = chosen->decode(own->memory, (bytes_view){file.buf, (size_t)file.len}, out.buf, (size_t)out.len);
        Py_END_ALLOW_THREADS
        leave(own);
    }
    PyBuffer_Release(&file), PyBuffer_Release(&out);
    return own ? PyBool_FromLong(code == CROP_OK) : NULL;
}

/* resize(context, pixels, (height, width), ((y, extent, resized), (x, extent, resized)), out) -> whether it was
 *
 * pixels: (height, width, 3) uint8, out: (resized y, resized x, 3); the part from y and x on, with Pillow's bits. */
static PyObject *resize(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    Py_buffer pixels, out;
    int32_t from[2];
    resize_axis axes[2];
    if (!PyArg_ParseTuple(args, "Oy*(ii)((ddi)(ddi))w*", &capsule, &pixels, from, from + 1, &axes[0].origin, &axes[0].extent,
                          &axes[0].resized, &axes[1].origin, &axes[1].extent, &axes[1].resized, &out))
        return NULL;
    int is_usual = 1, code = CROP_OTHER;
    for (int i = 0; i < 2; i++)
        is_usual &= from[i] >= 1 && from[i] <= 1 << 24 && axes[i].resized >= 1 && axes[i].resized <= 1 << 16 &&
                    axes[i].origin >= 0 && axes[i].origin <= from[i] && axes[i].extent > 0 && axes[i].extent <= from[i];
    int fits = is_usual && pixels.len == 3 * (int64_t)from[0] * from[1] &&
               out.len == 3 * (int64_t)axes[0].resized * axes[1].resized;
    own_context *own = fits ? enter(capsule) : NULL;
    if (own) {
        Py_BEGIN_ALLOW_THREADS
        code = chosen->resize(own->memory, pixels.buf, from, axes, out.buf);
        Py_END_ALLOW_THREADS
        leave(own);
    } else if (is_usual && !fits)
        PyErr_SetString(PyExc_ValueError, "resize: expected buffers that fit the sizes");
    PyBuffer_Release(&pixels), PyBuffer_Release(&out);
    return own || !is_usual ? PyBool_FromLong(code == CROP_OK) : NULL;
}

/* encode(context, head, pixels) -> (file, restarts), or None if these kernels cannot write what the header says
 *
 * head: a JPEG file up to its codes; pixels: (height, width, channels) uint8 of its size; restarts: where the codes go on
 * behind each restart marker, uint32. */
static PyObject *encode(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *result = NULL;
    Py_buffer head, pixels;
    if (!PyArg_ParseTuple(args, "Oy*y*", &capsule, &head, &pixels)) return NULL;
    own_context *own = enter(capsule);
    if (own) {
        bytes_view file, restarts;
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = chosen->encode(own->memory, (bytes_view){head.buf, (size_t)head.len},
                              (bytes_view){pixels.buf, (size_t)pixels.len}, &file, &restarts);
        Py_END_ALLOW_THREADS
        if (code == CROP_OK)
            result = Py_BuildValue("(y#y#)", (const char *)file.bytes, (Py_ssize_t)file.nbytes,
                                   (const char *)restarts.bytes, (Py_ssize_t)restarts.nbytes);
        else
            result = code == CROP_MEMORY ? PyErr_NoMemory() : Py_NewRef(Py_None);
        leave(own);
    }
    PyBuffer_Release(&head), PyBuffer_Release(&pixels);
    return result;
}

#if defined(__SIZEOF_INT128__)
/* shuffle(order, state high, state low, step high, step low): the numbers from 0 on, shuffled by a PCG64 in this state */
static PyObject *shuffle(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer order;
    unsigned long long state[2], step[2];
    if (!PyArg_ParseTuple(args, "w*KKKK", &order, state, state + 1, step, step + 1)) return NULL;
    uint64_t count = (uint64_t)order.len / 8;
    int fits = order.len % 8 == 0 && (uintptr_t)order.buf % 8 == 0 && count <= (uint64_t)1 << 32;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        shuffle_order((pcg64){.state = (wide)state[0] << 64 | state[1], .step = (wide)step[0] << 64 | step[1]},
                      order.buf, count);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "shuffle: expected at most 2^32 numbers of 8 bytes");
    PyBuffer_Release(&order);
    return fits ? Py_NewRef(Py_None) : NULL;
}
#define SHUFFLE_METHOD {"shuffle", shuffle, METH_VARARGS, NULL},
#else /* Python then leaves it to NumPy */
#define SHUFFLE_METHOD
#endif

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
                                ROWS_METHODS,
                                SHUFFLE_METHOD
                                {"decode", decode, METH_VARARGS, NULL},
                                {"encode", encode, METH_VARARGS, NULL},
                                {"index", index_of, METH_VARARGS, NULL},
                                {"resize", resize, METH_VARARGS, NULL},
                                {"sources", sources, METH_NOARGS, NULL},
                                {"sums", sums, METH_VARARGS, NULL},
                                {"variant", variant, METH_NOARGS, NULL},
                                {"use_plain", use_plain, METH_VARARGS, NULL},
                                {"walk", walk, METH_VARARGS, NULL},
                                {NULL, NULL, 0, NULL}};

static int start(PyObject *module) {
    (void)module;
    choose(0);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)start},
#ifdef Py_GIL_DISABLED
                                   {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                   {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods, slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
