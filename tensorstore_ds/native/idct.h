/* The inverse DCT, accurate in integers, to 8 x 8, 4 x 4, 2 x 2 and 1 x 1 samples: the same bits as libjpeg's `islow`.
 *
 * Loeffler, Ligtenberg and Moschytz, Practical fast 1-D DCT algorithms with 11 multiplications, 1989. A vector is a line
 * of eight coefficients. Where those of a broken file would overflow, there is no result. */
#ifndef TSDS_IDCT_H
#define TSDS_IDCT_H
#include "jpeg.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i32x8){__VA_ARGS__})
#endif

/* Constants times 2^13. */
enum { BITS = 13, MORE = 2 };
/* Eight times the samples that libjpeg's table of limits knows, 512 from the middle. */
enum { MOST_DC = 4080 };

INLINE void transpose(i32x8 v[8]) {
    i32x8 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = SHUFFLE(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = SHUFFLE(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            u[i + 2 * k] = SHUFFLE(t[i + k], t[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            u[i + 2 * k + 1] = SHUFFLE(t[i + k], t[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        v[i] = SHUFFLE(u[i], u[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        v[i + 4] = SHUFFLE(u[i], u[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

INLINE void eight(i32x8 v[8], int shift) {
    i32x8 z1 = (v[2] + v[6]) * 4433, even2 = z1 - v[6] * 15137, even3 = z1 + v[2] * 6270;
    i32x8 even0 = (v[0] + v[4]) << BITS, even1 = (v[0] - v[4]) << BITS;
    i32x8 a = even0 + even3, d = even0 - even3, b = even1 + even2, c = even1 - even2;
    i32x8 z3 = v[7] + v[3], z4 = v[5] + v[1], z5 = (z3 + z4) * 9633;
    i32x8 p = (v[7] + v[1]) * -7373, q = (v[5] + v[3]) * -20995;
    z3 = z3 * -16069 + z5, z4 = z4 * -3196 + z5;
    i32x8 odd0 = v[7] * 2446 + p + z3, odd1 = v[5] * 16819 + q + z4;
    i32x8 odd2 = v[3] * 25172 + q + z3, odd3 = v[1] * 12299 + p + z4;
    int32_t half = 1 << (shift - 1);
    v[0] = (a + odd3 + half) >> shift, v[7] = (a - odd3 + half) >> shift;
    v[1] = (b + odd2 + half) >> shift, v[6] = (b - odd2 + half) >> shift;
    v[2] = (c + odd1 + half) >> shift, v[5] = (c - odd1 + half) >> shift;
    v[3] = (d + odd0 + half) >> shift, v[4] = (d - odd0 + half) >> shift;
}

INLINE void four(i32x8 v[8], int shift) {
    i32x8 z = v[2] * 15137 - v[6] * 6270, a = (v[0] << (BITS + 1)) + z, b = (v[0] << (BITS + 1)) - z;
    i32x8 odd0 = v[7] * -1730 + v[5] * 11893 + v[3] * -17799 + v[1] * 8697;
    i32x8 odd2 = v[7] * -4176 + v[5] * -4926 + v[3] * 7373 + v[1] * 20995;
    int32_t half = 1 << (shift - 1);
    v[0] = (a + odd2 + half) >> shift, v[3] = (a - odd2 + half) >> shift;
    v[1] = (b + odd0 + half) >> shift, v[2] = (b - odd0 + half) >> shift;
    v[4] = v[5] = v[6] = v[7] = (i32x8){0};
}

INLINE void two(i32x8 v[8], int shift) {
    i32x8 odd = v[7] * -5906 + v[5] * 6967 + v[3] * -10426 + v[1] * 29692, even = v[0] << (BITS + 2);
    int32_t half = 1 << (shift - 1);
    v[0] = (even + odd + half) >> shift, v[1] = (even - odd + half) >> shift;
    v[2] = v[3] = v[4] = v[5] = v[6] = v[7] = (i32x8){0};
}

/* Whether the numbers have 15 bits. libjpeg adds up pairs of them in 16 bits, which then have room. */
INLINE int is_in_range(const i32x8 v[8]) {
    i32x8 any = {0};
    for (int i = 0; i < 8; i++) any |= v[i] + (1 << 14);
    any &= -(1 << 15);
    int64_t lanes[4];
    memcpy(lanes, &any, sizeof lanes);
    return !(lanes[0] | lanes[1] | lanes[2] | lanes[3]);
}

INLINE uint8_t sample_of(int32_t value) {
    value += 128;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

INLINE i32x8 eight_at(const int16_t *block, const uint16_t *quantizers, int at) {
    i16x8 coefficients;
    u16x8 by;
    memcpy(&coefficients, block + at, 16), memcpy(&by, quantizers + at, 16);
    return __builtin_convertvector(coefficients, i32x8) * __builtin_convertvector(by, i32x8);
}

INLINE void load_block(const int16_t *block, const uint16_t *quantizers, i32x8 v[8]) {
#if defined(__AVX2__)
    static const uint8_t pairs[4][2] = {{0, 4}, {2, 6}, {7, 1}, {3, 5}};
    for (int i = 0; i < 4; i++) {
        i32x8 a = eight_at(block, quantizers, 16 * i), b = eight_at(block, quantizers, 16 * i + 8);
        v[pairs[i][0]] = SHUFFLE(a, b, 0, 12, 2, 6, 8, 14, 10, 4);
        v[pairs[i][1]] = SHUFFLE(a, b, 1, 13, 3, 7, 9, 15, 11, 5);
    }
#else
    for (int i = 0; i < 8; i++) v[i] = eight_at(block, quantizers, 8 * i);
#endif
}

#define BLOCK_ROOM 80 /* coefficients: a block, NO_PLACE, and so many that the next one is aligned as well */

/* Without loops in AVX2, here and below: gcc makes slow calls of them (`rep stos`, memcpy). */
INLINE void clear_block(int16_t block[BLOCK_ROOM]) {
#if defined(__AVX2__)
    __m256i *to = (__m256i *)(void *)block;
    const __m256i zero = _mm256_setzero_si256();
    _mm256_store_si256(to, zero), _mm256_store_si256(to + 1, zero);
    _mm256_store_si256(to + 2, zero), _mm256_store_si256(to + 3, zero);
#else
    const i16x8 zero = {0};
    for (int i = 0; i < 64; i += 8) memcpy(block + i, &zero, 16);
#endif
}

#if defined(__AVX2__)
INLINE void load_pairs(const int16_t *block, const uint16_t *quantizers, __m256i v[4], __m256i by[4]) {
    const __m256i *from = (const __m256i *)(const void *)block, *factors = (const __m256i *)(const void *)quantizers;
    v[0] = _mm256_load_si256(from), v[1] = _mm256_load_si256(from + 1);
    v[2] = _mm256_load_si256(from + 2), v[3] = _mm256_load_si256(from + 3);
    by[0] = _mm256_loadu_si256(factors), by[1] = _mm256_loadu_si256(factors + 1);
    by[2] = _mm256_loadu_si256(factors + 2), by[3] = _mm256_loadu_si256(factors + 3);
}

/* Two factors of 16 bits, for each pair of numbers. */
#define BY(a, b) _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)(b) << 16 | (uint16_t)(a)))

/* As `eight`: results in 32 bits of eight lines at once, of numbers in pairs of 16 bits. */
INLINE void eight_of_pairs(const __m256i v[4], int shift, __m256i out[8]) {
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    __m256i even0 = _mm256_add_epi32(_mm256_madd_epi16(v[0], BY(8192, 8192)), half);
    __m256i even1 = _mm256_add_epi32(_mm256_madd_epi16(v[0], BY(8192, -8192)), half);
    __m256i even2 = _mm256_madd_epi16(v[1], BY(4433, 4433 - 15137)), even3 = _mm256_madd_epi16(v[1], BY(4433 + 6270, 4433));
    __m256i z = _mm256_add_epi16(v[2], v[3]);
    __m256i z3 = _mm256_madd_epi16(z, BY(9633 - 16069, 9633)), z4 = _mm256_madd_epi16(z, BY(9633, 9633 - 3196));
    __m256i even[4] = {_mm256_add_epi32(even0, even3), _mm256_add_epi32(even1, even2), _mm256_sub_epi32(even1, even2),
                       _mm256_sub_epi32(even0, even3)};
    __m256i odd[4] = {_mm256_add_epi32(_mm256_madd_epi16(v[2], BY(-7373, 12299 - 7373)), z4),
                      _mm256_add_epi32(_mm256_madd_epi16(v[3], BY(25172 - 20995, -20995)), z3),
                      _mm256_add_epi32(_mm256_madd_epi16(v[3], BY(-20995, 16819 - 20995)), z4),
                      _mm256_add_epi32(_mm256_madd_epi16(v[2], BY(2446 - 7373, -7373)), z3)};
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_srai_epi32(_mm256_add_epi32(even[i], odd[i]), shift);
        out[7 - i] = _mm256_srai_epi32(_mm256_sub_epi32(even[i], odd[i]), shift);
    }
}

/* Whether 16 bits have room for all numbers in between: a pass makes at most 5.55 times the sum of its numbers, rounded. */
INLINE int is_small(const __m256i coefficients[4], const __m256i by[4]) {
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_abs_epi16(coefficients[i]), by[i]));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    return _mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 1) <= 5800;
}

/* The same bits in 16-bit numbers, multiplied in pairs; 0 if they have no room, and nothing is done. */
INLINE int inverse_dct_in_pairs(const int16_t *block, const uint16_t *quantizers, uint8_t *out, size_t stride) {
    __m256i v[4], by[4], w[8], t[8];
    load_pairs(block, quantizers, v, by);
    if (!is_small(v, by)) return 0;
    for (int i = 0; i < 4; i++) v[i] = _mm256_mullo_epi16(v[i], by[i]);
    eight_of_pairs(v, BITS - MORE, w);
    /* Transposed: of each column, its eight results side by side; columns 0 and 4, 2 and 6, 7 and 1, 3 and 5 in a register. */
    for (int i = 0; i < 4; i++) w[i] = _mm256_packs_epi32(w[2 * i], w[2 * i + 1]);
    for (int i = 0; i < 4; i += 2) {
        __m256i lower = _mm256_unpacklo_epi16(w[i], w[i + 1]), upper = _mm256_unpackhi_epi16(w[i], w[i + 1]);
        t[i] = _mm256_unpacklo_epi16(lower, upper), t[i + 1] = _mm256_unpackhi_epi16(lower, upper);
    }
    w[0] = _mm256_unpacklo_epi64(t[0], t[2]), w[1] = _mm256_unpackhi_epi64(t[0], t[2]);
    w[2] = _mm256_unpacklo_epi64(t[1], t[3]), w[3] = _mm256_unpackhi_epi64(t[1], t[3]);
    const __m256i in_pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    for (int i = 0; i < 4; i++) v[i] = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(w[i], 0xD8), in_pairs);
    eight_of_pairs(v, BITS + MORE + 3, w);
    const __m256i turned = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (int i = 0; i < 2; i++) {
        __m256i four = _mm256_packs_epi16(_mm256_packs_epi32(w[4 * i], w[4 * i + 1]), _mm256_packs_epi32(w[4 * i + 2], w[4 * i + 3]));
        t[i] = _mm256_shuffle_epi8(_mm256_xor_si256(four, _mm256_set1_epi8(-128)), turned);
    }
    __m256i lines[2] = {_mm256_unpacklo_epi32(t[0], t[1]), _mm256_unpackhi_epi32(t[0], t[1])}; /* 0, 1, 4, 5; 2, 3, 6, 7 */
    for (size_t i = 0; i < 4; i++) {
        __m128i two = i < 2 ? _mm256_castsi256_si128(lines[i & 1]) : _mm256_extracti128_si256(lines[i & 1], 1);
        _mm_storel_epi64((__m128i *)(void *)(out + 2 * i * stride), two);
        _mm_storeh_pd((double *)(void *)(out + (2 * i + 1) * stride), _mm_castsi128_pd(two));
    }
    return 1;
}
#endif

#if defined(HAS_NEON)
/* The elements of the first half of `count` vectors and of the second half in turn: three times, it transposes 8 x 8. */
INLINE void interleave(int16x8_t v[8]) {
    int16x8_t t[8];
    for (int i = 0; i < 4; i++) t[2 * i] = vzip1q_s16(v[i], v[i + 4]), t[2 * i + 1] = vzip2q_s16(v[i], v[i + 4]);
    memcpy(v, t, sizeof t);
}

INLINE void interleave_bytes(int8x16_t v[4]) {
    int8x16_t t[4] = {vzip1q_s8(v[0], v[2]), vzip2q_s8(v[0], v[2]), vzip1q_s8(v[1], v[3]), vzip2q_s8(v[1], v[3])};
    memcpy(v, t, sizeof t);
}

/* As `eight`, `four` and `two`, of four lines: the first results are even + odd, and from the end on even - odd. */
INLINE void pass(const int16x4_t v[8], int size, int32x4_t even[4], int32x4_t odd[4]) {
    if (size == 8) {
        int32x4_t even0 = vshll_n_s16(vadd_s16(v[0], v[4]), BITS), even1 = vshll_n_s16(vsub_s16(v[0], v[4]), BITS);
        int32x4_t even2 = vmlal_n_s16(vmull_n_s16(v[2], 4433), v[6], 4433 - 15137);
        int32x4_t even3 = vmlal_n_s16(vmull_n_s16(v[2], 4433 + 6270), v[6], 4433);
        int16x4_t a = vadd_s16(v[7], v[3]), b = vadd_s16(v[5], v[1]);
        int32x4_t z3 = vmlal_n_s16(vmull_n_s16(a, 9633 - 16069), b, 9633);
        int32x4_t z4 = vmlal_n_s16(vmull_n_s16(a, 9633), b, 9633 - 3196);
        even[0] = even0 + even3, even[1] = even1 + even2, even[2] = even1 - even2, even[3] = even0 - even3;
        odd[0] = vmlal_n_s16(vmlal_n_s16(z4, v[1], 12299 - 7373), v[7], -7373);
        odd[1] = vmlal_n_s16(vmlal_n_s16(z3, v[3], 25172 - 20995), v[5], -20995);
        odd[2] = vmlal_n_s16(vmlal_n_s16(z4, v[5], 16819 - 20995), v[3], -20995);
        odd[3] = vmlal_n_s16(vmlal_n_s16(z3, v[7], 2446 - 7373), v[1], -7373);
    } else if (size == 4) {
        int32x4_t first = vshll_n_s16(v[0], BITS + 1), z = vmlal_n_s16(vmull_n_s16(v[2], 15137), v[6], -6270);
        even[0] = first + z, even[1] = first - z;
        odd[0] = vmlal_n_s16(vmlal_n_s16(vmull_n_s16(v[7], -4176), v[5], -4926), v[3], 7373);
        odd[1] = vmlal_n_s16(vmlal_n_s16(vmull_n_s16(v[7], -1730), v[5], 11893), v[3], -17799);
        odd[0] = vmlal_n_s16(odd[0], v[1], 20995), odd[1] = vmlal_n_s16(odd[1], v[1], 8697);
    } else {
        even[0] = vshll_n_s16(v[0], BITS + 2);
        odd[0] = vmlal_n_s16(vmlal_n_s16(vmull_n_s16(v[7], -5906), v[5], 6967), v[3], -10426);
        odd[0] = vmlal_n_s16(odd[0], v[1], 29692);
    }
}

/* After the first pass, and after the second, whose numbers were divided by 2^16 before: to divide twice is exact. */
INLINE int16x4_t rounded(int32x4_t x, int size) {
    return size == 8 ? vrshrn_n_s32(x, 11) : size == 4 ? vrshrn_n_s32(x, 12) : vrshrn_n_s32(x, 13);
}
INLINE int8x8_t rounded_samples(int16x8_t x, int size) {
    return size == 8 ? vqrshrn_n_s16(x, 2) : size == 4 ? vqrshrn_n_s16(x, 3) : vqrshrn_n_s16(x, 4);
}

/* The same bits in 16-bit numbers; 0 if they have no room, and nothing is done: a pass makes at most 5.55 times the sum
 * of its numbers, rounded. */
INLINE int inverse_dct_in_halves(const int16_t *block, const uint16_t *quantizers, int size, uint8_t *out, size_t stride) {
    int16x8_t v[8];
    int16x4_t u[8];
    int32x4_t even[2][4], odd[2][4], sum = vdupq_n_s32(0);
    int8x8_t columns[8];
    for (int i = 0; i < 8; i++) {
        int16x8_t coefficients = vld1q_s16(block + 8 * i), by = vreinterpretq_s16_u16(vld1q_u16(quantizers + 8 * i));
        v[i] = vabsq_s16(coefficients);
        sum = vmlal_high_s16(vmlal_s16(sum, vget_low_s16(v[i]), vget_low_s16(by)), v[i], by);
        v[i] = vmulq_s16(coefficients, by);
    }
    if (vaddvq_s32(sum) > 5800) return 0;
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 8; i++) u[i] = half ? vget_high_s16(v[i]) : vget_low_s16(v[i]);
        pass(u, size, even[half], odd[half]);
    }
    for (int i = 0; i < 8; i++) v[i] = vdupq_n_s16(0), columns[i] = vdup_n_s8(0);
    for (int i = 0; i < size / 2; i++) {
        v[i] = vcombine_s16(rounded(even[0][i] + odd[0][i], size), rounded(even[1][i] + odd[1][i], size));
        v[size - 1 - i] = vcombine_s16(rounded(even[0][i] - odd[0][i], size), rounded(even[1][i] - odd[1][i], size));
    }
    interleave(v), interleave(v), interleave(v);
    for (int half = 0; half < (size == 8 ? 2 : 1); half++) {
        for (int i = 0; i < 8; i++) u[i] = half ? vget_high_s16(v[i]) : vget_low_s16(v[i]);
        pass(u, size, even[half], odd[half]);
    }
    for (int i = 0, other = size == 8; i < size / 2; i++) {
        int16x4_t a = vaddhn_s32(even[0][i], odd[0][i]), b = vsubhn_s32(even[0][i], odd[0][i]);
        columns[i] = rounded_samples(vcombine_s16(a, vaddhn_s32(even[other][i], odd[other][i])), size);
        columns[size - 1 - i] = rounded_samples(vcombine_s16(b, vsubhn_s32(even[other][i], odd[other][i])), size);
    }
    int8x16_t lines[4];
    for (int i = 0; i < 4; i++) lines[i] = vcombine_s8(columns[2 * i], columns[2 * i + 1]);
    interleave_bytes(lines), interleave_bytes(lines), interleave_bytes(lines);
    for (int i = 0; i < size; i += 2) {
        uint8x16_t samples = vreinterpretq_u8_s8(lines[i / 2]) ^ vdupq_n_u8(128);
        uint8x8_t two[2] = {vget_low_u8(samples), vget_high_u8(samples)};
        memcpy(out + (size_t)i * stride, &two[0], (size_t)size);
        memcpy(out + (size_t)(i + 1) * stride, &two[1], (size_t)size);
    }
    return 1;
}
#endif

#if defined(__AVX2__)
enum { HAS_PAIRS = 1 }; /* which were tried, and found no room */
INLINE int is_small_block(const int16_t *block, const uint16_t *quantizers) {
    __m256i v[4], by[4];
    load_pairs(block, quantizers, v, by);
    return is_small(v, by);
}
#else
enum { HAS_PAIRS = 0 };
INLINE int is_small_block(const int16_t *block, const uint16_t *quantizers) {
    int32_t sum = 0;
    for (int i = 0; i < 64; i++) sum += (block[i] < 0 ? -block[i] : block[i]) * (int16_t)quantizers[i];
    return sum <= 5800;
}
#endif

/* Whether the numbers of a block that is not small, and those after the first pass, have room in 16 bits. */
static __attribute__((noinline, cold)) int has_room(const int16_t *block, const uint16_t *quantizers, int size) {
    i32x8 v[8];
    load_block(block, quantizers, v);
    if (!is_in_range(v)) return 0;
    if (size == 8) eight(v, BITS - MORE);
    else if (size == 4) four(v, BITS - MORE + 1);
    else two(v, BITS - MORE + 2);
    return is_in_range(v);
}

/* A block of `size` x `size` samples; `is_flat`: all coefficients but the first one are zero. 0 if numbers leave the 16 bits that
 * libjpeg has for them: only broken files and odd quantizers have such, and their samples are for libjpeg to say. */
static inline int inverse_dct(const int16_t *block, int is_flat, const jpeg_header *h, int component, int size, uint8_t *out,
                               size_t stride) {
    const uint16_t *quantizers = h->quantizers[component];
    int32_t dc = block[0] * quantizers[0];
    if (dc < -MOST_DC || dc > MOST_DC) return 0;
    if (is_flat || size == 1) {
        uint8_t sample = sample_of((dc + 4) >> 3);
        for (int i = 0; i < size; i++) memset(out + (size_t)i * stride, sample, (size_t)size);
        return 1;
    }
#if defined(__AVX2__)
    if (size == 8 && !h->has_wide_quantizers && inverse_dct_in_pairs(block, quantizers, out, stride)) return 1;
#elif defined(HAS_NEON)
    if (size == 8 && !h->has_wide_quantizers && inverse_dct_in_halves(block, quantizers, 8, out, stride)) return 1;
    if (size == 4 && !h->has_wide_quantizers && inverse_dct_in_halves(block, quantizers, 4, out, stride)) return 1;
    if (size == 2 && !h->has_wide_quantizers && inverse_dct_in_halves(block, quantizers, 2, out, stride)) return 1;
#endif
    /* At a scale only where quantizers are larger than of any usual quality: the test takes a twentieth of the time.
       There, codes that no encoder made for their quantizers may give other pixels than libjpeg-turbo's. */
    if (size == 8 || h->has_large_quantizers)
        if ((size == 8 && HAS_PAIRS) || h->has_wide_quantizers || !is_small_block(block, quantizers))
            if (!has_room(block, quantizers, size)) return 0;
    i32x8 v[8];
    load_block(block, quantizers, v);
    if (size == 8) {
        eight(v, BITS - MORE);
        transpose(v);
        eight(v, BITS + MORE + 3);
        transpose(v);
        for (int i = 0; i < 8; i++) {
            i32x8 x = v[i] + 128;
            x = x & ~(x < 0);
            x = x | (x > 255);
            u8x8 samples = __builtin_convertvector(x, u8x8);
            memcpy(out + (size_t)i * stride, &samples, 8);
        }
        return 1;
    }
    if (size == 4) four(v, BITS - MORE + 1), transpose(v), four(v, BITS + MORE + 3 + 1);
    else two(v, BITS - MORE + 2), transpose(v), two(v, BITS + MORE + 3 + 2);
    for (int x = 0; x < size; x++)
        for (int y = 0; y < size; y++) out[(size_t)y * stride + (size_t)x] = sample_of(v[x][y]);
    return 1;
}
#endif
