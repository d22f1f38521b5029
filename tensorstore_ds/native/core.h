/* What module.c, which speaks Python, and the kernels, which do not, have in common. */
#ifndef TSDS_CORE_H
#define TSDS_CORE_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* What became of an image, in the order of ImageStatus in __init__.py. */
enum { CROP_OK, CROP_DAMAGED, CROP_OTHER, CROP_MEMORY };

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
} kernels;

extern const kernels kernels_plain;
#if defined(__x86_64__)
extern const kernels kernels_avx2;
#endif

#endif
