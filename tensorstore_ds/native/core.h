/* What module.c, which speaks Python, and the kernels, which do not, have in common. */
#ifndef TSDS_CORE_H
#define TSDS_CORE_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* What became of an image: decoded; damaged; not for these kernels; memory was short. Python does all but the first. */
enum { CROP_OK, CROP_DAMAGED, CROP_OTHER, CROP_MEMORY };

/* How the parts of a file can be found: not at all, by its restart markers, by entries. */
enum { FIND_NONE, FIND_RESTARTS, FIND_ENTRIES };

/* One axis of a crop: `extent` pixels of the image from `origin` on, upright, are resized to `resized`; of these,
 * `count` from `first` on are laid into the result from `at` on. */
typedef struct {
    double origin, extent;
    int32_t resized, first, count, at;
} crop_axis;

/* One image of a batch, as JOB in __init__.py. `begin`, `end`: its bytes in its shard. `marks`: its first restart or
 * entry in that shard's table. `height`, `width`, `components`: upright, as the
 * store says. */
typedef struct {
    int64_t begin, end, marks, mark_count;
    int32_t shard, find, height, width, components, scale, flip, reserved;
    crop_axis y, x;
} crop_job;

typedef struct {
    const uint8_t *bytes;
    size_t nbytes;
} bytes_view;

/* The tables of one shard. */
typedef struct {
    bytes_view file, restarts, entries;
} crop_shard;

/* Where a Huffman code can be taken up: `bit`: its place in the file, in bits; the predictions of DC there. */
typedef struct {
    uint32_t bit;
    int16_t dc[3], zero;
} jpeg_entry;
#define UNITS_PER_ENTRY 4

typedef struct context context;
context *context_new(void);
void context_free(context *c);

/* Rows of `nbytes` each in several shards: shard s has the rows from edges[s] to edges[s + 1]. */
typedef struct {
    size_t nbytes, shards;
    int64_t *edges;                   /* shards + 1 */
    const uint8_t *_Atomic *from;     /* where each shard begins; NULL until it is added */
} row_table;

/* Images that are moved, mirrored and looked up: see Placements in loading/augment/placements.py. Pairs are y, x. */
typedef struct {
    size_t image[3], canvas[2];             /* height, width (and channels) of a row, and of a result */
    size_t count;                           /* images */
    const int64_t *offset, *first, *last;   /* y of each image, then x of each */
    const uint8_t *flip;                    /* one an image */
    const void *levels;                     /* channels x 256 values of the results; NULL if pixels stay */
    const float *factors;                   /* scale and shift of each channel, by which most levels are; or NULL */
    size_t item;                            /* bytes of a value of the results */
    size_t scratch;                         /* bytes of scratch memory: a line of the canvas at least */
    uint8_t fill;
} moves;

/* The kernels as they were compiled for one set of instructions. */
typedef struct {
    const char *name;
    /* Both return how many rows they did: fewer than `count` if a row is outside, or its shard not there. A negative
     * row counts from the end. */
    size_t (*gather)(const row_table *table, const int64_t *rows, size_t count, uint8_t *out);
    size_t (*small)(const row_table *table, const moves *all, const int64_t *rows, size_t count, uint8_t *out,
                    uint8_t *scratch);
    /* An image into (height, width, channels) `out`; returns what became of it. */
    int (*crop)(context *c, const crop_shard *shards, size_t shard_count, const crop_job *job, int height, int width,
                int channels, uint8_t *out);
    /* The entries of a file; how many, or -1 if it has none, or -2 if memory is short. They are the context's. */
    int64_t (*index)(context *c, bytes_view file, const jpeg_entry **entries);
} kernels;

extern const kernels kernels_plain;
#if defined(__x86_64__)
extern const kernels kernels_avx2;
#endif

#endif
