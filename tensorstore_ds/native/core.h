/* What module.c, which speaks Python, and the kernels, which do not, have in common. */
#ifndef TSDS_CORE_H
#define TSDS_CORE_H
#include <stddef.h>
#include <stdint.h>

/* What became of an image, in the order of ImageStatus in __init__.py. */
enum { CROP_OK, CROP_DAMAGED, CROP_OTHER, CROP_MEMORY };

/* The kernels as they were compiled for one set of instructions. */
typedef struct {
    const char *name;
    /* Rows of a table of `count` x `nbytes`. All of `rows` must be in it. */
    void (*gather)(const uint8_t *table, size_t nbytes, const int64_t *rows, size_t count, uint8_t *out);
} kernels;

extern const kernels kernels_plain;
#if defined(__x86_64__)
extern const kernels kernels_avx2;
#endif

#endif
