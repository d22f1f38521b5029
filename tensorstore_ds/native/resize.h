/* Antialiased bilinear resizing of lines of RGBX pixels: the same bits as torch's of uint8 (ATen's UpSampleKernel.cpp,
 * which is Pillow-SIMD's): weights of 16 bits, first across into 8 bits, then down. */
#ifndef TSDS_RESIZE_H
#define TSDS_RESIZE_H
#include <math.h>

#include "context.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define MOST_WEIGHTS (1 << 22)

/* Weights of `count` results from `first` on, of resizing `extent` pixels, from `offset` in [0, 1) on, to `resized`.
 * `limit`: how many pixels there are. Returns what became of it. */
static int filter_make(filter *f, double offset, double extent, int resized, int first, int count, int limit) {
    double step = extent / resized, support = step >= 1 ? step : 1, inverse = step >= 1 ? 1 / step : 1;
    if (!(support < 4096)) return CROP_OTHER;
    int most = (int)ceil(support) * 2 + 1, room = (most + 1) & ~1;
    if ((int64_t)room * (count + 1) > MOST_WEIGHTS) return CROP_OTHER;
    size_t pairs = ((size_t)count + 3) / 4 * 2, all = (size_t)room * ((size_t)count + 1);
    if (!reserve(&f->memory, 16 * sizeof(int16_t) * pairs * (size_t)room / 2 + sizeof(double) * all +
                                 2 * sizeof(int32_t) * ((size_t)count + 3) + sizeof(int16_t) * all))
        return CROP_MEMORY;
    f->spread = (int16_t *)(void *)f->memory.bytes;
    double *rows = (double *)(void *)(f->spread + 16 * pairs * (size_t)room / 2);
    f->begin = (int32_t *)(void *)(rows + all), f->length = f->begin + count + 3;
    f->weights = (int16_t *)(void *)(f->length + count + 3);
    f->count = count;
    double largest = 0;
    int longest = 1;
    for (int i = 0; i < resized; i++) { /* the precision is that of all results, whether they are seen or not */
        int is_seen = i >= first && i < first + count, n = 0;
        double *w = rows + (size_t)room * (size_t)(is_seen ? i - first : count), total = 0;
        double center = offset + step * (i + 0.5);
        int64_t low = (int64_t)(center - support + 0.5), high = (int64_t)(center + support + 0.5);
        if (low < 0) low = 0;
        if (high > limit) high = limit;
        if (high > low) n = high - low > most ? most : (int)(high - low);
        for (int k = 0; k < n; k++) {
            double x = fabs(((double)(k + low) - center + 0.5) * inverse);
            w[k] = x < 1 ? 1 - x : 0;
            total += w[k];
        }
        for (int k = 0; k < n; k++) {
            w[k] = total != 0 ? w[k] / total : 0;
            if (w[k] > largest) largest = w[k];
        }
        if (!is_seen) continue;
        if (!n) return CROP_OTHER;
        f->begin[i - first] = (int32_t)low, f->length[i - first] = n;
        if (n > longest) longest = n;
    }
    int p = 0;
    while (p < 22 && (int)(0.5 + largest * (1 << (p + 1))) < 1 << 15) p++;
    f->precision = p;
    int taps = f->taps = (longest + 1) & ~1;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < taps; k++)
            f->weights[(size_t)i * (size_t)taps + (size_t)k] =
                k < f->length[i] ? (int16_t)(0.5 + rows[(size_t)i * (size_t)room + (size_t)k] * (1 << p)) : 0;
    for (int i = 0; i < 3; i++) f->begin[count + i] = f->begin[count - 1];
    int16_t *spread = f->spread;
    for (size_t pair = 0; pair < pairs; pair++)
        for (int k = 0; k < taps; k += 2, spread += 16)
            for (size_t which = 0; which < 2; which++) {
                size_t i = 2 * pair + which < (size_t)count ? 2 * pair + which : (size_t)count - 1;
                const int16_t *two = f->weights + i * (size_t)taps + k;
                for (int c = 0; c < 4; c++) spread[8 * which + 2 * (size_t)c] = two[0], spread[8 * which + 2 * (size_t)c + 1] = two[1];
            }
    return CROP_OK;
}

#define AROUND 64 /* bytes behind a line that may be read */

/* `count` results of a line of RGBX pixels, which begins where the first result does. */
static void resize_line(const filter *f, const uint8_t *line, uint8_t *out) {
    int start = f->begin[0];
#if defined(__AVX2__)
    /* Four results at a time, one in each half of two sums; of each, two pixels are multiplied and added at once. */
    const __m256i low = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
    const __m256i high = _mm256_broadcastsi128_si256(_mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
    const __m256i half = _mm256_set1_epi32(f->precision ? 1 << (f->precision - 1) : 0);
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
    const __m128i shift = _mm_cvtsi32_si128(f->precision);
    const __m256i *weights = (const __m256i *)(const void *)f->spread;
    for (int i = 0; i < f->count; i += 4) { /* there is room for three more */
        __m256i sums[2];
        for (int pair = 0; pair < 2; pair++) {
            const int32_t *begin = f->begin + i + 2 * pair;
            const uint8_t *a = line + 4 * (ptrdiff_t)(begin[0] - start), *b = line + 4 * (ptrdiff_t)(begin[1] - start);
            __m256i sum = half;
            int k = 0;
            for (; k + 4 <= f->taps; k += 4, weights += 2) {
                __m256i pixels = _mm256_inserti128_si256(
                    _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(a + 4 * k))),
                    _mm_loadu_si128((const __m128i *)(const void *)(b + 4 * k)), 1);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), weights[0]));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, high), weights[1]));
            }
            if (k < f->taps) {
                __m256i pixels = _mm256_inserti128_si256(
                    _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)(a + 4 * k))),
                    _mm_loadl_epi64((const __m128i *)(const void *)(b + 4 * k)), 1);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), *weights++));
            }
            sums[pair] = _mm256_sra_epi32(sum, shift);
        }
        __m256i four = _mm256_packs_epi32(sums[0], sums[1]);
        four = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(four, four), in_order);
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * i), _mm256_castsi256_si128(four));
    }
#else
    typedef int32_t i32x4 __attribute__((vector_size(16)));
    typedef uint8_t u8x4 __attribute__((vector_size(4)));
    int32_t half = f->precision ? 1 << (f->precision - 1) : 0;
    for (int i = 0; i < f->count; i++) {
        const uint8_t *from = line + 4 * (ptrdiff_t)(f->begin[i] - start);
        const int16_t *w = f->weights + (size_t)i * (size_t)f->taps;
        i32x4 sum = {half, half, half, half};
        for (int k = 0; k < f->length[i]; k++) {
            u8x4 pixel;
            memcpy(&pixel, from + 4 * k, 4);
            sum += __builtin_convertvector(pixel, i32x4) * (int32_t)w[k];
        }
        sum >>= f->precision;
        sum &= ~(sum < 0);
        sum |= sum > 255;
        u8x4 pixel = __builtin_convertvector(sum, u8x4);
        memcpy(out + 4 * i, &pixel, 4);
    }
#endif
}

/* Result `which` of lines of `nbytes`, a multiple of 32. */
static void resize_column(const filter *f, int which, const uint8_t *const *lines, uint8_t *out, size_t nbytes) {
    const int16_t *w = f->weights + (size_t)which * (size_t)f->taps;
    int n = f->length[which];
    int32_t half = f->precision ? 1 << (f->precision - 1) : 0;
#if defined(__AVX2__)
    const __m128i shift = _mm_cvtsi32_si128(f->precision);
    const __m256i zero = _mm256_setzero_si256();
    for (size_t i = 0; i < nbytes; i += 32) {
        __m256i s0 = _mm256_set1_epi32(half), s1 = s0, s2 = s0, s3 = s0;
        for (int k = 0; k < n; k += 2) {
            uint32_t pair = (uint16_t)w[k] | (uint32_t)(uint16_t)w[k + 1] << 16; /* taps are even: the last may be 0 */
            __m256i weight = _mm256_set1_epi32((int32_t)pair);
            __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(lines[k] + i));
            __m256i b = k + 1 < n ? _mm256_loadu_si256((const __m256i *)(const void *)(lines[k + 1] + i)) : zero;
            __m256i lower = _mm256_unpacklo_epi8(a, b), upper = _mm256_unpackhi_epi8(a, b);
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(lower, zero), weight));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(lower, zero), weight));
            s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(upper, zero), weight));
            s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(upper, zero), weight));
        }
        s0 = _mm256_packs_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift));
        s2 = _mm256_packs_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_packus_epi16(s0, s2));
    }
#else
    for (size_t i = 0; i < nbytes; i += 32) {
        int32_t sums[32];
        for (int j = 0; j < 32; j++) sums[j] = half;
        for (int k = 0; k < n; k++)
            for (int j = 0; j < 32; j++) sums[j] += w[k] * lines[k][i + (size_t)j];
        for (int j = 0; j < 32; j++) {
            int32_t sum = sums[j] >> f->precision;
            out[i + (size_t)j] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
        }
    }
#endif
}

/* RGBX to the first `channels` of each pixel, mirrored if `flip`. */
static void store_line(const uint8_t *rgbx, int count, int channels, int flip, uint8_t *out) {
    if (channels == 1) {
        for (int i = 0; i < count; i++) out[flip ? count - 1 - i : i] = rgbx[4 * i];
        return;
    }
    int i = 0;
    if (flip) {
        for (uint8_t *to = out + 3 * (ptrdiff_t)count; i < count; i++) to -= 3, memcpy(to, rgbx + 4 * i, 3);
        return;
    }
#if defined(__AVX2__)
    const __m128i pick = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (; i + 8 <= count; i += 4) /* 4 bytes too many, which the next pixels are written over */
        _mm_storeu_si128((__m128i *)(void *)(out + 3 * i),
                         _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(rgbx + 4 * i)), pick));
#endif
    for (; i < count; i++) memcpy(out + 3 * i, rgbx + 4 * i, 3);
}
#endif
