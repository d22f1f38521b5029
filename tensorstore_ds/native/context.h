/* What a thread keeps from one image to the next: memory, and tables that most files share. */
#ifndef TSDS_CONTEXT_H
#define TSDS_CONTEXT_H
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* All aarch64 processors have NEON, so it needs no kernels of its own. */
#if defined(__aarch64__) && defined(__ARM_NEON) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_neon.h>
#define HAS_NEON 1
#endif

#define LOOK 12 /* bits of a Huffman code that are looked up at once */

/* By the next LOOK bits. Bits 0-7: how many of them the code and its value take. Bits 8-15: by how many coefficients the
 * place moves: the run of zeros and 1, or AT_END at the end of a block. Bits 16-31: the value. AT_SLOW: the code or its
 * value is longer than LOOK bits. Then bits 0-7 are 0, 16-23 are the length of the code, or 0 if it is longer than LOOK
 * bits or unknown, and 24-31 are the symbol. */
enum { AT_END = 128, AT_SLOW = 192 };
typedef struct {
    uint32_t fast[1 << LOOK];
    int32_t limit[18]; /* by length: one more than the last code, left-justified in 16 bits */
    int32_t delta[17]; /* by length: what leads from a code to its symbol */
    uint8_t symbols[256];
    uint8_t key[16 + 256]; /* what it was made of */
    int is_ready;
} huffman_table;

typedef struct {
    uint8_t *bytes;
    size_t capacity;
    void *block; /* that `bytes` is in */
} memory;

typedef struct {
    int count, taps, precision, low; /* begin[i] counts from pixel `low` on, where the first result begins */
    int32_t *begin, *length;
    int is_fine;      /* 0: weights of 16 bits. 1: weights of 22 bits, of which the second half has the low FINE_BITS */
    int16_t *weights; /* (1 + is_fine, count, taps), taps even */
    int16_t *spread;  /* (1 + is_fine, (count + 7) / 8, 4, taps / 2, 16): of results i and i + 4, each pair of weights
                         four times */
    size_t cells, spread_cells; /* in each half */
    memory memory;
} filter;

struct context {
    memory header, scans[2], pieces, planes, lines, rows, turned, entries;
    filter across, down;
    huffman_table dc[4], ac[4];
};

static inline void give_back(memory *m) {
    free(m->block);
    *m = (memory){0};
}

/* At least so many bytes, at a multiple of 64; what was in it is lost. Windows has no aligned_alloc. */
static inline int reserve(memory *m, size_t nbytes) {
    if (m->capacity >= nbytes) return 1;
    give_back(m);
    size_t room = nbytes + nbytes / 4 + 4096;
    if (!(m->block = malloc(room + 63))) return 0;
    m->bytes = (uint8_t *)(((uintptr_t)m->block + 63) & ~(uintptr_t)63), m->capacity = room;
    return 1;
}

/* Gives back pieces of memory of more than `most` bytes. */
static inline void trim(context *c, size_t most) {
    memory *all[] = {&c->header, &c->scans[0], &c->scans[1], &c->pieces,        &c->planes,     &c->lines,
                     &c->rows,   &c->turned,   &c->entries,  &c->across.memory, &c->down.memory};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->capacity > most) give_back(all[i]);
}
#endif
