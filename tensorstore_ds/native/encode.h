/* Pixels as a baseline JPEG file: the same bytes as libjpeg-turbo's, with its rounding and its edges.
 *
 * The header is given. It decides the size, the quantizers, the Huffman tables and the restart interval. */
#ifndef TSDS_ENCODE_H
#define TSDS_ENCODE_H
#include "idct.h"

#if defined(__AVX2__)
/* Bytes of the codes of a block at most: 64 of 27 bits, and what is written at once. */
enum { MOST_OF_BLOCK = 256 };

/* By symbol: its code, and in the low 8 bits the length. */
typedef uint32_t code_table[256];

/* Numbers that divide by eight times a quantizer, and round: with two products of 16 bits (Agner Fog). In rows of eight,
 * of a block and of the one that is made with it. */
typedef struct {
    _Alignas(32) uint16_t correction[8][16], reciprocal[8][16], scale[8][16];
} divisors;

/* Bits that are not yet bytes are on the left of the buffer: fewer than 8 of them are used. */
typedef struct {
    uint64_t buffer;
    uint32_t used;
    uint8_t *at;
} writer;

typedef struct {
    const jpeg_header *header;
    code_table dc[3], ac[3];
    divisors by[2]; /* of two blocks of light; of blue and red */
    uint64_t zigzag[16][16]; /* of each four coefficients, the places in the file of those that a mask has */
    int32_t last[3];         /* predictions of DC */
    uint8_t *planes[3];      /* a line of units */
    size_t stride;
    writer writer;
} encoder;

static void make_codes(const huffman_table *t, code_table codes) {
    memset(codes, 0, sizeof(code_table));
    uint32_t code = 0;
    const uint8_t *symbol = t->key + 16;
    for (uint32_t length = 1; length <= 16; length++, code <<= 1)
        for (int i = 0; i < t->key[length - 1]; i++) codes[*symbol++] = code++ << 8 | length;
}

/* Whether there is a code for every symbol that 8 bits a sample can have. */
static int has_all_codes(const encoder *e, int component) {
    uint32_t has = e->ac[component][0x00] && e->ac[component][0xF0];
    for (int size = 0; size <= 11; size++) has &= e->dc[component][size] != 0;
    for (int run = 0; run < 16; run++)
        for (int size = 1; size <= 10; size++) has &= e->ac[component][run << 4 | size] != 0;
    return (int)has;
}

static const uint8_t natural_of[64] = {ZIGZAG(+)};

static void make_divisors(const uint16_t *quantizers, divisors *d, int which) {
    for (int k = 0; k < 64; k++) {
        uint32_t divisor = 8u * quantizers[place_of[k]], shift = 16 + 31 - (uint32_t)__builtin_clz(divisor);
        uint32_t quotient = (1u << shift) / divisor, rest = (1u << shift) % divisor, half = divisor / 2;
        if (!rest) quotient >>= 1, shift--;
        else if (rest <= half)
            half++;
        else
            quotient++;
        int y = natural_of[k] / 8, x = natural_of[k] % 8 + 8 * which;
        d->correction[y][x] = (uint16_t)half, d->reciprocal[y][x] = (uint16_t)quotient;
        d->scale[y][x] = (uint16_t)(1u << (32 - shift));
    }
}

static int begin_encoding(encoder *e) {
    const jpeg_header *h = e->header;
    for (int i = 0; i < h->components; i++) {
        for (int k = 0; k < 64; k++)
            if (!h->quantizers[i][k]) return 0;
        make_codes(h->dc[i], e->dc[i]), make_codes(h->ac[i], e->ac[i]);
        if (!has_all_codes(e, i)) return 0;
    }
    make_divisors(h->quantizers[0], &e->by[0], 0), make_divisors(h->quantizers[0], &e->by[0], 1);
    for (int i = 1; i < h->components; i++) make_divisors(h->quantizers[i], &e->by[1], i - 1);
    uint64_t place[64];
    for (int k = 0; k < 64; k++) place[natural_of[k]] = (uint64_t)1 << k;
    for (int i = 0; i < 16; i++)
        for (int mask = 0; mask < 16; mask++) {
            e->zigzag[i][mask] = 0;
            for (int k = 0; k < 4; k++) e->zigzag[i][mask] |= mask >> k & 1 ? place[4 * i + k] : 0;
        }
    return 1;
}

/* --- pixels to samples ---------------------------------------------------------------------------------------------- */

/* RGB to YCbCr (JFIF): libjpeg's fixed point. */
static void to_ycc(const uint8_t *restrict rgb, int count, uint8_t *restrict y, uint8_t *restrict cb, uint8_t *restrict cr) {
    int i = 0;
    const __m256i in_pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1));
    const __m256i blues = _mm256_broadcastsi128_si256(_mm_setr_epi8(2, -1, -1, -1, 5, -1, -1, -1, 8, -1, -1, -1, 11, -1, -1, -1));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), middle = _mm256_set1_epi32((128 << 16) + 32767);
    for (; i + 10 <= count; i += 8) { /* reads 4 bytes more than 8 pixels have */
        const uint8_t *from = rgb + 3 * i;
        __m256i eight = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)from)),
            _mm_loadu_si128((const __m128i *)(const void *)(from + 12)), 1);
        __m256i rg = _mm256_shuffle_epi8(eight, in_pairs), b = _mm256_shuffle_epi8(eight, blues);
        /* 38470 has no room in 16 bits: 65536 of them are added */
        __m256i light = _mm256_add_epi32(_mm256_madd_epi16(rg, BY(19595, 38470 - 65536)), _mm256_madd_epi16(b, BY(7471, 0)));
        __m256i greens = _mm256_blend_epi16(rg, _mm256_setzero_si256(), 0x55); /* times 65536 */
        light = _mm256_add_epi32(light, _mm256_add_epi32(greens, _mm256_set1_epi32(32768)));
        __m256i blue = _mm256_add_epi32(_mm256_madd_epi16(rg, BY(-11058, -21710)), _mm256_add_epi32(_mm256_slli_epi32(b, 15), middle));
        __m256i red = _mm256_add_epi32(_mm256_madd_epi16(rg, BY(0, -27439)), _mm256_madd_epi16(b, BY(-5329, 0)));
        red = _mm256_add_epi32(red, _mm256_add_epi32(_mm256_srli_epi32(_mm256_slli_epi32(rg, 16), 1), middle));
        __m256i first = _mm256_packs_epi32(_mm256_srli_epi32(light, 16), _mm256_srli_epi32(blue, 16));
        __m256i second = _mm256_packs_epi32(_mm256_srli_epi32(red, 16), _mm256_setzero_si256());
        __m256i all = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
        _mm_storel_epi64((__m128i *)(void *)(y + i), _mm256_castsi256_si128(all));
        _mm_storeh_pd((double *)(void *)(cb + i), _mm_castsi128_pd(_mm256_castsi256_si128(all)));
        _mm_storel_epi64((__m128i *)(void *)(cr + i), _mm256_extracti128_si256(all, 1));
    }
    for (; i < count; i++) {
        int32_t r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];
        y[i] = (uint8_t)((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
        cb[i] = (uint8_t)((-11058 * r - 21710 * g + 32768 * b + (128 << 16) + 32767) >> 16);
        cr[i] = (uint8_t)((32768 * r - 27439 * g - 5329 * b + (128 << 16) + 32767) >> 16);
    }
}

/* Means of 2 x 2 samples, rounded down and up in turn. */
static void shrink(const uint8_t *restrict upper, const uint8_t *restrict lower, int count, uint8_t *restrict out) {
    const __m256i ones = _mm256_set1_epi8(1), half = _mm256_set1_epi32(1 | 2 << 16);
    for (int i = 0; i < count; i += 16) { /* some samples too many: there is room */
        __m256i sums = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(upper + 2 * i)), ones);
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(lower + 2 * i)), ones));
        sums = _mm256_srli_epi16(_mm256_add_epi16(sums, half), 2);
        sums = _mm256_permute4x64_epi64(_mm256_packus_epi16(sums, sums), 0xD8);
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm256_castsi256_si128(sums));
    }
}

/* The samples of a line of units. To the right, the last pixel is repeated; below, the last line of samples. */
static void make_samples_of(encoder *e, const uint8_t *pixels, int row, uint8_t *lines[2][2]) {
    const jpeg_header *h = e->header;
    int width = h->width, all = h->across * 8 * h->h, half = h->across * 8;
    for (int y = 0; y < 8 * h->v; y++) {
        int line = row * 8 * h->v + y, is_below = line >= h->height, which = h->v == 2 ? y & 1 : 0;
        const uint8_t *from = pixels + (size_t)(is_below ? h->height - 1 : line) * (size_t)width * (size_t)h->components;
        uint8_t *to[3] = {e->planes[0] + e->stride * (size_t)y, lines[0][which], lines[1][which]};
        if (h->components == 1) memcpy(to[0], from, (size_t)width);
        else {
            if (h->v == 1) to[1] = e->planes[1] + e->stride * (size_t)y, to[2] = e->planes[2] + e->stride * (size_t)y;
            to_ycc(from, width, to[0], to[1], to[2]);
        }
        for (int i = 0; i < h->components; i++) memset(to[i] + width, to[i][width - 1], (size_t)(all - width));
        if (h->v == 1 || !which) continue;
        for (int i = 1; i < 3; i++) {
            uint8_t *out = e->planes[i] + e->stride * (size_t)(y / 2);
            if (line - 1 >= h->height) memcpy(out, out - e->stride, (size_t)half);
            else
                shrink(lines[i - 1][0], lines[i - 1][1], half, out);
        }
    }
}

/* --- samples to coefficients ---------------------------------------------------------------------------------------- */

/* The elements of the first four vectors and of the last four in turn: three times, it transposes both blocks. */
INLINE void interleave_both(__m256i v[8]) {
    __m256i t[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi16(v[i], v[i + 4]);
        t[2 * i + 1] = _mm256_unpackhi_epi16(v[i], v[i + 4]);
    }
    for (int i = 0; i < 8; i++) v[i] = t[i];
}

/* a * first + b * second, rounded, of pairs that are unpacked, with sums of both halves. */
#define PRODUCTS(a, b, first, second, sums)                                                        \
    {_mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), BY(first, second)), sums[0]), \
     _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), BY(first, second)), sums[1])}
#define SHIFTED(x) _mm256_packs_epi32(_mm256_srai_epi32(x[0], shift), _mm256_srai_epi32(x[1], shift))

/* As `eight`, in the other direction. */
INLINE void forward_eight(__m256i v[8], int shift, int is_second) {
    __m256i a[4], b[4];
    for (int i = 0; i < 4; i++) a[i] = _mm256_add_epi16(v[i], v[7 - i]), b[3 - i] = _mm256_sub_epi16(v[i], v[7 - i]);
    __m256i even0 = _mm256_add_epi16(a[0], a[3]), even3 = _mm256_sub_epi16(a[0], a[3]);
    __m256i even1 = _mm256_add_epi16(a[1], a[2]), even2 = _mm256_sub_epi16(a[1], a[2]);
    __m256i sum = _mm256_add_epi16(even0, even1), difference = _mm256_sub_epi16(even0, even1);
    const __m256i two = _mm256_set1_epi16(2), half = _mm256_set1_epi32(1 << (shift - 1)), halves[2] = {half, half};
    v[0] = is_second ? _mm256_srai_epi16(_mm256_add_epi16(sum, two), MORE) : _mm256_slli_epi16(sum, MORE);
    v[4] = is_second ? _mm256_srai_epi16(_mm256_add_epi16(difference, two), MORE) : _mm256_slli_epi16(difference, MORE);
    __m256i d2[2] = PRODUCTS(even2, even3, 4433, 4433 + 6270, halves), d6[2] = PRODUCTS(even2, even3, 4433 - 15137, 4433, halves);
    __m256i c = _mm256_add_epi16(b[0], b[2]), d = _mm256_add_epi16(b[1], b[3]);
    __m256i z3[2] = PRODUCTS(c, d, 9633 - 16069, 9633, halves), z4[2] = PRODUCTS(c, d, 9633, 9633 - 3196, halves);
    __m256i d7[2] = PRODUCTS(b[0], b[3], 2446 - 7373, -7373, z3), d1[2] = PRODUCTS(b[0], b[3], -7373, 12299 - 7373, z4);
    __m256i d5[2] = PRODUCTS(b[1], b[2], 16819 - 20995, -20995, z4), d3[2] = PRODUCTS(b[1], b[2], -20995, 25172 - 20995, z3);
    v[1] = SHIFTED(d1), v[2] = SHIFTED(d2), v[3] = SHIFTED(d3), v[5] = SHIFTED(d5), v[6] = SHIFTED(d6), v[7] = SHIFTED(d7);
}

/* The quantized coefficients of two blocks; the masks have a bit for each that is not zero, in rows of eight. */
INLINE void forward_dct(const divisors *by, const uint8_t *const samples[2], size_t stride, int16_t out[2][64],
                        uint64_t masks[2]) {
    __m256i v[8];
    for (size_t i = 0; i < 8; i++) {
        __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)(samples[0] + i * stride));
        __m128i second = _mm_loadl_epi64((const __m128i *)(const void *)(samples[1] + i * stride));
        v[i] = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi64(first, second)), _mm256_set1_epi16(128));
    }
    interleave_both(v), interleave_both(v), interleave_both(v);
    forward_eight(v, BITS - MORE, 0);
    interleave_both(v), interleave_both(v), interleave_both(v);
    forward_eight(v, BITS + MORE, 1);
    for (int i = 0; i < 8; i++) {
        __m256i q = _mm256_add_epi16(_mm256_abs_epi16(v[i]), _mm256_load_si256((const __m256i *)(const void *)by->correction[i]));
        q = _mm256_mulhi_epu16(q, _mm256_load_si256((const __m256i *)(const void *)by->reciprocal[i]));
        q = _mm256_mulhi_epu16(q, _mm256_load_si256((const __m256i *)(const void *)by->scale[i]));
        v[i] = q = _mm256_sign_epi16(q, v[i]);
        _mm_store_si128((__m128i *)(void *)(out[0] + 8 * i), _mm256_castsi256_si128(q));
        _mm_store_si128((__m128i *)(void *)(out[1] + 8 * i), _mm256_extracti128_si256(q, 1));
    }
    masks[0] = masks[1] = 0;
    const __m256i zero = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        __m256i is_zero = _mm256_packs_epi16(_mm256_cmpeq_epi16(v[2 * i], zero), _mm256_cmpeq_epi16(v[2 * i + 1], zero));
        uint32_t found = ~(uint32_t)_mm256_movemask_epi8(is_zero);
        masks[0] |= (uint64_t)(found & 0xFFFF) << 16 * i, masks[1] |= (uint64_t)(found >> 16) << 16 * i;
    }
}

/* --- coefficients to codes ------------------------------------------------------------------------------------------ */

/* Up to 64 bits are in the buffer until they are written; up to 7 stay there. */
INLINE void put(writer *w, uint32_t bits, uint32_t count) {
    w->used += count;
    w->buffer |= (uint64_t)bits << (64 - w->used);
}
INLINE void write_bytes(writer *w) {
    uint64_t bytes = __builtin_bswap64(w->buffer);
    memcpy(w->at, &bytes, 8);
    w->at += w->used >> 3;
    w->buffer <<= w->used & 56;
    w->used &= 7;
}

/* The code of a symbol, which ends with the size of the value, and the value: 16 + 11 bits at most. */
INLINE void put_value(writer *w, const code_table codes, uint32_t run, int32_t value) {
    int32_t sign = value >> 31;
    uint32_t magnitude = (uint32_t)((value ^ sign) - sign), size = magnitude ? 32 - (uint32_t)__builtin_clz(magnitude) : 0;
    uint32_t code = codes[run << 4 | size], bits = (uint32_t)(value + sign) & ((1u << size) - 1);
    put(w, code >> 8 << size | bits, (code & 0xFF) + size);
}

/* The first of the coefficients at `places`, which is not zero, of those behind place `before`; returns its place. */
INLINE int put_next(writer *w, const code_table codes, const int16_t block[64], uint64_t places, int before) {
    int place = __builtin_ctzll(places);
    uint32_t run = (uint32_t)(place - before - 1);
    if (__builtin_expect(run > 15, 0))
        for (write_bytes(w); run > 15; run -= 16) put(w, codes[0xF0] >> 8, codes[0xF0] & 0xFF), write_bytes(w);
    put_value(w, codes, run, block[natural_of[place]]);
    return place;
}

INLINE void put_block(encoder *e, int component, const int16_t block[64], uint64_t mask) {
    const uint32_t *ac = e->ac[component];
    writer w = e->writer; /* in registers */
    put_value(&w, e->dc[component], 0, block[0] - e->last[component]);
    write_bytes(&w);
    e->last[component] = block[0];
    uint64_t places = 0;
    for (int i = 0; i < 16; i++) places |= e->zigzag[i][mask >> 4 * i & 15];
    int last = 0;
    for (places &= ~(uint64_t)1; places; places &= places - 1, write_bytes(&w)) { /* two from one write to the next */
        last = put_next(&w, ac, block, places, last);
        if (places &= places - 1) last = put_next(&w, ac, block, places, last);
        else
            break;
    }
    if (last < 63) put(&w, ac[0] >> 8, ac[0] & 0xFF);
    write_bytes(&w);
    e->writer = w;
}

/* Beyond the right and the lower edge: the DC of the block before, and nothing else. */
static void put_empty_block(encoder *e) {
    put(&e->writer, e->dc[0][0] >> 8, e->dc[0][0] & 0xFF);
    put(&e->writer, e->ac[0][0] >> 8, e->ac[0][0] & 0xFF);
    write_bytes(&e->writer);
}

static void put_unit(encoder *e, int row, int column) {
    const jpeg_header *h = e->header;
    _Alignas(32) int16_t blocks[2][64];
    uint64_t masks[2];
    for (int y = 0; y < h->v; y++) {
        const uint8_t *from = e->planes[0] + (size_t)(8 * y) * e->stride + (size_t)(8 * column * h->h);
        forward_dct(&e->by[0], (const uint8_t *const[]){from, from + 8 * (h->h - 1)}, e->stride, blocks, masks);
        for (int x = 0; x < h->h; x++)
            if (row * h->v + y < (h->height + 7) / 8 && column * h->h + x < (h->width + 7) / 8)
                put_block(e, 0, blocks[x], masks[x]);
            else
                put_empty_block(e);
    }
    if (h->components == 1) return;
    const uint8_t *blue = e->planes[1] + (size_t)(8 * column), *red = e->planes[2] + (size_t)(8 * column);
    forward_dct(&e->by[1], (const uint8_t *const[]){blue, red}, e->stride, blocks, masks);
    put_block(e, 1, blocks[0], masks[0]), put_block(e, 2, blocks[1], masks[1]);
}

/* Bytes [from, stop) with a zero behind each FF, to `to`; where that ends. */
static uint8_t *stuff(uint8_t *to, const uint8_t *from, const uint8_t *stop) {
    while (from < stop) {
        const uint8_t *found = memchr(from, 0xFF, (size_t)(stop - from));
        size_t n = (size_t)((found ? found + 1 : stop) - from);
        memcpy(to, from, n);
        to += n, from += n;
        if (found) *to++ = 0;
    }
    return to;
}

/* At least so many bytes, of which `kept` stay. */
static int grow(memory *m, size_t kept, size_t nbytes) {
    if (m->capacity >= nbytes) return 1;
    memory larger = {0};
    if (!reserve(&larger, 2 * nbytes)) return 0;
    if (kept) memcpy(larger.bytes, m->bytes, kept);
    give_back(m);
    *m = larger;
    return 1;
}

/* A file of pixels (height, width, components), behind its header, and the positions behind its restart markers. Both are
 * the context's. Returns CROP_OK, CROP_OTHER or CROP_MEMORY. */
static int encode_image(context *ctx, bytes_view head, bytes_view pixels, bytes_view *file, bytes_view *restarts) {
    jpeg_header h;
    encoder e = {.header = &h};
    int code = read_jpeg_header(ctx, head, &h);
    if (code != CROP_OK) return code;
    if (h.start != head.nbytes || h.h != h.v || h.has_wide_quantizers || !begin_encoding(&e) ||
        pixels.nbytes != (size_t)h.height * (size_t)h.width * (size_t)h.components)
        return CROP_OTHER;
    size_t whole = (size_t)h.across * 8 * (size_t)h.h + 32; /* a line, and bytes that are written too many */
    size_t needed = 3 * whole * 8 * (size_t)h.v;
    int64_t units = (int64_t)h.across * h.down, interval = h.interval ? h.interval : units;
    e.stride = whole;
    size_t row_nbytes = (size_t)h.across * (size_t)(h.h * h.v + 2) * MOST_OF_BLOCK; /* of codes, stuffed twice as many */
    if (!reserve(&ctx->planes, needed + 4 * whole) || !reserve(&ctx->scans[0], row_nbytes) ||
        !reserve(&ctx->entries, 4 * (size_t)(units / interval + 1)) || !grow(&ctx->scans[1], 0, head.nbytes + 2))
        return CROP_MEMORY;
    uint8_t *lines[2][2], *raw = ctx->scans[0].bytes;
    for (size_t i = 0; i < 3; i++) e.planes[i] = ctx->planes.bytes + i * whole * 8 * (size_t)h.v;
    for (size_t i = 0; i < 4; i++) lines[i / 2][i % 2] = ctx->planes.bytes + needed + i * whole;
    memcpy(ctx->scans[1].bytes, ctx->header.bytes, head.nbytes);
    size_t size = head.nbytes, marks = 0;
    int64_t left = interval;
    writer *w = &e.writer;
    w->at = raw;
    for (int row = 0; row < h.down; row++) {
        make_samples_of(&e, pixels.bytes, row, lines);
        if (!grow(&ctx->scans[1], size, size + 2 * row_nbytes + 4 * (size_t)h.across + 2)) return CROP_MEMORY;
        uint8_t *to = ctx->scans[1].bytes + size;
        for (int column = 0; column < h.across; column++) {
            put_unit(&e, row, column);
            int is_last = row == h.down - 1 && column == h.across - 1;
            if (!--left || is_last) {
                if (w->used) put(w, (1u << (8 - w->used)) - 1, 8 - w->used), write_bytes(w);
                to = stuff(to, raw, w->at), w->at = raw;
                *to++ = 0xFF, *to++ = is_last ? 0xD9 : (uint8_t)(0xD0 + (marks & 7));
                left = interval;
                memset(e.last, 0, sizeof e.last);
                if (is_last) break;
                ((uint32_t *)(void *)ctx->entries.bytes)[marks++] = (uint32_t)(to - ctx->scans[1].bytes);
            }
        }
        to = stuff(to, raw, w->at), w->at = raw;
        size = (size_t)(to - ctx->scans[1].bytes);
        if (size > UINT32_MAX) return CROP_OTHER;
    }
    *file = (bytes_view){ctx->scans[1].bytes, size}, *restarts = (bytes_view){ctx->entries.bytes, 4 * marks};
    return CROP_OK;
}
#else /* libjpeg is faster */
static int encode_image(context *ctx, bytes_view head, bytes_view pixels, bytes_view *file, bytes_view *restarts) {
    (void)ctx, (void)head, (void)pixels, (void)file, (void)restarts;
    return CROP_OTHER;
}
#endif
#endif
