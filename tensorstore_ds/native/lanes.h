/* The codes of a JPEG image, decoded into planes of samples where they are seen.
 *
 * A processor knows where a symbol begins only when it has found the one before, and waits. So two lanes are decoded in
 * turn, symbol by symbol: two lines of a part, or two intervals between restart markers. */
#ifndef TSDS_LANES_H
#define TSDS_LANES_H
#include "idct.h"
#include "jpeg.h"

#define BESIDE 32 /* bytes beside each line of a plane */

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
    int top, left, bottom, right; /* in units; without any, no samples are made */
    int scale, components;
    plane planes[3];
} part;

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

/* --- what the lanes have in common ---------------------------------------------------------------------------------- */

/* A block of a unit. */
typedef struct {
    const huffman_table *dc, *ac;
    int component, size;
    size_t stride, offset; /* of its plane; of the block, from where the unit begins there */
} unit_block;

enum { MOST_BLOCKS = 4 + 1 + 1, MOST_LANES = 2 };

typedef struct {
    context *own;
    part *part;
    bytes_view file;
    int find;
    const uint8_t *marks;   /* restarts or entries */
    int64_t mark_count;
    int row;                /* the next line of the part to begin; of a whole scan, whether it has begun */
    int64_t next, final;    /* the next interval to begin, and the last one of the line before `row` */
    jpeg_entry *entry;      /* where the next entry is written to, if they are wanted */
    int64_t seen, source;   /* how many unstuffed bytes are before it, and where in the file they end */
    int code;               /* what became of it */
    const unit_block *end;  /* of the blocks */
    unit_block blocks[MOST_BLOCKS];
} work;

/* Codes that are taken up on their own: a line of the part, an interval, or the whole scan. */
typedef struct {
    work *work;
    memory *scan;                   /* its bytes without stuffing, behind where its pieces begin */
    reader reader;
    const uint8_t *from, *stop;     /* those bytes */
    const unit_block *kind;         /* the block that is decoded */
    const unit_block *waiting_kind; /* the block before, if its samples are not made yet: else NULL */
    int16_t *waiting;
    uint8_t *out;                   /* where they will be */
    int is_flat;                    /* whether it has nothing but DC */
    int is_seen;                    /* whether the unit is in the part */
    int row, column, left;          /* the unit; how many there are until the next check, with this one */
    uint8_t *units[3];              /* where the unit begins in each plane */
    int32_t last[3];                /* the predictions of DC */
    int piece, pieces, is_last;     /* of a line: its pieces; whether the scan ends with it */
    int64_t first;                  /* of a line: its first entry */
} lane;

static void plan_blocks(work *w) {
    const part *p = w->part;
    unit_block *to = w->blocks; /* a header has no more than MOST_BLOCKS: factors of 2 at most, for one component */
    for (int i = 0; i < p->components; i++) {
        const plane *c = &p->planes[i];
        for (int y = 0; y < c->down; y++)
            for (int x = 0; x < c->across; x++)
                *to++ = (unit_block){p->header->dc[i], p->header->ac[i], i, c->size, c->stride,
                                     (size_t)(y * c->size) * c->stride + (size_t)(x * c->size)};
    }
    w->end = to;
}

static int failed(work *w, int code) {
    w->code = code;
    return 0;
}

/* --- the units of a lane: each function returns whether it has some, 0 as well if something is wrong ----------------- */

static void begin_codes(lane *l, const uint8_t *from, uint8_t *stop) {
    memset(stop, 0, PAD);
    l->from = from, l->stop = stop;
    l->reader.buffer = 0, l->reader.bits = 0, l->reader.at = from;
    memset(l->last, 0, sizeof l->last);
}

/* Bytes [begin, end) of the file. */
static int take_codes(lane *l, size_t begin, size_t end) {
    if (!reserve(l->scan, end - begin + PAD)) return failed(l->work, CROP_MEMORY);
    uint8_t *stop = unstuff(l->scan->bytes, l->work->file.bytes + begin, l->work->file.bytes + end);
    if (!stop) return failed(l->work, CROP_DAMAGED);
    begin_codes(l, l->scan->bytes, stop);
    return 1;
}

/* All units up to the last one of the part, or of the image if its entries are wanted. */
static int take_scan(lane *l) {
    work *w = l->work;
    const part *p = w->part;
    const jpeg_header *h = p->header;
    if (w->row) return 0;
    int64_t units = w->entry ? (int64_t)h->across * h->down : (int64_t)(p->bottom - 1) * h->across + p->right;
    size_t end = end_of_scan(w->file, h->start);
    if (!end || units > 4 * (int64_t)w->file.nbytes) return failed(w, CROP_DAMAGED); /* a unit has two bits at least */
    w->row = 1, l->row = l->column = 0, l->left = (int)units; /* units of 8 x 8: at most 2^26 */
    return take_codes(l, h->start, end);
}

/* A restart and an entry: copies of what another process may change, which are not read from there again. */
static uint32_t mark_at(const work *w, int64_t i) {
    uint32_t mark;
    memcpy(&mark, w->marks + 4 * i, 4);
    __asm__ volatile("" : "+r"(mark));
    return mark;
}

static jpeg_entry entry_at(const work *w, int64_t i) {
    jpeg_entry entry;
    memcpy(&entry, w->marks + (size_t)i * sizeof entry, sizeof entry);
    __asm__ volatile("" : "+m"(entry));
    return entry;
}

/* The next interval that has units of the part. */
static int take_interval(lane *l) {
    work *w = l->work;
    const part *p = w->part;
    const jpeg_header *h = p->header;
    const uint8_t *data = w->file.bytes;
    int64_t interval = h->interval, units = (int64_t)h->across * h->down;
    while (w->next > w->final) {
        if (w->row == p->bottom) return 0;
        int64_t line = (int64_t)w->row++ * h->across, first = (line + p->left) / interval;
        if (w->next < first) w->next = first;
        w->final = (line + p->right - 1) / interval;
    }
    int64_t i = w->next++, from = i * interval; /* i is mark_count at most, since the part is in the image */
    size_t begin = h->start, end = 0;
    if (i) {
        begin = mark_at(w, i - 1);
        if (begin < h->start + 2 || begin > w->file.nbytes || data[begin - 2] != 0xFF ||
            data[begin - 1] != 0xD0 + ((i - 1) & 7))
            return failed(w, CROP_DAMAGED);
    }
    if (i < w->mark_count) {
        end = mark_at(w, i);
        if (end < begin + 2 || end > w->file.nbytes || data[end - 2] != 0xFF || data[end - 1] != 0xD0 + (i & 7))
            return failed(w, CROP_DAMAGED);
        end -= 2;
    } else if (!(end = end_of_scan(w->file, begin)))
        return failed(w, CROP_DAMAGED);
    l->left = (int)(units - from < interval ? units - from : interval);
    l->row = (int)(from / h->across), l->column = (int)(from % h->across);
    return take_codes(l, begin, end);
}

static int64_t entry_count(const jpeg_header *h) {
    return (int64_t)((h->across + UNITS_PER_ENTRY - 1) / UNITS_PER_ENTRY) * h->down;
}

static int units_of_entry(const lane *l) {
    int left = l->work->part->header->across - l->column;
    return left < UNITS_PER_ENTRY ? left : UNITS_PER_ENTRY;
}

/* The next line of the part: pieces from one entry to the next, one behind the other. Their offsets come before them. */
static int take_line(lane *l) {
    work *w = l->work;
    const part *p = w->part;
    const jpeg_header *h = p->header;
    if (w->row == p->bottom) return 0;
    int per_row = (h->across + UNITS_PER_ENTRY - 1) / UNITS_PER_ENTRY, skipped = p->left / UNITS_PER_ENTRY;
    l->row = w->row++, l->column = skipped * UNITS_PER_ENTRY, l->left = units_of_entry(l);
    l->first = (int64_t)l->row * per_row + skipped; /* and pieces: mark_count at most, since the part is in the image */
    l->piece = 0, l->pieces = (p->right - 1) / UNITS_PER_ENTRY - skipped + 1;
    l->is_last = l->first + l->pieces == w->mark_count;
    jpeg_entry entry = entry_at(w, l->first);
    size_t begin = entry.bit >> 3, end;
    if (begin < h->start || begin >= w->file.nbytes) return failed(w, CROP_DAMAGED);
    if (l->is_last) {
        if (!(end = end_of_scan(w->file, begin))) return failed(w, CROP_DAMAGED);
    } else {
        end = entry_at(w, l->first + l->pieces).bit >> 3;
        if (end < begin || end + 1 >= w->file.nbytes) return failed(w, CROP_DAMAGED);
    }
    size_t before = sizeof(size_t) * (size_t)l->pieces;
    if (!reserve(l->scan, before + end - begin + 1 + PAD)) return failed(w, CROP_MEMORY);
    size_t *offsets = (size_t *)(void *)l->scan->bytes;
    uint8_t *from = l->scan->bytes + before, *at = from;
    for (int i = 1; i <= l->pieces; i++) { /* each begins where the one before ends: all have room, up to `end` */
        size_t stop = i < l->pieces ? entry_at(w, l->first + i).bit >> 3 : end;
        if (stop < begin || stop > end || !(at = unstuff(at, w->file.bytes + begin, w->file.bytes + stop)))
            return failed(w, CROP_DAMAGED);
        begin = stop, offsets[i - 1] = (size_t)(at - from);
    }
    if (!l->is_last) { /* the byte in which the last code may end */
        if (w->file.bytes[end] == 0xFF && w->file.bytes[end + 1]) return failed(w, CROP_DAMAGED);
        *at++ = w->file.bytes[end];
    }
    begin_codes(l, from, at);
    for (int i = 0; i < 3; i++) l->last[i] = entry.dc[i];
    refill(&l->reader), drop(&l->reader, entry.bit & 7);
    return 1;
}

static int ends_with_codes(const lane *l) {
    int64_t left = 8 * (int64_t)(l->stop - l->from) - bits_read(&l->reader, l->from);
    return left >= 0 && left < 8;
}

/* Behind a piece of a line: it must end where the next one begins, and with its predictions. */
static int next_piece(lane *l) {
    work *w = l->work;
    const size_t *offsets = (const size_t *)(const void *)l->scan->bytes;
    if (l->piece + 1 == l->pieces && l->is_last) return ends_with_codes(l) ? take_line(l) : failed(w, CROP_DAMAGED);
    jpeg_entry entry = entry_at(w, l->first + l->piece + 1);
    if (bits_read(&l->reader, l->from) != 8 * (int64_t)offsets[l->piece] + (entry.bit & 7)) return failed(w, CROP_DAMAGED);
    for (int i = 0; i < w->part->components; i++)
        if (l->last[i] != entry.dc[i]) return failed(w, CROP_DAMAGED);
    if (++l->piece == l->pieces) return take_line(l);
    l->left = units_of_entry(l);
    return 1;
}

/* The next entry of the image, which begins before its codes end. */
static int write_entry(lane *l) {
    work *w = l->work;
    int64_t bits = bits_read(&l->reader, l->from);
    if (l->row == w->part->header->down) return ends_with_codes(l) ? 0 : failed(w, CROP_DAMAGED);
    if (bits >= 8 * (int64_t)(l->stop - l->from)) return failed(w, CROP_DAMAGED);
    int64_t more = (bits >> 3) - w->seen;
    w->source += more + count_ff(l->from + w->seen, more), w->seen += more; /* behind each FF, a zero was stuffed */
    *w->entry++ = (jpeg_entry){(uint32_t)(w->source * 8 + (bits & 7)), /* files with entries have less than 2^29 bytes */
                               {(int16_t)l->last[0], (int16_t)l->last[1], (int16_t)l->last[2]}, 0};
    l->left = units_of_entry(l);
    return 1;
}

static int first_units(lane *l) {
    if (l->work->find == FIND_ENTRIES) return take_line(l);
    if (l->work->find == FIND_RESTARTS) return take_interval(l);
    return take_scan(l) && (!l->work->entry || write_entry(l));
}

/* At the end of units that are checked. */
static int next_units(lane *l) {
    work *w = l->work;
    if (w->find == FIND_ENTRIES) return next_piece(l);
    if (w->entry) return write_entry(l);
    int is_whole = w->find == FIND_RESTARTS || l->row == w->part->header->down; /* else more codes follow, unread */
    if (is_whole && !ends_with_codes(l)) return failed(w, CROP_DAMAGED);
    return w->find == FIND_RESTARTS && take_interval(l);
}

/* --- the blocks of a lane ------------------------------------------------------------------------------------------- */

/* Whether the unit is seen, and where its samples go. */
static void look_at_unit(lane *l) {
    const part *p = l->work->part;
    l->is_seen = l->row >= p->top && l->row < p->bottom && l->column >= p->left && l->column < p->right;
    for (int i = 0; l->is_seen && i < p->components; i++) {
        const plane *c = &p->planes[i];
        l->units[i] = c->samples + (size_t)(l->row - p->top) * (size_t)(c->down * c->size) * c->stride +
                      (size_t)(l->column - p->left) * (size_t)(c->across * c->size);
    }
}

/* Makes the samples of the block before; 0 if something is wrong. By now its coefficients, written one by one, are in the
 * cache, and can be read many at once. */
INLINE int make_samples(lane *l) {
    const unit_block *kind = l->waiting_kind;
    if (!kind) return 1;
    l->waiting_kind = NULL;
    work *w = l->work;
    if (inverse_dct(l->waiting, l->is_flat, w->part->header, kind->component, kind->size, l->out, kind->stride)) return 1;
    if (!w->entry) return failed(w, CROP_DAMAGED);
    w->part->bottom = 0; /* entries need no samples, so no more are made */
    return 1;
}

/* Begins a block, up to its first symbol of AC; 0 if something is wrong. Its codes begin before the end, and have at most
 * 64 x 27 bits: PAD is more. */
INLINE int begin_block(lane *l) {
    const unit_block *kind = l->kind;
    reader r = l->reader;
    int32_t diff, *last = &l->last[kind->component];
    clear_block(r.block);
    if (__builtin_expect(r.at - ((r.bits & 63) >> 3) > l->stop, 0)) return failed(l->work, CROP_DAMAGED);
    refill(&r);
    if (__builtin_expect(!take_dc(&r, kind->dc, &diff), 0)) return failed(l->work, CROP_DAMAGED);
    *last += diff; /* of a sound file it stays within 12 bits */
    if (__builtin_expect(*last < -INT16_MAX || *last > INT16_MAX, 0)) return failed(l->work, CROP_DAMAGED);
    r.block[0] = (int16_t)*last;
    r.place = place_of + 1, r.fast = kind->ac->fast;
    l->reader = r;
    return 1;
}

/* Where `take_symbol` has stopped: takes a slow symbol, or ends the block and begins the next one. 0: no block is left, or
 * something is wrong. */
static __attribute__((noinline)) int go_on(lane *l) {
    int k = (int)((uintptr_t)l->reader.place & 0xFF);
    if (k >= AT_SLOW) {
        if (take_slow_symbol(&l->reader, l->kind->ac)) return 1;
        k = (int)((uintptr_t)l->reader.place & 0xFF);
    }
    if (__builtin_expect(k > 64 && k < AT_END, 0)) return failed(l->work, CROP_DAMAGED);
    if (__builtin_expect(!make_samples(l), 0)) return 0;
    if (l->is_seen) {
        int16_t *ended = l->reader.block;
        l->reader.block = l->waiting, l->waiting = ended;
        l->waiting_kind = l->kind, l->out = l->units[l->kind->component] + l->kind->offset;
        l->is_flat = k == AT_END + 1;
    }
    if (++l->kind == l->work->end) {
        l->kind = l->work->blocks;
        if (++l->column == l->work->part->header->across) l->column = 0, l->row++;
        if (!--l->left && !next_units(l)) return make_samples(l), 0;
        look_at_unit(l);
    }
    return begin_block(l);
}

static int begin(lane *l) {
    l->kind = l->work->blocks;
    if (!first_units(l)) return 0;
    look_at_unit(l);
    return begin_block(l);
}

/* --- running -------------------------------------------------------------------------------------------------------- */

/* Until one of two lanes has no block left, or something is wrong with it: its number. Local readers stay in registers. */
static int run_both(lane *first, lane *second) {
    reader a = first->reader, b = second->reader;
    for (;;) {
        refill(&a), refill(&b);
#define BOTH                                   \
    if (!take_symbol(&a)) goto first_stopped;  \
    if (!take_symbol(&b)) goto second_stopped;
        BOTH BOTH BOTH BOTH
#undef BOTH
        continue;
    first_stopped:
        first->reader = a;
        if (!go_on(first)) return second->reader = b, 0;
        a = first->reader;
        continue;
    second_stopped:
        second->reader = b;
        if (!go_on(second)) return first->reader = a, 1;
        b = second->reader;
    }
}

static void run_one(lane *l) {
    do {
        reader r = l->reader;
        do refill(&r);
        while (take_symbol(&r) && take_symbol(&r) && take_symbol(&r) && take_symbol(&r));
        l->reader = r;
    } while (go_on(l));
}
_Static_assert(4 * LOOK <= 56, "four symbols from one refill to the next");

/* Decodes all that the part of `w` needs; returns what became of it. */
static int decode(work *w) {
    _Alignas(32) int16_t blocks[2 * MOST_LANES][BLOCK_ROOM];
    lane lanes[MOST_LANES];
    int is_left[MOST_LANES];
    plan_blocks(w);
    for (int i = 0; i < MOST_LANES; i++) {
        lanes[i] = (lane){.work = w, .scan = &w->own->scans[i], .waiting = blocks[2 * i + 1]};
        lanes[i].reader.block = blocks[2 * i];
        is_left[i] = w->code == CROP_OK && begin(&lanes[i]);
    }
    if (is_left[0] && is_left[1]) is_left[run_both(&lanes[0], &lanes[1])] = 0;
    for (int i = 0; i < MOST_LANES; i++)
        if (is_left[i] && w->code == CROP_OK) run_one(&lanes[i]);
    return w->code;
}
#endif
