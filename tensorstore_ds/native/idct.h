/* The inverse DCT, accurate in integers, to 8 x 8, 4 x 4, 2 x 2 and 1 x 1 samples: the same bits as libjpeg's `islow`.
 *
 * Loeffler, Ligtenberg and Moschytz, Practical fast 1-D DCT algorithms with 11 multiplications, 1989. A vector is a line
 * of eight coefficients. */
#ifndef TSDS_IDCT_H
#define TSDS_IDCT_H
#include "context.h"

typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int16_t i16x8 __attribute__((vector_size(16)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i32x8){__VA_ARGS__})
#endif
#define INLINE static inline __attribute__((always_inline))

/* Constants times 2^13. */
enum { BITS = 13, MORE = 2 };

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

INLINE uint8_t sample_of(int32_t value) {
    value += 128;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

INLINE void load_block(const int16_t *block, const int32_t *quantizers, i32x8 v[8]) {
    for (int i = 0; i < 8; i++) {
        i16x8 line;
        i32x8 quantizer;
        memcpy(&line, block + 8 * i, 16), memcpy(&quantizer, quantizers + 8 * i, 32);
        v[i] = __builtin_convertvector(line, i32x8) * quantizer;
    }
}

/* A block of `size` x `size` samples; `end`: coefficients from there on are zero. */
static inline void inverse_dct(const int16_t *block, int end, const int32_t *quantizers, int size, uint8_t *out,
                               size_t stride) {
    if (end == 1 || size == 1) {
        int32_t dc = block[0] * quantizers[0];
        uint8_t sample = sample_of((dc + 4) >> 3);
        for (int i = 0; i < size; i++) memset(out + (size_t)i * stride, sample, (size_t)size);
        return;
    }
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
        return;
    }
    if (size == 4) four(v, BITS - MORE + 1), transpose(v), four(v, BITS + MORE + 3 + 1);
    else two(v, BITS - MORE + 2), transpose(v), two(v, BITS + MORE + 3 + 2);
    for (int x = 0; x < size; x++)
        for (int y = 0; y < size; y++) out[(size_t)y * stride + (size_t)x] = sample_of(v[x][y]);
}
#endif
