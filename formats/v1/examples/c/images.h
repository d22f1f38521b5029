/* ---- Headers of images (6.4) ---- */

/* Bytes with numbers of either order. One that lies outside is 0, and sets `bad`. */
typedef struct {
    Bytes b;
    bool big, bad;
} In;

static u64 num(In *in, u64 at, int n) {
    u64 v = 0;
    if (at > in->b.size || (u64)n > in->b.size - at) {
        in->bad = true;
        return 0;
    }
    for (int i = 0; i < n; i++) v |= (u64)in->b.data[at + (u64)i] << 8 * (in->big ? n - 1 - i : i);
    return v;
}

static bool at_is(const In *in, u64 at, const char *magic, u64 n) {
    return at <= in->b.size && n <= in->b.size - at && !memcmp(in->b.data + at, magic, n);
}

static In inner(const In *in, u64 at, u64 size) {
    if (at > in->b.size) at = in->b.size;
    if (size > in->b.size - at) size = in->b.size - at;
    return (In){{in->b.data + at, size}, in->big, false};
}

/* A tag of the first directory of a TIFF or BigTIFF file, or of an EXIF block; `other` if it is not there. */
static u64 tiff_tag(In *in, u64 tag, u64 other) {
    in->big = at_is(in, 0, "MM", 2);
    bool wide = num(in, 2, 2) == 43;
    u64 at = wide ? num(in, 8, 8) : num(in, 4, 4), count = num(in, at, wide ? 8 : 2), step = wide ? 20 : 12;
    if (in->bad || !(at_is(in, 0, "II", 2) || in->big)) return other;
    for (at += wide ? 8 : 2; count-- && !in->bad; at += step)
        if (num(in, at, 2) == tag) {
            u64 type = num(in, at + 2, 2);
            return num(in, at + (wide ? 12 : 8), type == 3 ? 2 : type == 4 ? 4 : type == 16 ? 8 : 1);
        }
    return other;
}

static int orientation(In exif) {
    u64 o = tiff_tag(&exif, 0x0112, 1);
    return o >= 2 && o <= 8 ? (int)o : 1;
}

typedef struct {
    i64 height, width;
    int channels, orientation;
} Image;
typedef struct {
    Image image;
    u64 scan, restart, frames, precision, components, tables[2][4]; /* the places of the Huffman tables (DHT) */
    u64 factors[3], ids[3], use[3];  /* of each component: sampling factors, name, the two tables */
    bool fill, baseline, whole; /* fill bytes; SOF0 or SOF1; a first scan of all components with all coefficients */
} Jpeg;

/* Reads the segments of a JPEG file up to the data of the first scan. */
static bool read_jpeg(In *in, Jpeg *j) {
    in->big = true;
    for (u64 at = 2, size; !j->scan && !in->bad; at += size) {
        while (num(in, at, 2) == 0xffff) j->fill = true, at++;
        u64 marker = num(in, at, 2);
        size = num(in, at += 2, 2);
        if (in->bad || marker <= 0xff00 || marker == 0xffd9 || size < 2 || size > in->b.size - at) break;
        if (marker == 0xffe1 && at_is(in, at + 2, "Exif\0", 6)) {
            if (!j->image.orientation) /* the first EXIF block */
                j->image.orientation = orientation(inner(in, at + 8, size > 8 ? size - 8 : 0));
        } else if (marker >= 0xffc0 && marker <= 0xffcf && marker != 0xffc4 && marker != 0xffc8 && marker != 0xffcc) {
            if (j->frames++) continue;
            j->baseline = marker <= 0xffc1, j->precision = num(in, at + 2, 1), j->components = num(in, at + 7, 1);
            j->image.height = (i64)num(in, at + 3, 2), j->image.width = (i64)num(in, at + 5, 2);
            for (u64 i = 0; i < 3 && i < j->components; i++)
                j->ids[i] = num(in, at + 8 + 3 * i, 1), j->factors[i] = num(in, at + 9 + 3 * i, 1);
        } else if (marker == 0xffdd) j->restart = num(in, at + 2, 2);
        else if (marker == 0xffc4)
            for (u64 table = at + 2, symbols; table < at + size && !in->bad; table += 17 + symbols) {
                u64 id = num(in, table, 1);
                symbols = 0;
                for (u64 i = 1; i <= 16; i++) symbols += num(in, table + i, 1);
                if (id >> 4 < 2 && (id & 15) < 4) j->tables[id >> 4][id & 15] = table + 1;
            }
        else if (marker == 0xffda) {
            u64 n = num(in, at + 2, 1);
            j->whole = n == j->components && num(in, at + 3 + 2 * n, 3) == 0x3f00;
            for (u64 i = 0; i < n && i < 3; i++) {
                j->whole = j->whole && num(in, at + 3 + 2 * i, 1) == j->ids[i];
                j->use[i] = num(in, at + 4 + 2 * i, 1);
            }
            j->scan = at + size;
        }
    }
    u64 c = j->components;
    j->image.channels = c == 1 ? 1 : 3;
    return j->frames && (c == 1 || c == 3 || c == 4) && j->image.height > 0 && j->image.width > 0;
}

/* A decimal number of a PNM header, after white space and comments; -1 if there is none. */
static i64 pnm_number(In *in, u64 *at) {
    i64 v = -1;
    for (; *at < in->b.size; ++*at) {
        u8 c = in->b.data[*at];
        if (c == '#')
            while (*at + 1 < in->b.size && in->b.data[*at] != '\n') ++*at;
        else if (!memchr(" \t\n\v\f\r", c, 6)) break;
    }
    for (; *at < in->b.size && in->b.data[*at] >= '0' && in->b.data[*at] <= '9' && v < INT32_MAX; ++*at)
        v = (v < 0 ? 0 : v) * 10 + in->b.data[*at] - '0';
    return v;
}

/* A BMP header, of OS/2 (`core`) or Windows, and whether the palette makes the image gray. */
static bool read_bmp(In *in, Image *m) {
    bool core = num(in, 14, 4) == 12;
    u64 bits = num(in, core ? 24 : 28, 2), colors = core ? 0 : num(in, 46, 4), at = 14 + num(in, 14, 4),
        step = core ? 3 : 4;
    m->width = core ? (i64)num(in, 18, 2) : (int32_t)num(in, 18, 4);
    m->height = core ? (i64)num(in, 20, 2) : llabs((int32_t)num(in, 22, 4));
    m->channels = bits >= 1 && bits <= 8 ? 1 : 3;
    if (m->channels == 3) return true;
    if (!colors || colors > 1ull << bits) colors = 1ull << bits;
    for (u64 i = 0; i < colors; i++) {
        u64 gray = colors == 2 ? 255 * i : i;
        if (num(in, at + step * i, 3) != gray * 0x10101) m->channels = 3;
    }
    return true;
}

/* The first chunk of pixels, and the EXIF chunk. */
static bool read_webp(In *in, Image *m) {
    bool found = false;
    m->channels = 3;
    for (u64 at = 12, size; at + 8 <= in->b.size; at += 8 + size + size % 2) {
        size = num(in, at + 4, 4);
        u64 p = at + 8;
        if (at_is(in, at, "EXIF", 4) && !m->orientation)
            m->orientation =
                at_is(in, p, "Exif\0", 6) ? orientation(inner(in, p + 6, size)) : orientation(inner(in, p, size));
        if (found) continue;
        if (at_is(in, at, "VP8X", 4)) m->width = (i64)num(in, p + 4, 3) + 1, m->height = (i64)num(in, p + 7, 3) + 1;
        else if (at_is(in, at, "VP8L", 4)) {
            u64 v = num(in, p + 1, 4);
            if (num(in, p, 1) != 0x2f) return false;
            m->width = (v & 0x3fff) + 1, m->height = (v >> 14 & 0x3fff) + 1;
        } else if (at_is(in, at, "VP8 ", 4)) {
            if (num(in, p, 1) & 1 || !at_is(in, p + 3, "\x9d\x01\x2a", 3)) return false;
            m->width = num(in, p + 6, 2) & 0x3fff, m->height = num(in, p + 8, 2) & 0x3fff;
        } else return false;
        found = true;
    }
    return found;
}

/* The codestream's header, or that of the file around it: `ihdr` and `pclr` in `jp2h`. */
static bool read_jpeg2000(In *in, Image *m) {
    in->big = true;
    if (at_is(in, 0, "\xff\x4f\xff\x51", 4)) {
        m->width = (i64)(num(in, 8, 4) - num(in, 16, 4)), m->height = (i64)(num(in, 12, 4) - num(in, 20, 4));
        m->channels = num(in, 40, 2) < 3 ? 1 : 3;
        return true;
    }
    for (u64 at = 0, size, head; !in->bad && at + 8 <= in->b.size; at += size) {
        size = num(in, at, 4), head = 8;
        if (size == 1) size = num(in, at + 8, 8), head = 16;
        if (size < head || size > in->b.size - at) return m->channels > 0;
        if (at_is(in, at + 4, "jp2h", 4)) size = head; /* go into it */
        else if (at_is(in, at + 4, "ihdr", 4)) {
            m->height = (i64)num(in, at + 8, 4), m->width = (i64)num(in, at + 12, 4);
            m->channels = num(in, at + 16, 2) < 3 ? 1 : 3;
        } else if (at_is(in, at + 4, "pclr", 4)) m->channels = 3;
    }
    return m->channels > 0;
}

/* What is wrong with a file of an encoding, or NULL and its size, channels and orientation. */
static const char *read_image(In *in, const Json *encoding, Image *m, Jpeg *j) {
    bool source = is(encoding, "source"), smart = is(encoding, "smart"), found = true;
    u64 at = 2;
    if (at_is(in, 0, "\xff\xd8\xff", 3)) found = read_jpeg(in, j), *m = j->image;
    else if (in->b.size > 2 && at_is(in, 0, "P", 1) && memchr("123456", in->b.data[1], 6) &&
             memchr(" \t\n\v\f\r", in->b.data[2], 6) &&
             (source || (smart && memchr("56", in->b.data[1], 2) && in->b.data[2] == '\n'))) {
        m->channels = in->b.data[1] % 3 ? 1 : 3;
        m->width = pnm_number(in, &at), m->height = pnm_number(in, &at);
        char header[64];
        int n = snprintf(header, sizeof header, "P%c\n%lld %lld\n255\n", in->b.data[1], (long long)m->width,
                         (long long)m->height);
        if (smart)
            found = at_is(in, 0, header, (u64)n) &&
                    in->b.size == (u64)n + (u128)m->height * (u64)m->width * (u64)m->channels;
    } else if (!source) return "not-an-image";
    else if (at_is(in, 0, "\x89PNG\r\n\x1a\n", 8)) {
        in->big = true;
        found = at_is(in, 12, "IHDR", 4);
        m->width = (i64)num(in, 16, 4), m->height = (i64)num(in, 20, 4), m->channels = num(in, 25, 1) & 3 ? 3 : 1;
        for (at = 8; at + 8 <= in->b.size; at += 12 + num(in, at, 4))
            if (at_is(in, at + 4, "eXIf", 4)) m->orientation = orientation(inner(in, at + 8, num(in, at, 4)));
    } else if (at_is(in, 0, "BM", 2)) found = read_bmp(in, m);
    else if (at_is(in, 0, "GIF87a", 6) || at_is(in, 0, "GIF89a", 6))
        m->width = (i64)num(in, 6, 2), m->height = (i64)num(in, 8, 2), m->channels = 3;
    else if (at_is(in, 0, "II*\0", 4) || at_is(in, 0, "MM\0*", 4) || at_is(in, 0, "II+\0", 4) ||
             at_is(in, 0, "MM\0+", 4)) {
        m->width = (i64)tiff_tag(in, 256, 0), m->height = (i64)tiff_tag(in, 257, 0);
        m->channels = tiff_tag(in, 262, 2) < 2 ? 1 : 3, m->orientation = orientation(*in);
    } else if (at_is(in, 0, "RIFF", 4) && at_is(in, 8, "WEBP", 4)) found = read_webp(in, m);
    else if (at_is(in, 0, "\0\0\0\x0cjP  \r\n\x87\n", 12) || at_is(in, 0, "\xff\x4f\xff\x51", 4))
        found = read_jpeg2000(in, m);
    else return "not-an-image";
    bool jpeg = at_is(in, 0, "\xff\xd8\xff", 3), sound = found && m->width > 0 && m->height > 0;
    return sound && (jpeg || !in->bad) ? NULL : "truncated-image";
}

/* Whether the restart markers of the first scan, up to EOI, are FF D0 to FF D7 in turn, and end where they should. */
static bool has_restarts(const Bytes b, u64 at, const u32 *restarts, u64 count) {
    u64 n = 0;
    for (; at && at + 1 < b.size; at++) {
        if (b.data[at] != 0xff || !b.data[at + 1]) continue;
        if (b.data[at + 1] == 0xd9) return n == count;
        if (n == count || b.data[at + 1] != 0xd0 + n % 8 || at + 2 != restarts[n]) return false;
        n++;
    }
    return false;
}

/* ---- Entries of JPEG files (6.7) ---- */

typedef struct {
    const u8 *data;
    u64 at, end;
    int bit;
    bool bad;
} Bits; /* the place of the next bit, never a stuffed 00 */

static int next_bit(Bits *b) {
    if (b->at >= b->end) {
        b->bad = true;
        return 0;
    }
    int bit = b->data[b->at] >> (7 - b->bit) & 1;
    if (++b->bit == 8) b->bit = 0, b->at += b->data[b->at] == 0xff ? 2 : 1;
    return bit;
}

/* The next symbol of a Huffman table: 16 counts, then the symbols by rising codes. */
static int symbol(Bits *b, const In *in, u64 table) {
    u32 code = 0, first = 0, index = 0;
    for (u64 i = 0; table && i < 16 && !b->bad; i++, first <<= 1) {
        u32 count = table + i < in->b.size ? in->b.data[table + i] : 0;
        code = code << 1 | (u32)next_bit(b);
        if (code - first < count && table + 16 + index + (code - first) < in->b.size)
            return in->b.data[table + 16 + index + (code - first)];
        index += count, first += count;
    }
    b->bad = true;
    return 0;
}

/* Decodes the coefficients of a block and adds to the prediction. */
static void walk_block(Bits *b, const In *in, const Jpeg *j, u64 use, i64 *prediction) {
    int size = symbol(b, in, j->tables[0][use >> 4 & 3]);
    i64 difference = 0;
    if (size > 15) b->bad = true;
    for (int i = 0; i < size && !b->bad; i++) difference = difference * 2 + next_bit(b);
    if (size && !b->bad && difference < 1 << (size - 1)) difference -= (1 << size) - 1;
    *prediction += difference;
    if (*prediction != (int16_t)*prediction) b->bad = true;
    for (int k = 1; k < 64 && !b->bad; k++) {
        int s = symbol(b, in, j->tables[1][use & 3]);
        if (!(s & 15) && s != 0xf0) break;
        k += s >> 4;
        if (k > 63) b->bad = true;
        for (int i = 0; i < (s & 15); i++) next_bit(b);
    }
}

/* Whether the entries of a file are right. With `decode`, its Huffman codes are walked through. */
static bool has_entries(In *in, const Jpeg *j, const u32 (*entries)[3], u64 count, bool decode) {
    u64 c = j->components, end = j->scan, h = j->factors[0] >> 4, v = j->factors[0] & 15;
    if (j->fill || !j->baseline || j->frames != 1 || j->precision != 8 || !j->whole || j->restart || !j->scan)
        return false;
    if (in->b.size >= 1u << 29 || (c != 1 && c != 3)) return false;
    if (c == 1) h = v = 1;
    else if (h < 1 || h > 2 || v < 1 || v > 2 || j->factors[1] != 0x11 || j->factors[2] != 0x11) return false;
    while (end + 1 < in->b.size && (in->b.data[end] != 0xff || !in->b.data[end + 1])) end++;
    if (end + 1 >= in->b.size || in->b.data[end + 1] != 0xd9) return false;
    u64 rows = ((u64)j->image.height + 8 * v - 1) / (8 * v), columns = ((u64)j->image.width + 8 * h - 1) / (8 * h);
    if (count != rows * ((columns + 3) / 4) || entries[0][0] != 8 * j->scan || entries[0][1] || entries[0][2])
        return false;
    for (u64 i = 0; i < count; i++) {
        u64 at = entries[i][0] / 8;
        if (at >= end || (i && entries[i][0] <= entries[i - 1][0]) || entries[i][2] >> 16) return false;
        if ((c == 1 && (entries[i][1] >> 16 || entries[i][2])) || (!in->b.data[at] && in->b.data[at - 1] == 0xff))
            return false;
    }
    Bits b = {in->b.data, j->scan, end, 0, false};
    i64 prediction[3] = {0, 0, 0};
    for (u64 mcu = 0; decode && mcu < rows * columns && !b.bad; mcu++) {
        const u32 *e = entries[mcu / columns * ((columns + 3) / 4) + mcu % columns / 4];
        bool here = e[0] == 8 * b.at + (u64)b.bit && e[1] == ((u16)prediction[0] | (u32)(u16)prediction[1] << 16) &&
                    e[2] == (u16)prediction[2];
        if (mcu % columns % 4 == 0 && !here) return false;
        for (u64 i = 0; i < c; i++)
            for (u64 n = i ? 1 : h * v; n; n--) walk_block(&b, in, j, j->use[i], &prediction[i]);
    }
    if (b.bit) b.at += b.data[b.at] == 0xff ? 2 : 1;
    return !decode || (!b.bad && b.at == end);
}
