/* Rows of a table into a batch: as they are, or as images that are moved, mirrored and looked up on the way.
 *
 * Another thread may write to what Python passes, so each number is read once, checked, and then used. */
#ifndef TSDS_ROWS_H
#define TSDS_ROWS_H
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core.h"

enum {
    MOST_AHEAD = 32,        /* rows that are asked for before they are copied: a power of two */
    ASKED = 8 << 10,        /* as many as have so many bytes, or 8 */
    TINY = 16,              /* bytes of a row that needs no asking */
    LARGE = 4096,           /* bytes of a row that is asked for in blocks while it is copied */
    LINE = 64,              /* bytes of a line of the caches */
    BLOCK = 1024,           /* of such a block */
    STREAMED = 4 << 20,     /* bytes of a batch that no cache keeps until it is used */
    FAR = 1 << 30           /* farther away than any pixel */
};

static inline int64_t load_int64(const void *from) {
    int64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* Where a row is; NULL if the table has no such row, or does not have its shard yet. `last` is the shard of the row
 * before, where the search begins. */
static inline const uint8_t *find_row(const row_table *table, const int64_t *place, size_t *last) {
    const int64_t *edges = table->edges;
    int64_t row = load_int64(place), count = edges[table->shards];
    if (row < 0) row += count;
    if (row < 0 || row >= count) return NULL;
    size_t shard = *last;
    if (row < edges[shard] || row >= edges[shard + 1]) {
        size_t low = 0, high = table->shards; /* edges[low] <= row < edges[high] */
        while (high - low > 1) {
            size_t middle = low + (high - low) / 2;
            if (edges[middle] <= row) low = middle;
            else
                high = middle;
        }
        *last = shard = low;
    }
    const uint8_t *from = atomic_load_explicit(&table->from[shard], memory_order_acquire);
    return from ? from + (size_t)(row - edges[shard]) * table->nbytes : NULL;
}

/* Into the second cache: the first one can wait for a few lines only, and then stops the processor.
 * Twice as fast as with any other hint, on AMD Zen 4. */
static inline void ask_for(const uint8_t *from, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i += LINE) __builtin_prefetch(from + i, 0, 2);
    __builtin_prefetch(from + nbytes - 1, 0, 2);
}

/* The next rows, found and asked for. */
typedef struct {
    const row_table *table;
    const int64_t *rows;
    size_t count, found, shard, distance;
    const uint8_t *from[MOST_AHEAD];
} ahead;

static inline ahead look_from(const row_table *table, const int64_t *rows, size_t count) {
    size_t distance = ASKED / table->nbytes;
    distance = distance < 8 ? 8 : distance < MOST_AHEAD ? distance : MOST_AHEAD;
    return (ahead){.table = table, .rows = rows, .count = count, .distance = distance};
}

static inline void look_ahead(ahead *next, size_t until) {
    if (until > next->count) until = next->count;
    size_t nbytes = next->table->nbytes;
    for (; next->found < until; next->found++) {
        const uint8_t *row = find_row(next->table, next->rows + next->found, &next->shard);
        next->from[next->found % MOST_AHEAD] = row;
        if (row && nbytes < LARGE) ask_for(row, nbytes);
    }
}

static inline const uint8_t *next_row(ahead *next, size_t i) {
    look_ahead(next, i + 1); /* the first ones */
    const uint8_t *row = next->from[i % MOST_AHEAD];
    look_ahead(next, i + next->distance);
    return row;
}

/* Copies of so many bytes become one or two instructions. The last ones of a row are copied twice: no branches. */
static inline void copy_bytes(uint8_t *restrict to, const uint8_t *restrict from, size_t n) {
#define COPY_ENDS(size) (memcpy(to, from, size), memcpy(to + n - (size), from + n - (size), size))
    if (n >= 32) {
        size_t i = 0;
        for (; i + 128 <= n; i += 128) {
            memcpy(to + i, from + i, 32), memcpy(to + i + 32, from + i + 32, 32);
            memcpy(to + i + 64, from + i + 64, 32), memcpy(to + i + 96, from + i + 96, 32);
        }
        for (; i + 32 <= n; i += 32) memcpy(to + i, from + i, 32);
        memcpy(to + n - 32, from + n - 32, 32);
    } else if (n >= 16) COPY_ENDS(16);
    else if (n >= 8) COPY_ENDS(8);
    else if (n >= 4) COPY_ENDS(4);
    else
        for (size_t i = 0; i < n; i++) to[i] = from[i];
#undef COPY_ENDS
}

/* The same of whole cache lines, past the caches, which then need not read what is overwritten. */
static inline void stream_lines(uint8_t *restrict to, const uint8_t *restrict from, size_t n) {
#if defined(__SSE2__) /* on AMD Zen 4, stores of 32 bytes are a quarter slower */
    for (size_t i = 0; i < n; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
#else
    copy_bytes(to, from, n);
#endif
}

/* A large row; some way ahead of what is copied, the rest of it is asked for, and then the next one. */
static inline void copy_large(uint8_t *restrict to, const uint8_t *restrict from, size_t n, const uint8_t *after,
                              int streams) {
    size_t i = -(uintptr_t)to % LINE; /* then lines are whole */
    copy_bytes(to, from, i);
    for (; i < n; i += BLOCK) {
        size_t block = n - i < BLOCK ? n - i : BLOCK, there = i + ASKED;
        if (there < n) ask_for(from + there, n - there < BLOCK ? n - there : BLOCK);
        else if (after && (there -= n) < n) ask_for(after + there, n - there < BLOCK ? n - there : BLOCK);
        if (streams && block == BLOCK) stream_lines(to + i, from + i, BLOCK);
        else
            copy_bytes(to + i, from + i, block);
    }
}

/* Rows of a few bytes, such as labels: the processor itself reads several at a time. */
#define GATHER_TINY(size)                                                           \
    for (; i < count; i++) {                                                        \
        const uint8_t *row = find_row(table, rows + i, &shard);                     \
        if (!row) break;                                                            \
        memcpy(out + i * (size), row, size);                                        \
    }
static size_t gather_tiny(const row_table *table, const int64_t *rows, size_t count, uint8_t *out) {
    size_t i = 0, shard = 0;
    switch (table->nbytes) {
    case 1: GATHER_TINY(1) break;
    case 2: GATHER_TINY(2) break;
    case 4: GATHER_TINY(4) break;
    case 8: GATHER_TINY(8) break;
    case 16: GATHER_TINY(16) break;
    default: GATHER_TINY(table->nbytes)
    }
    return i;
}
#undef GATHER_TINY

static size_t gather_rows(const row_table *table, const int64_t *rows, size_t count, uint8_t *out) {
    if (table->nbytes <= TINY) return gather_tiny(table, rows, count, out);
    ahead next = look_from(table, rows, count);
    size_t n = table->nbytes, i = 0;
    int streams = count > STREAMED / n;
    for (; i < count; i++) {
        const uint8_t *row = next_row(&next, i);
        if (!row) break;
        if (n < LARGE) copy_bytes(out + i * n, row, n);
        else
            copy_large(out + i * n, row, n, i + 1 < count ? next.from[(i + 1) % MOST_AHEAD] : NULL, streams);
    }
#if defined(__SSE2__)
    if (streams) _mm_sfence(); /* before another thread is told of it */
#endif
    return i;
}

/* --- images that are moved and mirrored --- */

/* `n` pixels in reverse order; the last ones are written twice where that saves a loop. */
static inline void mirror_pixels(uint8_t *restrict to, const uint8_t *restrict from, size_t n, size_t channels) {
    size_t i = 0;
    if (channels == 1 && n >= 8) {
#if defined(__AVX2__)
        const __m128i turn = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        if (n >= 16) {
            for (;;) {
                __m128i pixels = _mm_loadu_si128((const __m128i *)(from + n - 16 - i));
                _mm_storeu_si128((__m128i *)(to + i), _mm_shuffle_epi8(pixels, turn));
                if (i == n - 16) return;
                i = i + 16 < n - 16 ? i + 16 : n - 16;
            }
        }
#endif
        for (;;) {
            uint64_t pixels;
            memcpy(&pixels, from + n - 8 - i, 8);
            pixels = __builtin_bswap64(pixels);
            memcpy(to + i, &pixels, 8);
            if (i == n - 8) return;
            i = i + 8 < n - 8 ? i + 8 : n - 8;
        }
    }
    if (channels == 3) {
#if defined(__AVX2__)
        if (n >= 6) { /* five pixels of 16 bytes: the first byte stays, the last one is overwritten by the next ones */
            const __m128i turn = _mm_set_epi8(-1, 3, 2, 1, 6, 5, 4, 9, 8, 7, 12, 11, 10, 15, 14, 13);
            for (; n - i >= 6; i += 5) {
                __m128i pixels = _mm_loadu_si128((const __m128i *)(from + 3 * (n - i) - 16));
                _mm_storeu_si128((__m128i *)(to + 3 * i), _mm_shuffle_epi8(pixels, turn));
            }
            const __m128i last = _mm_set_epi8(2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9, 14, 13, 12, -1);
            __m128i *end = (__m128i *)(to + 3 * n - 16), first = _mm_setr_epi32(0xff, 0, 0, 0);
            __m128i pixels = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)from), last);
            _mm_storeu_si128(end, _mm_or_si128(pixels, _mm_and_si128(_mm_loadu_si128(end), first)));
            return;
        }
#endif
        for (; i < n; i++, to += 3) {
            const uint8_t *pixel = from + 3 * (n - 1 - i);
            to[0] = pixel[0], to[1] = pixel[1], to[2] = pixel[2];
        }
        return;
    }
    for (; i < n; i++, to += channels)
        for (size_t k = 0; k < channels; k++) to[k] = from[(n - 1 - i) * channels + k];
}

/* Where an image is seen on a canvas: its place, and what is seen of it, from `low` to `high`. Pairs are y, x. */
typedef struct {
    int64_t offset[2], low[2], high[2];
    int flip, is_whole;
} placed;

static inline int64_t within(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static inline placed read_placed(const moves *all, size_t i) {
    placed one = {.flip = all->flip[i] != 0};
    one.is_whole = !one.flip;
    for (size_t axis = 0; axis < 2; axis++) {
        int64_t size = (int64_t)all->canvas[axis], length = (int64_t)all->image[axis];
        int64_t offset = within(load_int64(all->offset + axis * all->count + i), -FAR, FAR);
        int64_t first = within(load_int64(all->first + axis * all->count + i), -FAR, FAR);
        int64_t last = within(load_int64(all->last + axis * all->count + i), -FAR, FAR);
        one.offset[axis] = offset;
        one.low[axis] = within(offset > first ? offset : first, 0, size);
        one.high[axis] = within(offset + length < last ? offset + length : last, one.low[axis], size);
        one.is_whole &= offset == 0 && length == size && one.low[axis] == 0 && one.high[axis] == size;
    }
    return one;
}

/* Lines [start, stop) of a canvas. */
static inline void place_lines(const moves *all, const placed *one, const uint8_t *image, size_t start, size_t stop,
                               uint8_t *to) {
    size_t c = all->image[2], line = all->canvas[1] * c, step = all->image[1] * c;
    size_t before = (size_t)one->low[1] * c, after = line - (size_t)one->high[1] * c, seen = line - before - after;
    size_t low = (size_t)one->low[0], high = seen ? (size_t)one->high[0] : low;
    low = low < start ? start : low > stop ? stop : low;
    high = high < low ? low : high > stop ? stop : high;
    memset(to, all->fill, (low - start) * line);
    to += (low - start) * line;
    const uint8_t *from = image;
    if (low < high) {
        from += (size_t)((int64_t)low - one->offset[0]) * step + (size_t)(one->low[1] - one->offset[1]) * c;
        if (before > 16 || after > 16 || line < 16) memset(to, all->fill, (high - low) * line), before = after = 0;
    }
    size_t left = one->flip ? line - (size_t)one->high[1] * c : (size_t)one->low[1] * c;
    int has_sides = before || after;
    for (size_t y = low; y < high; y++, to += line, from += step) {
        if (has_sides) memset(to, all->fill, 16), memset(to + line - 16, all->fill, 16);
        if (one->flip) mirror_pixels(to + left, from, seen / c, c);
        else
            copy_bytes(to + left, from, seen);
    }
    memset(to, all->fill, (stop - high) * line);
}

/* --- what each level of each channel becomes --- */

enum { PERIOD = 24 }; /* values after which 1, 2, 3 or 4 channels begin again, and so do vectors of 8 */

/* The value of each level is level * scale + shift, in float32, and then rounded to the nearest bfloat16. */
typedef struct {
    float scale[PERIOD], shift[PERIOD];
} line_fit;

static inline uint16_t as_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline void compute(const line_fit *fit, size_t item, const uint8_t *restrict from, size_t n,
                           uint8_t *restrict to, int streams) {
    (void)streams;
    size_t i = 0;
#if defined(__AVX2__)
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
    __m256 scale[PERIOD / 8], shift[PERIOD / 8];
    for (size_t v = 0; v < PERIOD / 8; v++)
        scale[v] = _mm256_loadu_ps(fit->scale + 8 * v), shift[v] = _mm256_loadu_ps(fit->shift + 8 * v);
    for (; i + PERIOD <= n; i += PERIOD)
        for (size_t v = 0; v < PERIOD / 8; v++) {
            __m256i levels = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + i + 8 * v)));
            __m256 values = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(levels), scale[v]), shift[v]);
            if (item == 4 && streams) {
                __m256i bits = _mm256_castps_si256(values);
                _mm_stream_si128((__m128i *)(to + 4 * (i + 8 * v)), _mm256_castsi256_si128(bits));
                _mm_stream_si128((__m128i *)(to + 4 * (i + 8 * v) + 16), _mm256_extracti128_si256(bits, 1));
            } else if (item == 4) _mm256_storeu_ps((float *)(to + 4 * (i + 8 * v)), values);
            else {
                __m256i bits = _mm256_castps_si256(values);
                __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
                bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(half, odd)), 16);
                __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
                if (streams) _mm_stream_si128((__m128i *)(to + 2 * (i + 8 * v)), _mm_packus_epi32(low, high));
                else
                    _mm_storeu_si128((__m128i *)(to + 2 * (i + 8 * v)), _mm_packus_epi32(low, high));
            }
        }
#else
    for (; i + PERIOD <= n; i += PERIOD) {
        float values[PERIOD];
        for (size_t k = 0; k < PERIOD; k++) values[k] = (float)from[i + k] * fit->scale[k] + fit->shift[k];
        if (item == 4) memcpy(to + 4 * i, values, sizeof values);
        else {
            uint16_t halves[PERIOD];
            for (size_t k = 0; k < PERIOD; k++) halves[k] = as_bfloat16(values[k]);
            memcpy(to + 2 * i, halves, sizeof halves);
        }
    }
#endif
    for (size_t k = 0; i < n; i++, k++) {
        float value = (float)from[i] * fit->scale[k] + fit->shift[k];
        if (item == 4) memcpy(to + 4 * i, &value, 4);
        else {
            uint16_t rounded = as_bfloat16(value);
            memcpy(to + 2 * i, &rounded, 2);
        }
    }
}

#define LOOK_UP(type)                                                                                               \
    do {                                                                                                            \
        const type *level = all->levels;                                                                            \
        type *restrict out = to;                                                                                    \
        size_t i = 0;                                                                                               \
        if (c == 1)                                                                                                 \
            for (; i < n; i++) out[i] = level[from[i]];                                                             \
        else if (c == 3)                                                                                            \
            for (; i < n; i += 3)                                                                                   \
                out[i] = level[from[i]], out[i + 1] = level[256 + from[i + 1]], out[i + 2] = level[512 + from[i + 2]]; \
        else                                                                                                        \
            for (; i < n; i += c)                                                                                   \
                for (size_t k = 0; k < c; k++) out[i + k] = level[256 * k + from[i + k]];                           \
    } while (0)

/* `n` values of whole pixels. Where it `streams`, they begin and end with a cache line. */
static inline void look_up(const moves *all, const line_fit *fit, const uint8_t *restrict from, size_t n, void *to,
                           int streams) {
    size_t c = all->image[2];
    if (fit && all->item == 4 && streams) compute(fit, 4, from, n, to, 1);
    else if (fit && all->item == 4) compute(fit, 4, from, n, to, 0);
    else if (fit && streams) compute(fit, 2, from, n, to, 1);
    else if (fit) compute(fit, 2, from, n, to, 0);
    else if (all->item == 4) LOOK_UP(uint32_t);
    else if (all->item == 2) LOOK_UP(uint16_t);
    else
        LOOK_UP(uint8_t);
}
#undef LOOK_UP

/* Whether arithmetic, which is quicker than a table, gives all that is in it, to the bit. */
static int fits_line(const moves *all, line_fit *fit) {
    size_t c = all->image[2];
    if (!all->levels || !all->factors || c > 4 || all->item == 1) return 0;
    for (size_t k = 0; k < PERIOD; k++) fit->scale[k] = all->factors[k % c], fit->shift[k] = all->factors[c + k % c];
    uint8_t pixels[4 * 256];
    uint32_t found[4 * 256], expected[4 * 256];
    for (size_t i = 0; i < 256 * c; i++) pixels[i] = (uint8_t)(i / c);
    moves table = *all;
    look_up(&table, NULL, pixels, 256 * c, expected, 0);
    look_up(&table, fit, pixels, 256 * c, found, 0);
    return memcmp(found, expected, 256 * c * all->item) == 0;
}

static size_t move_images(const row_table *table, const moves *all, const int64_t *rows, size_t count, uint8_t *out,
                          uint8_t *scratch) {
    ahead next = look_from(table, rows, count);
    line_fit line_of;
    const line_fit *fit = fits_line(all, &line_of) ? &line_of : NULL;
    size_t height = all->canvas[0], line = all->canvas[1] * all->image[2], lines = all->scratch / line;
    size_t nbytes = height * line * all->item, rest = height * line % PERIOD * all->item;
    int streams = count > STREAMED / nbytes && lines >= height;
    streams = streams && ((uintptr_t)out | nbytes | rest) % LINE == 0; /* no line is written in two ways */
    for (size_t i = 0; i < count; i++, out += nbytes) {
        const uint8_t *image = next_row(&next, i);
        if (!image) {
            count = i;
            break;
        }
        placed one = read_placed(all, i);
        if (!all->levels) {
            if (one.is_whole) copy_bytes(out, image, height * line);
            else
                place_lines(all, &one, image, 0, height, out);
        } else if (one.is_whole) look_up(all, fit, image, height * line, out, streams);
        else
            for (size_t y = 0; y < height; y += lines) {
                size_t stop = height - y < lines ? height : y + lines;
                place_lines(all, &one, image, y, stop, scratch);
                look_up(all, fit, scratch, (stop - y) * line, out + y * line * all->item, streams);
            }
    }
#if defined(__SSE2__)
    if (streams) _mm_sfence();
#endif
    return count;
}
#endif
