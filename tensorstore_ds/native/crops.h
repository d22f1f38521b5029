/* A part of a JPEG image, decoded where it is seen, resized line by line into its place in a batch. */
#ifndef TSDS_CROPS_H
#define TSDS_CROPS_H
#include "idct.h"
#include "jpeg.h"
#include "resize.h"

#define MOST_PIXELS (1 << 26) /* in memory at once: what needs more is left to Python, which asks for the memory first */
#define BESIDE 32             /* bytes beside each line of a plane */

typedef struct {
    int size, across, down;      /* of a block: samples; blocks of a unit */
    int shrunk_x, shrunk_y;      /* 1: chroma of half the width, of half the height */
    int is_smooth;               /* whether chroma is interpolated */
    int width, height;           /* of the whole image */
    int left, top;               /* where the part begins */
    size_t stride;
    uint8_t *samples;            /* of the part, from its first sample on */
} plane;

typedef struct {
    const jpeg_header *header;
    int top, left, bottom, right; /* in units */
    int scale, components;
    plane planes[3];
} part;

/* --- decoding a part ------------------------------------------------------------------------------------------------ */

/* How libjpeg decodes components at a scale: chroma of half the size is decoded at twice the scale where that will do. */
static void plan_planes(part *p) {
    const jpeg_header *h = p->header;
    int smallest = 8 / p->scale;
    for (int i = 0; i < p->components; i++) {
        plane *c = &p->planes[i];
        c->across = i ? 1 : h->h, c->down = i ? 1 : h->v, c->size = smallest;
        while (c->size < 8 && h->h * smallest % (c->across * c->size * 2) == 0 &&
               h->v * smallest % (c->down * c->size * 2) == 0)
            c->size *= 2;
        c->shrunk_x = h->h * smallest > c->across * c->size, c->shrunk_y = h->v * smallest > c->down * c->size;
        c->width = (h->width * c->across * c->size + 8 * h->h - 1) / (8 * h->h);
        c->height = (h->height * c->down * c->size + 8 * h->v - 1) / (8 * h->v);
        c->is_smooth = smallest > 1 && c->width > 2;
    }
}

static int reserve_planes(context *ctx, part *p) {
    size_t needed = 0;
    for (int i = 0; i < p->components; i++) {
        plane *c = &p->planes[i];
        c->left = p->left * c->across * c->size, c->top = p->top * c->down * c->size;
        size_t width = (size_t)(p->right - p->left) * (size_t)(c->across * c->size);
        c->stride = (width + 2 * BESIDE + 31) & ~(size_t)31;
        needed += c->stride * (size_t)(p->bottom - p->top) * (size_t)(c->down * c->size) + BESIDE;
    }
    if (!reserve(&ctx->planes, needed)) return 0;
    uint8_t *at = ctx->planes.bytes;
    for (int i = 0; i < p->components; i++) {
        plane *c = &p->planes[i];
        c->samples = at + BESIDE;
        at += c->stride * (size_t)(p->bottom - p->top) * (size_t)(c->down * c->size);
    }
    return 1;
}

/* The next `count` units from `unit` on, of which those of the part go to its planes. 0 if codes or numbers are broken. */
static int decode_units(part *p, bit_reader *reader, const uint8_t *stop, int32_t last[3], int64_t unit, int count) {
    const jpeg_header *h = p->header;
    int row = (int)(unit / h->across), column = (int)(unit % h->across);
    bit_reader r = *reader;
    for (; count; count--) {
        int is_seen = row >= p->top && row < p->bottom && column >= p->left && column < p->right;
        for (int i = 0; i < p->components; i++) {
            plane *c = &p->planes[i];
            for (int y = 0; y < c->down; y++)
                for (int x = 0; x < c->across; x++) {
                    _Alignas(32) int16_t block[64];
                    clear_block(block);
                    if (r.at - (r.bits >> 3) > stop) return 0;
                    int end = decode_block(&r, h->dc[i], h->ac[i], &last[i], block);
                    if (end > 64) return 0;
                    if (!is_seen) continue;
                    size_t top = (size_t)((row - p->top) * c->down + y) * (size_t)c->size;
                    size_t left = (size_t)((column - p->left) * c->across + x) * (size_t)c->size;
                    if (!inverse_dct(block, end, h, i, c->size, c->samples + top * c->stride + left, c->stride)) return 0;
                }
        }
        if (++column == h->across) column = 0, row++;
    }
    *reader = r;
    return 1;
}

static int ends_here(const bit_reader *r, const uint8_t *from, const uint8_t *stop) {
    int64_t left = 8 * (stop - from) - bits_read(r, from);
    return left >= 0 && left < 8;
}

static int decode_whole(context *ctx, part *p, bytes_view file) {
    const jpeg_header *h = p->header;
    if (h->interval) return CROP_OTHER;
    size_t end = end_of_scan(file, h->start);
    if (!end) return CROP_DAMAGED;
    if (!reserve(&ctx->scan, end - h->start + PAD)) return CROP_MEMORY;
    uint8_t *stop = unstuff(ctx->scan.bytes, file.bytes + h->start, file.bytes + end);
    if (!stop) return CROP_DAMAGED;
    memset(stop, 0, PAD);
    bit_reader reader = {0, 0, ctx->scan.bytes};
    int32_t last[3] = {0};
    int64_t units = (int64_t)(p->bottom - 1) * h->across + p->right;
    if (units > 4 * (int64_t)file.nbytes) return CROP_DAMAGED; /* a unit has two bits at least */
    if (!decode_units(p, &reader, stop, last, 0, (int)units)) return CROP_DAMAGED;
    if (units == (int64_t)h->across * h->down && !ends_here(&reader, ctx->scan.bytes, stop)) return CROP_DAMAGED;
    return CROP_OK;
}

static int decode_intervals(context *ctx, part *p, bytes_view file, const uint8_t *marks, int64_t mark_count) {
    const jpeg_header *h = p->header;
    int64_t units = (int64_t)h->across * h->down, interval = h->interval, done = -1;
    if (!interval || mark_count != (units + interval - 1) / interval - 1) return CROP_OTHER;
    const uint8_t *data = file.bytes;
    for (int row = p->top; row < p->bottom; row++) {
        int64_t first = ((int64_t)row * h->across + p->left) / interval;
        int64_t final = ((int64_t)row * h->across + p->right - 1) / interval;
        for (int64_t i = first > done ? first : done + 1; i <= final; i++) {
            uint32_t mark;
            size_t begin = h->start, end = 0;
            if (i) {
                memcpy(&mark, marks + 4 * (i - 1), 4);
                begin = mark;
                if (begin < h->start + 2 || begin > file.nbytes || data[begin - 2] != 0xFF ||
                    data[begin - 1] != 0xD0 + ((i - 1) & 7))
                    return CROP_DAMAGED;
            }
            if (i < mark_count) {
                memcpy(&mark, marks + 4 * i, 4);
                end = mark;
                if (end < begin + 2 || end > file.nbytes || data[end - 2] != 0xFF || data[end - 1] != 0xD0 + (i & 7))
                    return CROP_DAMAGED;
                end -= 2;
            } else if (!(end = end_of_scan(file, begin)))
                return CROP_DAMAGED;
            if (!reserve(&ctx->scan, end - begin + PAD)) return CROP_MEMORY;
            uint8_t *stop = unstuff(ctx->scan.bytes, data + begin, data + end);
            if (!stop) return CROP_DAMAGED;
            memset(stop, 0, PAD);
            bit_reader reader = {0, 0, ctx->scan.bytes};
            int32_t last[3] = {0};
            int64_t from = i * interval, count = units - from < interval ? units - from : interval;
            if (!decode_units(p, &reader, stop, last, from, (int)count) || !ends_here(&reader, ctx->scan.bytes, stop))
                return CROP_DAMAGED;
        }
        done = final > done ? final : done;
    }
    return CROP_OK;
}

static jpeg_entry entry_at(const uint8_t *entries, int64_t i) {
    jpeg_entry entry;
    memcpy(&entry, entries + (size_t)i * sizeof entry, sizeof entry);
    return entry;
}

/* The units of one line of the part, from one entry to the next: each ends where the next one begins, and with the
 * predictions that it has. */
static int decode_run(context *ctx, part *p, bytes_view file, const uint8_t *entries, int64_t entry_count, int row) {
    const jpeg_header *h = p->header;
    int per_row = (h->across + UNITS_PER_ENTRY - 1) / UNITS_PER_ENTRY;
    int64_t first = (int64_t)row * per_row + p->left / UNITS_PER_ENTRY;
    int count = (p->right - 1) / UNITS_PER_ENTRY - p->left / UNITS_PER_ENTRY + 1;
    if (!reserve(&ctx->pieces, sizeof(size_t) * ((size_t)count + 1))) return CROP_MEMORY;
    size_t *offsets = (size_t *)(void *)ctx->pieces.bytes;
    jpeg_entry entry = entry_at(entries, first);
    size_t begin = entry.bit >> 3, end;
    int is_last = first + count == entry_count;
    if (begin < h->start || begin >= file.nbytes) return CROP_DAMAGED;
    if (is_last) {
        if (!(end = end_of_scan(file, begin))) return CROP_DAMAGED;
    } else {
        end = entry_at(entries, first + count).bit >> 3;
        if (end < begin || end + 1 >= file.nbytes) return CROP_DAMAGED;
    }
    if (!reserve(&ctx->scan, end - begin + 1 + PAD)) return CROP_MEMORY;
    uint8_t *at = ctx->scan.bytes;
    for (int i = 0; i < count; i++) { /* bytes that lie between begin and end, one behind the other: they have room */
        offsets[i] = (size_t)(at - ctx->scan.bytes);
        size_t stop = i + 1 < count ? entry_at(entries, first + i + 1).bit >> 3 : end;
        if (stop < begin || stop > end || !(at = unstuff(at, file.bytes + begin, file.bytes + stop))) return CROP_DAMAGED;
        begin = stop;
    }
    offsets[count] = (size_t)(at - ctx->scan.bytes);
    if (!is_last) { /* the byte in which the last code may end */
        if (file.bytes[end] == 0xFF && file.bytes[end + 1]) return CROP_DAMAGED;
        *at++ = file.bytes[end];
    }
    memset(at, 0, PAD);
    bit_reader reader = {0, 0, ctx->scan.bytes};
    int32_t last[3] = {entry.dc[0], entry.dc[1], entry.dc[2]};
    refill(&reader), drop(&reader, entry.bit & 7);
    int column = p->left / UNITS_PER_ENTRY * UNITS_PER_ENTRY;
    for (int i = 0; i < count; i++, column += UNITS_PER_ENTRY) {
        int units = h->across - column < UNITS_PER_ENTRY ? h->across - column : UNITS_PER_ENTRY;
        if (!decode_units(p, &reader, at, last, (int64_t)row * h->across + column, units)) return CROP_DAMAGED;
        if (i + 1 == count && is_last) return ends_here(&reader, ctx->scan.bytes, at) ? CROP_OK : CROP_DAMAGED;
        entry = entry_at(entries, first + i + 1);
        if (bits_read(&reader, ctx->scan.bytes) != 8 * (int64_t)offsets[i + 1] + (entry.bit & 7)) return CROP_DAMAGED;
        for (int k = 0; k < p->components; k++)
            if (last[k] != entry.dc[k]) return CROP_DAMAGED;
    }
    return CROP_OK;
}

static int decode_entries(context *ctx, part *p, bytes_view file, const uint8_t *entries, int64_t entry_count) {
    const jpeg_header *h = p->header;
    int64_t per_row = (h->across + UNITS_PER_ENTRY - 1) / UNITS_PER_ENTRY;
    if (h->interval || entry_count != per_row * h->down) return CROP_OTHER;
    int code = CROP_OK;
    for (int row = p->top; row < p->bottom && code == CROP_OK; row++)
        code = decode_run(ctx, p, file, entries, entry_count, row);
    return code;
}

/* --- lines of pixels ------------------------------------------------------------------------------------------------ */

/* Beyond the edges of the image, its first and last samples are repeated, as interpolation wants it. */
static void repeat_edges(part *p) {
    for (int i = 1; i < p->components; i++) {
        plane *c = &p->planes[i];
        int rows = (p->bottom - p->top) * c->size, last = c->width - 1 - c->left;
        int has_last = last < (p->right - p->left) * c->size;
        for (int y = 0; c->shrunk_x && y < rows; y++) {
            uint8_t *line = c->samples + (size_t)y * c->stride;
            line[-1] = line[0];
            if (has_last) line[last + 1] = line[last];
        }
    }
}

#if defined(__AVX2__)
INLINE __m256i widened(const uint8_t *from) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
}
INLINE __m256i read_sums(const int16_t *from) { return _mm256_loadu_si256((const __m256i *)(const void *)from); }
/* 16 samples of 8 bits at even places, and 16 at odd ones. */
INLINE void store_pairs(__m256i even, __m256i odd, uint8_t *out) {
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_or_si256(even, _mm256_slli_epi16(odd, 8)));
}
#endif

/* A line of chroma at the full width: `count` samples, even, from where the part begins. `sums`: memory. */
static void upsample(const plane *c, int y, int count, int16_t *sums, uint8_t *out) {
    int near = c->shrunk_y ? y >> 1 : y, half = count / 2;
    const uint8_t *line = c->samples + (size_t)(near - c->top) * c->stride;
    if (!c->is_smooth) {
        for (int i = 0; i < half; i++) out[2 * i] = out[2 * i + 1] = line[i];
        return;
    }
    if (!c->shrunk_y) {
        int i = 0;
#if defined(__AVX2__)
        for (; i < half; i += 16) { /* some samples too many: there is room on both sides */
            __m256i here = widened(line + i), three = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
            __m256i even = _mm256_add_epi16(_mm256_add_epi16(three, widened(line + i - 1)), _mm256_set1_epi16(1));
            __m256i odd = _mm256_add_epi16(_mm256_add_epi16(three, widened(line + i + 1)), _mm256_set1_epi16(2));
            store_pairs(_mm256_srli_epi16(even, 2), _mm256_srli_epi16(odd, 2), out + 2 * i);
        }
#endif
        for (; i < half; i++) {
            out[2 * i] = (uint8_t)((3 * line[i] + line[i - 1] + 1) >> 2);
            out[2 * i + 1] = (uint8_t)((3 * line[i] + line[i + 1] + 2) >> 2);
        }
        return;
    }
    int far = y & 1 ? near + 1 : near - 1;
    if (far < 0) far = 0;
    if (far > c->height - 1) far = c->height - 1;
    const uint8_t *other = c->samples + (ptrdiff_t)(far - c->top) * (ptrdiff_t)c->stride;
    int i = 0;
#if defined(__AVX2__)
    sums[-1] = (int16_t)(3 * line[-1] + other[-1]);
    for (int k = 0; k <= half; k += 16) {
        __m256i here = widened(line + k), three = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        _mm256_storeu_si256((__m256i *)(void *)(sums + k), _mm256_add_epi16(three, widened(other + k)));
    }
    for (; i < half; i += 16) {
        __m256i here = read_sums(sums + i), three = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        __m256i even = _mm256_add_epi16(_mm256_add_epi16(three, read_sums(sums + i - 1)), _mm256_set1_epi16(8));
        __m256i odd = _mm256_add_epi16(_mm256_add_epi16(three, read_sums(sums + i + 1)), _mm256_set1_epi16(7));
        store_pairs(_mm256_srli_epi16(even, 4), _mm256_srli_epi16(odd, 4), out + 2 * i);
    }
#else
    for (int k = -1; k <= half; k++) sums[k] = (int16_t)(3 * line[k] + other[k]);
#endif
    for (; i < half; i++) {
        out[2 * i] = (uint8_t)((3 * sums[i] + sums[i - 1] + 8) >> 4);
        out[2 * i + 1] = (uint8_t)((3 * sums[i] + sums[i + 1] + 7) >> 4);
    }
}

INLINE uint32_t clamped(int32_t value) { return (uint32_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* YCbCr to RGBX (JFIF): libjpeg's fixed point. */
static void to_rgbx(const uint8_t *restrict y, const uint8_t *restrict cb, const uint8_t *restrict cr, int count,
                    uint8_t *restrict out) {
    int i = 0;
#if defined(__AVX2__)
    /* The same numbers in 16 bits: 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942, 46802 = 65536 - 18734. The high half
     * of twice a product, and its rounding, is that of the product and 32768. */
    const __m256i middle = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    const __m256i of_red = _mm256_set1_epi16(26345), of_blue = _mm256_set1_epi16(-14942);
    const __m256i of_green = _mm256_set1_epi32((int32_t)((uint32_t)18734 << 16 | (uint16_t)-22554));
    const __m256i half = _mm256_set1_epi32(32768);
    for (; i < count; i += 16) { /* some pixels too many: there is room behind a line */
        __m256i light = widened(y + i), b = _mm256_sub_epi16(widened(cb + i), middle), r = _mm256_sub_epi16(widened(cr + i), middle);
        __m256i more = _mm256_mulhi_epi16(_mm256_add_epi16(r, r), of_red);
        __m256i red = _mm256_add_epi16(_mm256_add_epi16(light, r), _mm256_srai_epi16(_mm256_add_epi16(more, one), 1));
        more = _mm256_mulhi_epi16(_mm256_add_epi16(b, b), of_blue);
        __m256i blue = _mm256_add_epi16(light, _mm256_add_epi16(b, b));
        blue = _mm256_add_epi16(blue, _mm256_srai_epi16(_mm256_add_epi16(more, one), 1));
        __m256i lower = _mm256_madd_epi16(_mm256_unpacklo_epi16(b, r), of_green);
        __m256i upper = _mm256_madd_epi16(_mm256_unpackhi_epi16(b, r), of_green);
        lower = _mm256_srai_epi32(_mm256_add_epi32(lower, half), 16);
        upper = _mm256_srai_epi32(_mm256_add_epi32(upper, half), 16);
        __m256i green = _mm256_add_epi16(_mm256_sub_epi16(light, r), _mm256_packs_epi32(lower, upper));
        __m256i rg = _mm256_unpacklo_epi8(_mm256_packus_epi16(red, red), _mm256_packus_epi16(green, green));
        __m256i bx = _mm256_unpacklo_epi8(_mm256_packus_epi16(blue, blue), zero);
        __m256i front = _mm256_unpacklo_epi16(rg, bx), back = _mm256_unpackhi_epi16(rg, bx);
        __m256i *to = (__m256i *)(void *)(out + 4 * i);
        _mm256_storeu_si256(to, _mm256_permute2x128_si256(front, back, 0x20));
        _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(front, back, 0x31));
    }
#elif defined(HAS_NEON)
    for (; i < count; i += 8) { /* the same */
        int16x8_t light = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(y + i)));
        int16x8_t b = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cb + i), vdup_n_u8(128)));
        int16x8_t r = vreinterpretq_s16_u16(vsubl_u8(vld1_u8(cr + i), vdup_n_u8(128)));
        int16x8_t red = light + r + vrshrq_n_s16(vqdmulhq_n_s16(r, 26345), 1);
        int16x8_t blue = light + b + b + vrshrq_n_s16(vqdmulhq_n_s16(b, -14942), 1);
        int32x4_t lower = vmlal_n_s16(vmull_n_s16(vget_low_s16(r), 18734), vget_low_s16(b), -22554);
        int32x4_t upper = vmlal_n_s16(vmull_n_s16(vget_high_s16(r), 18734), vget_high_s16(b), -22554);
        int16x8_t green = light - r + vcombine_s16(vrshrn_n_s32(lower, 16), vrshrn_n_s32(upper, 16));
        uint8x8x4_t rgbx = {{vqmovun_s16(red), vqmovun_s16(green), vqmovun_s16(blue), vdup_n_u8(0)}};
        vst4_u8(out + 4 * i, rgbx);
    }
#endif
    for (; i < count; i++) {
        int32_t b = cb[i] - 128, r = cr[i] - 128, light = y[i];
        uint32_t red = clamped(light + ((91881 * r + 32768) >> 16));
        uint32_t green = clamped(light + ((-22554 * b - 46802 * r + 32768) >> 16));
        uint32_t blue = clamped(light + ((116130 * b + 32768) >> 16));
        uint32_t pixel = red | green << 8 | blue << 16;
        memcpy(out + 4 * i, &pixel, 4);
    }
}

static void gray_to_rgbx(const uint8_t *restrict y, int count, uint8_t *restrict out) {
    for (int i = 0; i < count; i++) {
        uint32_t pixel = y[i] * 0x010101u;
        memcpy(out + 4 * i, &pixel, 4);
    }
}

/* Line `y` of the part as RGBX, `count` pixels from where it begins. */
static void make_line(const part *p, int y, int count, uint8_t *scratch, uint8_t *out) {
    const uint8_t *lines[3];
    size_t width = ((size_t)count + 2 * BESIDE + 31) & ~(size_t)31;
    for (int i = 0; i < p->components; i++) {
        const plane *c = &p->planes[i];
        if (c->shrunk_x) {
            uint8_t *made = scratch + width * (size_t)(i - 1);
            upsample(c, y, (count + 1) & ~1, (int16_t *)(void *)(scratch + 2 * width) + BESIDE, made);
            lines[i] = made;
        } else
            lines[i] = c->samples + (size_t)(y - c->top) * c->stride;
    }
    if (p->components == 1) gray_to_rgbx(lines[0], count, out);
    else
        to_rgbx(lines[0], lines[1], lines[2], count, out);
}

/* --- one image ------------------------------------------------------------------------------------------------------ */

/* Along an axis, at a scale: where the pixels begin that a filter counts from, and which are seen. */
typedef struct {
    int base, low, high;
} span;

/* Of a mirrored image, the decoded pixel that reaches beyond its edge comes first. */
static int make_filter(filter *f, const crop_axis *a, int length, int scale, int is_mirrored, span *s) {
    int pixels = (length + scale - 1) / scale, begin = is_mirrored ? length - pixels * scale : 0;
    double origin = (a->origin - begin) / scale, extent = a->extent / scale;
    s->base = (int)floor(origin);
    int limit = (int)ceil(origin - s->base + extent);
    if (limit > pixels - s->base) limit = pixels - s->base;
    int code = filter_make(f, origin - s->base, extent, a->resized, a->first, a->count, limit);
    if (code != CROP_OK) return code;
    s->low = s->base + f->begin[0];
    s->high = s->base + f->begin[a->count - 1] + f->length[a->count - 1];
    return s->low < s->high && s->high <= pixels ? CROP_OK : CROP_OTHER;
}

/* By EXIF's orientation, how stored pixels become upright: transposed, then mirrored top to bottom, left to right. */
static const uint8_t turns[9][3] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 1}, {0, 1, 1}, {0, 1, 0},
                                    {1, 0, 0}, {1, 0, 1}, {1, 1, 1}, {1, 1, 0}};

static int fits(const crop_axis *a, int length, int canvas) {
    return a->origin >= 0 && a->extent > 0 && a->origin + a->extent <= length && a->resized >= 1 &&
           a->resized <= 1 << 16 && a->first >= 0 && a->count >= 1 && a->first <= a->resized - a->count && a->at >= 0 &&
           a->count <= canvas && a->at <= canvas - a->count;
}

static int has(bytes_view table, int64_t first, int64_t count, size_t nbytes) {
    return first >= 0 && count >= 0 && (uint64_t)count <= table.nbytes / nbytes &&
           (uint64_t)first <= table.nbytes / nbytes - (uint64_t)count;
}

static int crop_image(context *ctx, const crop_shard *shards, size_t shard_count, const crop_job *job, int height, int width,
                      int channels, uint8_t *out) {
    if (job->shard < 0 || (size_t)job->shard >= shard_count) return CROP_OTHER;
    const crop_shard *shard = shards + job->shard;
    int s = job->scale;
    if ((s != 1 && s != 2 && s != 4 && s != 8) || job->height < 1 || job->width < 1 || job->height > 0xFFFF ||
        job->width > 0xFFFF || !fits(&job->y, job->height, height) || !fits(&job->x, job->width, width) ||
        job->begin < 0 || job->end < job->begin || !has(shard->file, job->begin, job->end - job->begin, 1))
        return CROP_OTHER;
    bytes_view file = {shard->file.bytes + job->begin, (size_t)(job->end - job->begin)};
    jpeg_header h;
    int code = read_jpeg_header(ctx, file, &h);
    if (code != CROP_OK) return code;
    const uint8_t *turn = turns[h.orientation];
    if ((turn[0] ? h.width : h.height) != job->height || (turn[0] ? h.height : h.width) != job->width) return CROP_OTHER;
    if (h.components != job->components || h.components > channels || h.v > h.h) return CROP_OTHER;
    if ((int64_t)h.across * h.down * 2 > 8 * 3 * (int64_t)file.nbytes) return CROP_DAMAGED; /* before memory is taken */

    span rows, columns; /* upright */
    if ((code = make_filter(&ctx->down, &job->y, job->height, s, turn[1], &rows)) != CROP_OK) return code;
    if ((code = make_filter(&ctx->across, &job->x, job->width, s, turn[2], &columns)) != CROP_OK) return code;
    int seen_height = rows.high - rows.low, seen_width = columns.high - columns.low;
    int stored_height = (h.height + s - 1) / s, stored_width = (h.width + s - 1) / s;
    span lines = turn[0] ? columns : rows, places = turn[0] ? rows : columns; /* as stored */
    if (turn[0] ? turn[2] : turn[1])
        lines = (span){0, stored_height - lines.high, stored_height - lines.low};
    if (turn[0] ? turn[1] : turn[2])
        places = (span){0, stored_width - places.high, stored_width - places.low};

    part p = {.header = &h, .scale = s, .components = h.components};
    plan_planes(&p);
    int unit_height = h.v * 8 / s, unit_width = h.h * 8 / s, around = 0;
    for (int i = 1; i < p.components; i++)
        if (p.planes[i].is_smooth) around = 2; /* chroma is interpolated with the samples beside it */
    p.top = (lines.low > around ? lines.low - around : 0) / unit_height;
    p.left = (places.low > around ? places.low - around : 0) / unit_width;
    p.bottom = (lines.high + around + unit_height - 1) / unit_height;
    p.right = (places.high + around + unit_width - 1) / unit_width;
    if (p.bottom > h.down) p.bottom = h.down;
    if (p.right > h.across) p.right = h.across;
    if ((int64_t)(p.bottom - p.top) * unit_height * (p.right - p.left) * unit_width > MOST_PIXELS) return CROP_OTHER;
    if (!reserve_planes(ctx, &p)) return CROP_MEMORY;

    if (job->find == FIND_RESTARTS) {
        if (!has(shard->restarts, job->marks, job->mark_count, 4)) return CROP_OTHER;
        code = decode_intervals(ctx, &p, file, shard->restarts.bytes + 4 * (size_t)job->marks, job->mark_count);
    } else if (job->find == FIND_ENTRIES) {
        if (!has(shard->entries, job->marks, job->mark_count, sizeof(jpeg_entry))) return CROP_OTHER;
        code = decode_entries(ctx, &p, file, shard->entries.bytes + sizeof(jpeg_entry) * (size_t)job->marks, job->mark_count);
    } else
        code = decode_whole(ctx, &p, file);
    if (code != CROP_OK) return code;
    repeat_edges(&p);

    /* Lines as they are stored begin where the part does; upright ones where the filter's pixels are seen. */
    int part_left = p.left * unit_width, part_width = (p.right - p.left) * unit_width;
    size_t scratch = 4 * (((size_t)part_width + 2 * BESIDE + 31) & ~(size_t)31) + 8 * BESIDE;
    size_t line_nbytes = (4 * ((size_t)part_width + (size_t)ctx->across.taps) + AROUND + 63) & ~(size_t)63;
    size_t row_nbytes = (4 * ((size_t)job->x.count + 1) + 31) & ~(size_t)31;
    int ring = ctx->down.taps + 1;
    if (!reserve(&ctx->lines, scratch + line_nbytes + row_nbytes) || !reserve(&ctx->rows, row_nbytes * (size_t)ring))
        return CROP_MEMORY;
    uint8_t *line = ctx->lines.bytes + scratch, *result = line + line_nbytes;
    size_t turned_nbytes = 4 * (size_t)seen_width;
    if (h.orientation > 1) {
        if (!reserve(&ctx->turned, turned_nbytes * (size_t)seen_height + 4 * (size_t)ctx->across.taps + AROUND))
            return CROP_MEMORY;
        for (int y = lines.low; y < lines.high; y++) {
            make_line(&p, y, places.high - part_left, ctx->lines.bytes, line);
            for (int x = places.low; x < places.high; x++) {
                int up_y = turn[0] ? x - places.low : y - lines.low, up_x = turn[0] ? y - lines.low : x - places.low;
                if (turn[1]) up_y = seen_height - 1 - up_y;
                if (turn[2]) up_x = seen_width - 1 - up_x;
                memcpy(ctx->turned.bytes + turned_nbytes * (size_t)up_y + 4 * (size_t)up_x,
                       line + 4 * (size_t)(x - part_left), 4);
            }
        }
    }
    if (!reserve(&ctx->pieces, sizeof(uint8_t *) * (size_t)ring)) return CROP_MEMORY;
    const uint8_t **taken = (const uint8_t **)(void *)ctx->pieces.bytes;
    const filter *down = &ctx->down;
    int made = 0, count_x = job->x.count;
    for (int y = rows.low; y < rows.high; y++) {
        const uint8_t *from;
        if (h.orientation > 1) from = ctx->turned.bytes + turned_nbytes * (size_t)(y - rows.low);
        else {
            make_line(&p, y, columns.high - part_left, ctx->lines.bytes, line);
            from = line + 4 * (size_t)(columns.low - part_left);
        }
        resize_line(&ctx->across, from, ctx->rows.bytes + row_nbytes * (size_t)(y % ring));
        for (; made < down->count && rows.base + down->begin[made] + down->length[made] <= y + 1; made++) {
            for (int k = 0; k < down->length[made]; k++)
                taken[k] = ctx->rows.bytes + row_nbytes * (size_t)((rows.base + down->begin[made] + k) % ring);
            resize_column(down, made, taken, result, row_nbytes);
            store_line(result, count_x, channels, job->flip != 0,
                       out + ((size_t)(job->y.at + made) * (size_t)width + (size_t)job->x.at) * (size_t)channels);
        }
    }
    return made == down->count ? CROP_OK : CROP_OTHER;
}

/* --- entries -------------------------------------------------------------------------------------------------------- */

static int64_t index_file(context *ctx, bytes_view file, const jpeg_entry **entries) {
    jpeg_header h;
    if (file.nbytes >= 1u << 29 || read_jpeg_header(ctx, file, &h) != CROP_OK || h.interval) return -1;
    size_t end = end_of_scan(file, h.start);
    int64_t units = (int64_t)h.across * h.down, per_row = (h.across + UNITS_PER_ENTRY - 1) / UNITS_PER_ENTRY;
    if (!end || units > 4 * (int64_t)file.nbytes) return -1;
    if (!reserve(&ctx->scan, end - h.start + PAD) ||
        !reserve(&ctx->entries, (size_t)(per_row * h.down) * sizeof(jpeg_entry)))
        return -2;
    uint8_t *stop = unstuff(ctx->scan.bytes, file.bytes + h.start, file.bytes + end);
    if (!stop) return -1;
    memset(stop, 0, PAD);
    part p = {.header = &h, .components = h.components, .scale = 1}; /* of no units: nothing is kept */
    plan_planes(&p);
    bit_reader reader = {0, 0, ctx->scan.bytes};
    int32_t last[3] = {0};
    jpeg_entry *out = (jpeg_entry *)(void *)ctx->entries.bytes;
    const uint8_t *source = file.bytes + h.start; /* goes along with the bytes that were read */
    int64_t seen = 0;
    for (int row = 0; row < h.down; row++)
        for (int column = 0; column < h.across; column += UNITS_PER_ENTRY) {
            int64_t bits = bits_read(&reader, ctx->scan.bytes);
            if (bits >= 8 * (stop - ctx->scan.bytes)) return -1;
            for (; seen < bits >> 3; seen++) source += ctx->scan.bytes[seen] == 0xFF ? 2 : 1;
            *out++ = (jpeg_entry){(uint32_t)((source - file.bytes) * 8 + (bits & 7)),
                                  {(int16_t)last[0], (int16_t)last[1], (int16_t)last[2]}, 0};
            int count = h.across - column < UNITS_PER_ENTRY ? h.across - column : UNITS_PER_ENTRY;
            if (!decode_units(&p, &reader, stop, last, (int64_t)row * h.across + column, count)) return -1;
        }
    if (!ends_here(&reader, ctx->scan.bytes, stop)) return -1;
    *entries = (const jpeg_entry *)(const void *)ctx->entries.bytes;
    return per_row * h.down;
}
#endif
