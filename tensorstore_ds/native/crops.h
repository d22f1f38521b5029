/* A part of a JPEG image, decoded where it is seen, resized line by line into its place in a batch. */
#ifndef TSDS_CROPS_H
#define TSDS_CROPS_H
#include "lanes.h"
#include "resize.h"
#include "sums.h"

#define MOST_PIXELS (1 << 26) /* in memory at once: what needs more is left to Python, which asks for the memory first */
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

/* Bytes of `scratch` for lines of a part of so many pixels. */
static size_t line_scratch(int width) { return 4 * (((size_t)width + 2 * BESIDE + 31) & ~(size_t)31) + 8 * BESIDE; }

/* Line `y` of the part as RGBX, `count` pixels from where it begins. */
static void make_line(const part *p, int y, int count, uint8_t *scratch, uint8_t *out) {
    const uint8_t *lines[3] = {0};
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

/* Along an axis, at a scale: the pixels that are seen, from which on a filter counts. */
typedef struct {
    int low, high;
} span;

/* Of a mirrored image, the decoded pixel that reaches beyond its edge comes first. */
static int make_filter(filter *f, const crop_axis *a, int length, int scale, int is_mirrored, span *s) {
    int pixels = (length + scale - 1) / scale, begin = is_mirrored ? length - pixels * scale : 0;
    double origin = (a->origin - begin) / scale, extent = a->extent / scale;
    int base = (int)floor(origin), limit = (int)ceil(origin - base + extent);
    if (limit > pixels - base) limit = pixels - base;
    int code = filter_make(f, origin - base, extent, a->resized, a->first, a->count, limit, 0);
    if (code != CROP_OK) return code;
    s->low = base + f->low;
    s->high = s->low + f->begin[a->count - 1] + f->length[a->count - 1];
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

/* Lines that are resized one after the other, in a ring, and the results that are made of them. */
typedef struct {
    uint8_t *result; /* the next one: a line */
    size_t row_nbytes;
    int ring, taken, made;
} results;

static void take_resized(context *ctx, results *r, const uint8_t *line) {
    resize_line(&ctx->across, line, ctx->rows.bytes + r->row_nbytes * (size_t)(r->taken++ % r->ring));
}

/* Whether there is a next result of the lines that were taken. */
static int has_result(context *ctx, const results *r) {
    const filter *down = &ctx->down;
    const uint8_t **lines = (const uint8_t **)(void *)ctx->pieces.bytes;
    if (r->made == down->count || down->begin[r->made] + down->length[r->made] > r->taken) return 0;
    for (int k = 0; k < down->length[r->made]; k++)
        lines[k] = ctx->rows.bytes + r->row_nbytes * (size_t)((down->begin[r->made] + k) % r->ring);
    resize_column(down, r->made, lines, r->result, r->row_nbytes);
    return 1;
}

/* A span of the stored image, from an upright one. */
static span as_stored(span s, int length, int is_mirrored) {
    return is_mirrored ? (span){length - s.high, length - s.low} : s;
}

/* A span, and at a scale the pixels of a cover along an axis. */
static span covering(span s, const crop_cover *cover, int axis, int scale, int length) {
    int low = cover->low[axis] / scale - 1, high = cover->high[axis] / scale + 2;
    low = low < 0 ? 0 : low, high = high > length ? length : high;
    return (span){low < s.low ? low : s.low, high > s.high ? high : s.high};
}

static int crop_image(context *ctx, const crop_shard *shards, size_t shard_count, const crop_job *job, crop_cover *cover,
                      int height, int width, int channels, uint8_t *out) {
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
    int mirrors_y = turn[0] ? turn[2] : turn[1], mirrors_x = turn[0] ? turn[1] : turn[2];
    span lines = as_stored(turn[0] ? columns : rows, stored_height, mirrors_y);
    span places = as_stored(turn[0] ? rows : columns, stored_width, mirrors_x);
    span all_lines = lines, all_places = places; /* that are decoded */
    if (cover) {
        span y = covering(rows, cover, 0, s, turn[0] ? stored_width : stored_height);
        span x = covering(columns, cover, 1, s, turn[0] ? stored_height : stored_width);
        all_lines = as_stored(turn[0] ? x : y, stored_height, mirrors_y);
        all_places = as_stored(turn[0] ? y : x, stored_width, mirrors_x);
    }

    part p = {.header = &h, .scale = s, .components = h.components};
    plan_planes(&p);
    int unit_height = h.v * 8 / s, unit_width = h.h * 8 / s, around = 0;
    for (int i = 1; i < p.components; i++)
        if (p.planes[i].is_smooth) around = 2; /* chroma is interpolated with the samples beside it */
    p.top = (all_lines.low > around ? all_lines.low - around : 0) / unit_height;
    p.left = (all_places.low > around ? all_places.low - around : 0) / unit_width;
    p.bottom = (all_lines.high + around + unit_height - 1) / unit_height;
    p.right = (all_places.high + around + unit_width - 1) / unit_width;
    if (p.bottom > h.down) p.bottom = h.down;
    if (p.right > h.across) p.right = h.across;
    int32_t kind[11] = {1, s, h.v, h.h, h.height, h.width, h.components};
    int is_made = cover && !memcmp(cover->made, kind, 7 * sizeof *kind) && cover->made[7] <= p.top &&
                  cover->made[8] <= p.left && cover->made[9] >= p.bottom && cover->made[10] >= p.right;
    if (is_made) p.top = cover->made[7], p.left = cover->made[8], p.bottom = cover->made[9], p.right = cover->made[10];
    if ((int64_t)(p.bottom - p.top) * unit_height * (p.right - p.left) * unit_width > MOST_PIXELS) return CROP_OTHER;
    if (cover) cover->made[0] = 0;
    if (!reserve_planes(ctx, &p)) return CROP_MEMORY;

    work w = {.own = ctx, .part = &p, .file = file, .find = FIND_NONE, .final = -1};
    int has_restarts = job->find == FIND_RESTARTS;
    if ((h.interval != 0) != has_restarts) return CROP_OTHER;
    if (has_restarts || job->find == FIND_ENTRIES) {
        bytes_view table = has_restarts ? shard->restarts : shard->entries;
        size_t nbytes = has_restarts ? 4 : sizeof(jpeg_entry);
        if (!has(table, job->marks, job->mark_count, nbytes)) return CROP_OTHER;
        w.find = job->find, w.row = p.top, w.marks = table.bytes + nbytes * (size_t)job->marks;
        w.mark_count = has_restarts ? ((int64_t)h.across * h.down - 1) / h.interval : entry_count(&h);
        if (job->mark_count != w.mark_count) return CROP_OTHER;
    }
    if (!is_made) {
        code = decode(&w);
        if (code != CROP_OK) return code;
        repeat_edges(&p);
    }
    if (cover) {
        kind[7] = p.top, kind[8] = p.left, kind[9] = p.bottom, kind[10] = p.right;
        memcpy(cover->made, kind, sizeof kind);
    }
    int aside = (places.low > around ? places.low - around : 0) / unit_width - p.left; /* units of other crops */
    p.left += aside;
    for (int i = 0; i < p.components; i++) {
        int samples = aside * p.planes[i].across * p.planes[i].size;
        p.planes[i].samples += samples, p.planes[i].left += samples;
    }

    /* Lines as they are stored begin where the part does; upright ones where the filter's pixels are seen. */
    int part_left = p.left * unit_width, part_width = (p.right - p.left) * unit_width;
    size_t scratch = line_scratch(part_width);
    size_t line_nbytes = (4 * ((size_t)part_width + (size_t)ctx->across.taps) + AROUND + 63) & ~(size_t)63;
    size_t row_nbytes = (4 * ((size_t)job->x.count + 1) + 31) & ~(size_t)31;
    int ring = ctx->down.taps + 1;
    if (!reserve(&ctx->lines, scratch + line_nbytes + row_nbytes) || !reserve(&ctx->rows, row_nbytes * (size_t)ring))
        return CROP_MEMORY;
    uint8_t *line = ctx->lines.bytes + scratch, *result = line + line_nbytes;
    size_t turned_nbytes = 4 * (size_t)seen_width;
    size_t behind = 4 * (size_t)ctx->across.taps; /* bytes beyond a line for which filters have weights of 0 */
    if (h.orientation > 1) {
        if (!reserve(&ctx->turned, turned_nbytes * (size_t)seen_height + behind + AROUND)) return CROP_MEMORY;
        memset(ctx->turned.bytes + turned_nbytes * (size_t)seen_height, 0, behind);
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
    int count_x = job->x.count;
    results all = {.result = result, .row_nbytes = row_nbytes, .ring = ring};
    for (int y = rows.low; y < rows.high; y++) {
        const uint8_t *from;
        if (h.orientation > 1) from = ctx->turned.bytes + turned_nbytes * (size_t)(y - rows.low);
        else {
            make_line(&p, y, columns.high - part_left, ctx->lines.bytes, line);
            memset(line + 4 * (size_t)(columns.high - part_left), 0, behind);
            from = line + 4 * (size_t)(columns.low - part_left);
        }
        for (take_resized(ctx, &all, from); has_result(ctx, &all);)
            store_line(result, count_x, channels, job->flip != 0,
                       out + ((size_t)(job->y.at + all.made++) * (size_t)width + (size_t)job->x.at) * (size_t)channels);
    }
    return all.made == job->y.count ? CROP_OK : CROP_OTHER;
}

#if defined(__AVX2__)
static void to_rgbx_of_rgb(const uint8_t *rgb, int count, uint8_t *out) {
    const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    int i = 0;
    for (; i + 6 <= count; i += 4) /* reads 4 bytes more than 4 pixels have */
        _mm_storeu_si128((__m128i *)(void *)(out + 4 * i),
                         _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(rgb + 3 * i)), spread));
    for (; i < count; i++) memcpy(out + 4 * i, rgb + 3 * i, 3), out[4 * i + 3] = 0;
}
#endif

/* Without AVX2, Pillow is as fast. */
static int resize_image(context *ctx, const uint8_t *pixels, const int32_t from[2], const resize_axis axes[2], uint8_t *out) {
#if defined(__AVX2__)
    filter *filters[2] = {&ctx->down, &ctx->across};
    for (int i = 0; i < 2; i++) {
        int code = filter_make(filters[i], axes[i].origin, axes[i].extent, axes[i].resized, 0, axes[i].resized, from[i], 1);
        if (code != CROP_OK) return code;
    }
    int width = axes[1].resized, low = ctx->down.low;
    size_t row_nbytes = (4 * ((size_t)width + 7) + 31) & ~(size_t)31, line_nbytes = 3 * (size_t)from[1];
    size_t wide = 4 * ((size_t)from[1] + (size_t)ctx->across.taps) + AROUND;
    results all = {.row_nbytes = row_nbytes, .ring = ctx->down.taps + 1};
    if (!reserve(&ctx->lines, wide + row_nbytes) || !reserve(&ctx->rows, row_nbytes * (size_t)all.ring) ||
        !reserve(&ctx->pieces, sizeof(uint8_t *) * (size_t)all.ring))
        return CROP_MEMORY;
    uint8_t *line = ctx->lines.bytes;
    all.result = line + wide;
    memset(line, 0, wide);
    for (int y = low; all.made < axes[0].resized && y < from[0]; y++) {
        to_rgbx_of_rgb(pixels + line_nbytes * (size_t)y, from[1], line);
        for (take_resized(ctx, &all, line + 4 * (size_t)ctx->across.low); has_result(ctx, &all);)
            store_line(all.result, width, 3, 0, out + 3 * (size_t)width * (size_t)all.made++);
    }
    return all.made == axes[0].resized ? CROP_OK : CROP_OTHER;
#else
    (void)ctx, (void)pixels, (void)from, (void)axes, (void)out;
    return CROP_OTHER;
#endif
}

/* --- entries -------------------------------------------------------------------------------------------------------- */

/* The sums of an image whose samples are made, over some lines at a time, which stay in the cache. 0: memory is short. */
static int sum_pixels(context *ctx, part *p, pixel_sums *out) {
    int width = p->header->width, height = p->header->height, together = 16384 / (4 * width) + 1;
    size_t channels = p->components == 1 ? 1 : 4, line_nbytes = channels * (size_t)width;
    size_t scratch = line_scratch((p->right - p->left) * 8 * p->header->h);
    if (!reserve(&ctx->lines, scratch + line_nbytes * (size_t)together + AROUND)) return 0;
    uint8_t *lines = ctx->lines.bytes + scratch;
    repeat_edges(p);
    for (int y = 0, count; y < height; y += count) {
        count = height - y < together ? height - y : together;
        for (int i = 0; i < count; i++) {
            uint8_t *line = lines + line_nbytes * (size_t)i;
            if (channels == 1) memcpy(line, p->planes[0].samples + p->planes[0].stride * (size_t)(y + i), line_nbytes);
            else
                make_line(p, y + i, width, ctx->lines.bytes, line); /* and some pixels too many, where the next one will be */
        }
        uint64_t sums[8];
        channel_sums(lines, (size_t)count * (size_t)width, channels, sums);
        for (size_t i = 0; i < channels; i++) out->sums[i] += sums[i], out->squares[i] += sums[channels + i];
    }
    out->channels = (size_t)p->components;
    return 1;
}

enum { MOST_SIDE = 65500 }; /* of libjpeg */

static int has_pixels(const jpeg_header *h) {
    return h->v <= h->h && h->width <= MOST_SIDE && h->height <= MOST_SIDE &&
           (int64_t)h->across * h->down * 64 * h->h * h->v <= MOST_PIXELS;
}

/* All pixels of a file without restart markers, as they are stored, of `nbytes` in all. Returns what became of it. Without
 * AVX2, libjpeg is faster. */
static int decode_file(context *ctx, bytes_view file, uint8_t *out, size_t nbytes) {
#if defined(__AVX2__)
    jpeg_header h;
    int code = read_jpeg_header(ctx, file, &h);
    if (code != CROP_OK) return code;
    size_t line_nbytes = (size_t)h.width * (size_t)h.components;
    if (h.interval || !has_pixels(&h) || nbytes != line_nbytes * (size_t)h.height) return CROP_OTHER;
    part p = {.header = &h, .components = h.components, .scale = 1, .bottom = h.down, .right = h.across};
    plan_planes(&p);
    size_t scratch = line_scratch(h.across * 8 * h.h);
    if (!reserve_planes(ctx, &p) || !reserve(&ctx->lines, scratch + 4 * (size_t)h.width + AROUND)) return CROP_MEMORY;
    work w = {.own = ctx, .part = &p, .file = file};
    if ((code = decode(&w)) != CROP_OK) return code;
    repeat_edges(&p);
    for (int y = 0; y < h.height; y++, out += line_nbytes) {
        if (h.components == 1) memcpy(out, p.planes[0].samples + p.planes[0].stride * (size_t)y, line_nbytes);
        else {
            make_line(&p, y, h.width, ctx->lines.bytes, ctx->lines.bytes + scratch);
            store_line(ctx->lines.bytes + scratch, h.width, 3, 0, out);
        }
    }
    return CROP_OK;
#else
    (void)ctx, (void)file, (void)out, (void)nbytes;
    return CROP_OTHER;
#endif
}

static int64_t index_file(context *ctx, bytes_view file, const jpeg_entry **entries, pixel_sums *sums) {
    jpeg_header h;
    if (sums) memset(sums, 0, sizeof *sums);
    if (file.nbytes >= 1u << 29 || read_jpeg_header(ctx, file, &h) != CROP_OK || h.interval) return -1;
    if ((int64_t)h.across * h.down > 4 * (int64_t)file.nbytes) return -1; /* before memory is taken */
    if (!reserve(&ctx->entries, (size_t)entry_count(&h) * sizeof(jpeg_entry))) return -2;
    part p = {.header = &h, .components = h.components, .scale = 1};
    plan_planes(&p);
    if (sums && has_pixels(&h)) {
        p.bottom = h.down, p.right = h.across;
        if (!reserve_planes(ctx, &p)) return -2;
    }
    work w = {.own = ctx, .part = &p, .file = file, .entry = (jpeg_entry *)(void *)ctx->entries.bytes,
              .source = (int64_t)h.start};
    int code = decode(&w);
    if (code != CROP_OK) return code == CROP_MEMORY ? -2 : -1;
    if (p.bottom && !sum_pixels(ctx, &p, sums)) return -2;
    *entries = (const jpeg_entry *)(const void *)ctx->entries.bytes;
    return entry_count(&h);
}
#endif
