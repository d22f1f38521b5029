/* Baseline JPEG (ITU-T T.81): the header, and Huffman decoding from any place where the state is known.
 *
 * Nothing of a file is trusted. Whatever is unusual is left to Python: it decides what is damaged and what is not. */
#ifndef TSDS_JPEG_H
#define TSDS_JPEG_H
#include "context.h"

#define PAD 256 /* zeros behind the codes: a block that begins before them reads 64 x 27 bits at most, and 8 bytes at once */

typedef struct {
    int height, width, components, interval, orientation;
    size_t start;             /* of the codes */
    int h, v;                 /* factors of component 0: the others have 1 x 1 */
    int across, down;         /* units */
    uint16_t quantizers[3][64]; /* by component, each at the PLACE of its coefficient */
    int has_wide_quantizers;    /* of more than 8 bits */
    int has_large_quantizers;   /* larger than 128, as of no quality from 48 on */
    const huffman_table *dc[3], *ac[3];
} jpeg_header;

/* Where the coefficient of row n / 8 and column n % 8 lies in the memory of a block. For AVX2, rows 0 and 4, 2 and 6, 7
 * and 1, 3 and 5 lie in pairs, with columns in the order 0, 2, 7, 3, 4, 6, 1, 5: as the inverse DCT multiplies them. */
#if defined(__AVX2__)
#define PLACE(n) ((0x2011310130102100u >> (n) / 8 * 8 & 255) + (0x040A0E0806020C00u >> (n) % 8 * 8 & 255))
#else
#define PLACE(n) (n)
#endif
/* The coefficients in the order of the file, as numbers of rows of eight. */
#define ZIGZAG(P)                                                                                                  \
    P(0), P(1), P(8), P(16), P(9), P(2), P(3), P(10), P(17), P(24), P(32), P(25), P(18), P(11), P(4), P(5),         \
        P(12), P(19), P(26), P(33), P(40), P(48), P(41), P(34), P(27), P(20), P(13), P(6), P(7), P(14), P(21),      \
        P(28), P(35), P(42), P(49), P(56), P(57), P(50), P(43), P(36), P(29), P(22), P(15), P(23), P(30), P(37),    \
        P(44), P(51), P(58), P(59), P(52), P(45), P(38), P(31), P(39), P(46), P(53), P(60), P(61), P(54), P(47),    \
        P(55), P(62), P(63)
#define P(n) (uint8_t)PLACE(n)
#define NO_PLACE 64 /* behind a block: what is written there is not read */
#define NONE_4 NO_PLACE, NO_PLACE, NO_PLACE, NO_PLACE
#define NONE_16 NONE_4, NONE_4, NONE_4, NONE_4
#define NONE_64 NONE_16, NONE_16, NONE_16, NONE_16
/* In the order of the file, in zigzag. At a multiple of 256, so that the low byte of a pointer into it is the number of
 * the coefficient. Whatever AT_END or AT_SLOW is added to, and a run beyond the last coefficient, leads to NO_PLACE. */
static const _Alignas(256) uint8_t place_of[256] = {ZIGZAG(P), NONE_64, NONE_64, NONE_64};
#undef P

static void fill_entries(uint32_t *to, int count, uint32_t entry) {
    for (int i = 0; i < count; i++) to[i] = entry;
}

static int is_table(huffman_table *t, const uint8_t *lengths, const uint8_t *symbols, int is_dc) {
    uint8_t key[16 + 256] = {0};
    int count = 0;
    for (int i = 0; i < 16; i++) count += lengths[i];
    if (count > 256) return 0;
    memcpy(key, lengths, 16), memcpy(key + 16, symbols, (size_t)count);
    if (t->is_ready && !memcmp(key, t->key, sizeof key)) return 1;
    t->is_ready = 0;
    fill_entries(t->fast, 1 << LOOK, AT_SLOW << 8); /* what no code below begins with */
    memcpy(t->symbols, key + 16, 256);
    int at = 0;
    uint32_t code = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        t->delta[length] = at - (int32_t)code;
        for (int i = 0; i < lengths[length - 1]; i++, at++, code++) {
            if (code + 1 >= (1u << length)) return 0; /* nor may a code be all ones */
            int symbol = symbols[at], size = is_dc ? symbol : symbol & 15, rest = LOOK - length;
            if (size > (is_dc ? 11 : 10)) return 0; /* more than 8 bits a sample have */
            if (rest < 0) continue;
            uint32_t *to = t->fast + (code << rest); /* 1 << rest of them, as code < 1 << length */
            uint32_t by = size || symbol == 0xF0 ? (uint32_t)(symbol >> 4) + 1 : AT_END; /* as DC, they do not matter */
            if (size > rest) {
                fill_entries(to, 1 << rest, (uint32_t)symbol << 24 | (uint32_t)length << 16 | AT_SLOW << 8);
                continue;
            }
            for (int k = 0, each = 1 << (rest - size); k < 1 << size; k++, to += each) {
                int value = size && k < 1 << (size - 1) ? k + 1 - (1 << size) : k;
                fill_entries(to, each, (uint32_t)value << 16 | by << 8 | (uint32_t)(length + size));
            }
        }
        t->limit[length] = (int32_t)(code << (16 - length));
    }
    memcpy(t->key, key, sizeof key);
    return t->is_ready = 1;
}

static inline uint32_t tiff_number(const uint8_t *at, int nbytes, int is_big) {
    uint32_t n = 0;
    for (int i = 0; i < nbytes; i++) n |= (uint32_t)at[i] << 8 * (is_big ? nbytes - 1 - i : i);
    return n;
}

/* The orientation in an EXIF segment; 0 if there is none, -1 if it is unusual. */
static int exif_orientation(const uint8_t *s, size_t nbytes) {
    if (nbytes < 8) return -1;
    int is_big = s[0] == 'M';
    if (memcmp(s, is_big ? "MM\0*" : "II*\0", 4)) return -1;
    uint32_t at = tiff_number(s + 4, 4, is_big);
    if (at > nbytes - 2) return -1;
    uint32_t count = tiff_number(s + at, 2, is_big);
    if (12 * (uint64_t)count > nbytes - 2 - at) return -1;
    int found = 0;
    for (const uint8_t *tag = s + at + 2; count--; tag += 12) {
        if (tiff_number(tag, 2, is_big) != 0x0112) continue;
        uint32_t value = tiff_number(tag + 8, 2, is_big);
        if (found || tiff_number(tag + 2, 2, is_big) != 3 || tiff_number(tag + 4, 4, is_big) != 1) return -1;
        found = value < 1 || value > 8 ? 1 : (int)value;
    }
    return found;
}

/* Up to the codes; 0 if there are none. */
static size_t header_nbytes(bytes_view file) {
    const uint8_t *data = file.bytes;
    if (file.nbytes < 4 || file.nbytes > 0x7FFFFFFF || data[0] != 0xFF || data[1] != 0xD8) return 0;
    for (size_t at = 2; file.nbytes - at >= 4 && data[at] == 0xFF;) {
        int is_last = data[at + 1] == 0xDA;
        size_t length = (size_t)(data[at + 2] << 8 | data[at + 3]);
        if (length < 2 || length > file.nbytes - at - 2) return 0;
        at += 2 + length;
        if (is_last) return at;
    }
    return 0;
}

/* What became of it. The file may be a map that another process changes, so the header is judged in a copy. */
static int read_jpeg_header(context *c, bytes_view file, jpeg_header *h) {
    size_t at = 2, nbytes = header_nbytes(file);
    if (!nbytes) return CROP_OTHER;
    if (!reserve(&c->header, nbytes)) return CROP_MEMORY;
    memcpy(c->header.bytes, file.bytes, nbytes);
    __asm__ volatile("" : : : "memory"); /* nothing of it is read from the file again */
    const uint8_t *data = c->header.bytes, *frame = NULL, *scan = NULL;
    const uint8_t *tables[2][4] = {{0}}, *quantizers[4] = {0};
    int exifs = 0, adobe = -1, orientation = 0, has_jfif = 0;
    memset(h, 0, sizeof *h);
    while (!scan) {
        if (nbytes - at < 4 || data[at] != 0xFF) return CROP_OTHER;
        int marker = data[at + 1];
        size_t length = (size_t)(data[at + 2] << 8 | data[at + 3]);
        if (length < 2 || length > nbytes - at - 2) return CROP_OTHER;
        const uint8_t *s = data + at + 4, *end = s + length - 2;
        if (marker == 0xC0 || marker == 0xC1) {
            if (frame || length < 8 || s[0] != 8 || length != 8 + 3 * (size_t)s[5]) return CROP_OTHER;
            frame = s;
        } else if (marker == 0xC4) {
            while (s < end) {
                if (end - s < 17 || s[0] & 0xEC) return CROP_OTHER;
                int count = 0;
                for (int i = 1; i <= 16; i++) count += s[i];
                if (count > 256 || end - s < 17 + count) return CROP_OTHER;
                tables[s[0] >> 4][s[0] & 3] = s + 1;
                s += 17 + count;
            }
        } else if (marker == 0xDB) {
            while (s < end) {
                int is_wide = s[0] >> 4;
                if (is_wide > 1 || (s[0] & 15) > 3 || end - s < 65 + 64 * is_wide) return CROP_OTHER;
                quantizers[s[0] & 15] = s;
                s += 65 + 64 * is_wide;
            }
        } else if (marker == 0xDD) {
            if (length != 4) return CROP_OTHER;
            h->interval = s[0] << 8 | s[1];
        } else if (marker == 0xDA) scan = s;
        else if (marker == 0xE1) {
            if (length >= 8 && !memcmp(s, "Exif\0\0", 6)) {
                if (exifs++) return CROP_OTHER;
                if ((orientation = exif_orientation(s + 6, (size_t)(end - s) - 6)) < 0) return CROP_OTHER;
            }
        } else if (marker == 0xE0) {
            if (length >= 16 && !memcmp(s, "JFIF\0", 5)) has_jfif = 1;
        } else if (marker == 0xEE) {
            if (length >= 14 && !memcmp(s, "Adobe", 5)) adobe = s[11];
        } else if (marker != 0xFE && (marker < 0xE2 || marker > 0xEF))
            return CROP_OTHER; /* progressive, lossless, arithmetic, numbers of lines */
        if (scan && length < 3) return CROP_OTHER;
        if (scan && (!frame || scan[0] != frame[5] || length != 6 + 2 * (size_t)scan[0])) return CROP_OTHER;
        at += 2 + length;
    }
    h->orientation = orientation ? orientation : 1;
    h->height = frame[1] << 8 | frame[2], h->width = frame[3] << 8 | frame[4], h->components = frame[5];
    h->start = at;
    if (!h->height || !h->width || (h->components != 1 && h->components != 3)) return CROP_OTHER;
    const uint8_t *last = scan + 1 + 2 * h->components;
    if (last[0] != 0 || last[1] != 63 || last[2] != 0) return CROP_OTHER;
    for (int i = 0; i < h->components; i++) {
        const uint8_t *component = frame + 6 + 3 * i, *chosen = scan + 1 + 2 * i;
        int across = component[1] >> 4, down = component[1] & 15, dc = chosen[1] >> 4, ac = chosen[1] & 15;
        if (component[0] != chosen[0] || component[2] > 3 || dc > 3 || ac > 3) return CROP_OTHER;
        if (across < 1 || across > 4 || down < 1 || down > 4) return CROP_OTHER;
        if (i == 0) h->h = across, h->v = down;
        else if (across != 1 || down != 1)
            return CROP_OTHER;
        const uint8_t *quantizer = quantizers[component[2]], *dcs = tables[0][dc], *acs = tables[1][ac];
        if (!quantizer || !dcs || !acs) return CROP_OTHER;
        int is_wide = quantizer[0] >> 4;
        for (int k = 0; k < 64; k++)
            h->quantizers[i][place_of[k]] =
                (uint16_t)(is_wide ? quantizer[1 + 2 * k] << 8 | quantizer[2 + 2 * k] : quantizer[1 + k]);
        for (int k = 0; k < 64; k++) h->has_large_quantizers |= h->quantizers[i][k] > 128;
        h->has_wide_quantizers |= is_wide;
        if (!is_table(&c->dc[dc], dcs, dcs + 16, 1) || !is_table(&c->ac[ac], acs, acs + 16, 0)) return CROP_OTHER;
        h->dc[i] = &c->dc[dc], h->ac[i] = &c->ac[ac];
    }
    if (h->components == 1) h->h = h->v = 1; /* each block is a unit, whatever its factors say */
    else {
        const uint8_t *ids = frame + 6;
        int is_rgb = ids[0] == 'R' && ids[3] == 'G' && ids[6] == 'B';
        if (ids[0] == ids[3] || ids[0] == ids[6] || ids[3] == ids[6]) return CROP_OTHER;
        if (has_jfif ? 0 : adobe >= 0 ? adobe != 1 : is_rgb) return CROP_OTHER;
        if (h->h < 1 || h->h > 2 || h->v < 1 || h->v > 2) return CROP_OTHER;
    }
    h->across = (h->width + 8 * h->h - 1) / (8 * h->h);
    h->down = (h->height + 8 * h->v - 1) / (8 * h->v);
    return CROP_OK;
}

/* --- Huffman codes ------------------------------------------------------------------------------------------------- */

#define INLINE static inline __attribute__((always_inline))

/* Where codes are read, and where the coefficients of their block go. */
typedef struct {
    uint64_t buffer; /* the next bits, left-justified */
    uint32_t bits;   /* how many: the low 6 bits of this number, the others mean nothing */
    const uint8_t *at; /* the bytes that follow */
    const uint8_t *place; /* in place_of, behind the last coefficient */
    const uint32_t *fast; /* of the table of the block */
    int16_t *block;
} reader;

/* To 56 bits or more, of which at most 63 are counted: bytes that are in the buffer in part are read again. */
INLINE void refill(reader *r) {
    uint64_t next;
    uint32_t bits = r->bits & 63;
    memcpy(&next, r->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    next = __builtin_bswap64(next);
#endif
    r->buffer |= next >> bits;
    r->at += (63 - bits) >> 3;
    r->bits = bits | 56;
}

INLINE void drop(reader *r, int n) {
    r->buffer <<= n & 63; /* processors take the low bits of a count anyway */
    r->bits -= (uint32_t)n;
}

static inline int64_t bits_read(const reader *r, const uint8_t *from) { return 8 * (int64_t)(r->at - from) - (r->bits & 63); }

/* The value of 0 to 15 bits that are next. */
static inline int32_t take_value(reader *r, int size) {
    if (!size) return 0;
    int32_t value = (int32_t)(r->buffer >> (64 - size));
    drop(r, size);
    return value < 1 << (size - 1) ? value + 1 - (1 << size) : value;
}

/* The symbol of a code whose entry is slow; -1 if there is no such code. */
static int take_slow_code(reader *r, const huffman_table *t) {
    uint32_t entry = t->fast[r->buffer >> (64 - LOOK)];
    int length = entry >> 16 & 0xFF, symbol = (int)(entry >> 24);
    if (!length) {
        int32_t top = (int32_t)(r->buffer >> 48);
        for (length = LOOK + 1; length <= 16 && top >= t->limit[length]; length++) {}
        if (length > 16) return -1;
        symbol = t->symbols[(uint8_t)((top >> (16 - length)) + t->delta[length])];
    }
    drop(r, length);
    return symbol;
}

/* A difference of DC into *diff; 0 if its code is broken. Takes at most 16 + 11 bits. */
static inline int take_dc(reader *r, const huffman_table *t, int32_t *diff) {
    uint32_t entry = t->fast[r->buffer >> (64 - LOOK)];
    if (__builtin_expect(entry & 0xFF, 1)) {
        drop(r, entry & 0xFF);
        *diff = (int32_t)entry >> 16;
        return 1;
    }
    int size = take_slow_code(r, t);
    *diff = size < 0 ? 0 : take_value(r, size);
    return size >= 0;
}

/* The next symbol of AC and its value, of which LOOK bits are in the buffer. 0: the block has ended, or the entry is
 * slow, and then no bit is taken. The test is that of `place`: it began below 64 and has moved by at most AT_SLOW, so it
 * is in the table, and 64 or more if AT_END or AT_SLOW were added, or the block is full. */
INLINE int take_symbol(reader *r) {
    uint32_t entry = r->fast[r->buffer >> (64 - LOOK)];
    r->buffer <<= entry & 63;
    r->bits -= entry;
    r->place += entry >> 8 & 0xFF;
    r->block[r->place[-1]] = (int16_t)(entry >> 16);
    return !((uintptr_t)r->place & 0xC0);
}

/* A symbol at which `take_symbol` found a slow entry, and its value, of at most 16 + 10 bits. Refills before. Whether the
 * block goes on; otherwise `place` is as `take_symbol` leaves it, or beyond the block if the code is broken. */
static int take_slow_symbol(reader *r, const huffman_table *t) {
    refill(r);
    int symbol = take_slow_code(r, t), size = symbol & 15;
    r->place -= AT_SLOW;
    if (symbol < 0) r->place += 64; /* from 1 on: beyond 64, and below AT_END */
    else
        r->place += size || symbol == 0xF0 ? (symbol >> 4) + 1 : AT_END;
    if (symbol >= 0) r->block[r->place[-1]] = (int16_t)take_value(r, size);
    return !((uintptr_t)r->place & 0xC0);
}

/* Bytes [from, stop) without the zeros that are stuffed behind each FF, to `to`; where that ends, or NULL if there is
 * a marker among them, or half of a pair at the end. */
static inline uint8_t *unstuff(uint8_t *to, const uint8_t *from, const uint8_t *stop) {
    while (from < stop) {
        const uint8_t *found = memchr(from, 0xFF, (size_t)(stop - from));
        size_t n = (size_t)((found ? found + 1 : stop) - from);
        memcpy(to, from, n);
        to += n, from += n;
        if (found) {
            if (from == stop || *from) return NULL;
            from++;
        }
    }
    return to;
}

/* How many of `count` bytes are FF. */
static inline int64_t count_ff(const uint8_t *from, int64_t count) {
    const uint64_t ones = UINT64_MAX / 255;
    int64_t found = 0;
    for (; count >= 8; count -= 8, from += 8) {
        uint64_t x;
        memcpy(&x, from, 8);
        x &= (x & 127 * ones) + ones; /* the high bit of a byte: it was set, and so were the others */
        found += (int64_t)((x >> 7 & ones) * ones >> 56); /* their sum in the highest byte */
    }
    while (count-- > 0) found += *from++ == 0xFF;
    return found;
}

/* Where the first marker from `at` on is: the end of the scan. 0 if it is not the end of the image. */
static size_t end_of_scan(bytes_view file, size_t at) {
    while (at < file.nbytes) {
        const uint8_t *found = memchr(file.bytes + at, 0xFF, file.nbytes - at);
        if (!found) return 0;
        at = (size_t)(found - file.bytes);
        if (at + 1 >= file.nbytes) return 0;
        if (file.bytes[at + 1]) return file.bytes[at + 1] == 0xD9 ? at : 0;
        at += 2;
    }
    return 0;
}
#endif
