/* ---- Arrays (5) and shards (7.2) ---- */

typedef struct Array {
    struct Array *next;
    const Json *field, *dtype, *shape;  /* no dtype: offsets, int64 () */
    const char *name;                   /* in its field, such as "boxes", "text/items" or "" */
    char path[PATH];                    /* in STORE */
    u64 n, total, row_nbytes, item, size; /* total: what offsets end at; size: listed bytes of the data file */
    u64 chunk_rows, chunks, chunk_nbytes;
    bool zarr;
    const u8 *data;
    Bytes file;
} Array;
typedef struct {
    const Json *split, *shard, *files;
    char folder[PATH];
    Array *arrays;
    u64 count;
    u128 nbytes;
} Shard;
typedef struct {
    char *path;
    u64 size;
    char sha256[65];
} Listed;
static Listed *listed; /* all files but the root's zarr.json */
static u64 listed_count;

static void list_file(const char *folder, const char *path, u64 size, const char *digest) {
    if (!(listed_count & (listed_count - 1))) { /* full: a power of two */
        listed = realloc(listed, (listed_count ? listed_count : 1) * 2 * sizeof *listed);
        if (!listed) refuse("too-large", path);
    }
    Listed *file = &listed[listed_count++];
    size_t room = strlen(folder) + strlen(path) + 2;
    file->path = malloc(room);
    if (!file->path) refuse("too-large", path);
    snprintf(file->path, room, "%s%s%s", folder, *folder ? "/" : "", path);
    file->size = size;
    memcpy(file->sha256, digest, 65);
}

static u128 ceil_div(u128 a, u128 b) { return (a + b - 1) / b; }

/* One more array of a shard: its geometry (5.2), and the bounds of its listed size (5.4). */
static void add_array(Shard *s, const Json *field, const Json *spec, const char *value, const char *part, u64 n,
                      u64 total) {
    Array *a = take(sizeof *a);
    const Json *layout = get(spec, "layout");
    char *name = take(PATH), path[PATH], file[PATH];
    snprintf(name, PATH, "%s%s%s", value, *value && *part ? "/" : "", part);
    snprintf(path, PATH, "%s%s%s", field->name, *name ? "/" : "", name);
    snprintf(a->path, PATH, "%.300s/%.200s", s->folder, path);
    a->name = name, a->field = field, a->n = n, a->total = total;
    a->dtype = get(spec, "dtype"), a->shape = get(spec, "shape");
    a->item = spec ? item_nbytes(a->dtype) : 8, a->row_nbytes = spec ? row_nbytes(spec) : 8;
    a->zarr = is(layout ? layout : get(manifest, "layout"), "zarr");
    u128 size = (u64)integer(get(manifest, "chunk_size")), nbytes = (u128)n * a->row_nbytes;
    u128 wanted = (nbytes + size / 2) / size, low = wanted < 1 ? 1 : wanted < n ? wanted : n;
    a->chunk_rows = n ? (u64)ceil_div(n, low) : 1;
    a->chunks = (u64)ceil_div(n, a->chunk_rows);
    u128 chunk = (u128)a->chunk_rows * a->row_nbytes, tail = 20 * (u128)a->chunks + 4, least = chunk, most = chunk;
    a->chunk_nbytes = chunk < UINT64_MAX ? (u64)chunk : UINT64_MAX;
    for (Array **link = &s->arrays;; link = &(*link)->next)
        if (!*link) {
            *link = a;
            break;
        }
    for (int data = 0; data < (n ? 2 : 1); data++) {
        size_t used = (size_t)snprintf(file, PATH, "%.220s/%s", path, data ? "c" : "zarr.json");
        for (u64 i = 0; data && i < 1 + (a->shape ? a->shape->count : 0); i++)
            used += (size_t)sprintf(file + used, "/0");
        const Json *entry = get(s->files, file);
        need(entry != NULL, a->path);
        s->count++;
        if (data) a->size = (u64)integer(get(entry, "size"));
    }
    if (a->zarr) least = 6 + 4 * ceil_div(chunk, 131072), most = chunk + chunk / 128 + 1024;
    if (n && (a->size < a->chunks * least + tail || a->size > a->chunks * most + tail)) refuse("file-size", a->path);
}

/* The arrays of a value: one, or the two of a ragged value. */
static void add_value(Shard *s, const Json *field, const Json *value, u64 n) {
    char key[PATH];
    snprintf(key, PATH, "%s/%s", field->name, value->name);
    bool ragged = is_kind(get(value, "ragged"), TRUE);
    u64 items = ragged ? (u64)integer(get(get(s->shard, "lengths"), key)) : n;
    if (ragged) add_array(s, field, NULL, value->name, "offsets", n + 1, items);
    add_array(s, field, value, value->name, ragged ? "items" : "", items, 0);
    s->count += ragged; /* the group's zarr.json */
    snprintf(key, PATH, "%s/%s/zarr.json", field->name, value->name);
    need(get(s->files, key) != NULL, key);
}

/* Whether a listed file is there, of its size, with no link on its path. skipped.jsonl may be longer (3). */
static void check_listed(const Listed *file) {
    Block *mark = blocks;
    Bytes b = read_file(file->path);
    bool longer = !strcmp(file->path, "skipped.jsonl") && b.size > file->size;
    if (b.size != file->size && !longer) refuse("file-size", file->path);
    release(mark);
}

/* shard (7.2): reads its list of files, and compares it with the arrays that the manifest implies. */
static Shard load_shard(const Json *split, u64 place, bool first) {
    Shard s = {.split = split, .shard = get(split, "shards")->items[place]};
    char path[PATH];
    snprintf(s.folder, PATH, "%s/%05llu", split->name, (unsigned long long)number_of(split, place));
    snprintf(path, PATH, "%.300s/zarr.json", s.folder);
    Bytes b = read_file(path);
    if (!is(get(s.shard, "sha256"), sha256_hex(b))) refuse("checksum", path);
    s.files = get(get(get(parse(b, 64 * MIB), "attributes"), "tsds"), "files");
    need(is_kind(s.files, OBJECT), path);
    u64 rows = (u64)integer(get(s.shard, "rows"));
    u128 nbytes = b.size;
    if (first) list_file("", path, b.size, sha256_hex(b));
    u64 from = listed_count, others = 0;
    for (u64 i = 0; i < s.files->count; i++) {
        const Json *file = s.files->items[i];
        if (!is_path(file)) refuse("unsafe-path", path);
        check_file(file);
        nbytes += (u64)integer(get(file, "size"));
        u64 part = unreadable_part(file);
        others += part && file->name[part] == '/';
        if (first) list_file(s.folder, file->name, (u64)integer(get(file, "size")), get(file, "sha256")->text);
    }
    need(nbytes == (u64)integer(get(s.shard, "nbytes")), path);
    for (u64 i = 0; i < fields->count; i++) {
        const Json *f = fields->items[i], *values = get(f, "values"), *per_row = get(f, "per_row");
        if (unreadable(f)) continue;
        if (!values) {
            add_array(&s, f, f, "", "", rows, 0);
            continue;
        }
        u64 m = (u64)integer(get(get(s.shard, "lengths"), f->name));
        add_array(&s, f, NULL, "", "offsets", rows + 1, m);
        snprintf(path, PATH, "%s/zarr.json", f->name);
        need(get(s.files, path) != NULL, path);
        s.count++;
        for (u64 k = 0; k < values->count; k++) add_value(&s, f, values->items[k], m);
        for (u64 k = 0; per_row && k < per_row->count; k++) add_value(&s, f, per_row->items[k], rows);
    }
    need(s.count + others == s.files->count, s.folder);
    for (u64 i = from; first && i < listed_count; i++) check_listed(&listed[i]);
    return s;
}

/* The text of a shape for JSON: one number, and those of a row. */
static const char *shape_text(const Array *a, u64 rows) {
    static char ring[4][1024];
    static int turn;
    char *text = ring[turn++ % 4];
    size_t used = (size_t)sprintf(text, "[%llu", (unsigned long long)rows);
    for (u64 i = 0; a->shape && i < a->shape->count; i++)
        used += (size_t)sprintf(text + used, ", %lld", (long long)integer(a->shape->items[i]));
    strcpy(text + used, "]");
    return text;
}

/* Whether an array's zarr.json is that of 5.5. */
static bool is_metadata(const Json *found, const Array *a) {
    char text[8192], zstd[128] = "";
    static const char little[] = "{\"name\": \"bytes\", \"configuration\": {\"endian\": \"little\"}}",
                      one[] = "{\"name\": \"bytes\"}";
    const Json *codecs = get(found, "codecs"), *fill = get(found, "fill_value"), *attributes = get(found, "attributes");
    if (a->zarr && is_kind(codecs, LIST) && codecs->count) {
        const Json *inner = get(get(codecs->items[0], "configuration"), "codecs");
        bool two = is_kind(inner, LIST) && inner->count == 2;
        i64 level = two ? integer(get(get(inner->items[1], "configuration"), "level")) : -1;
        if (level < 1 || level > 22) return false;
        sprintf(zstd, ", {\"name\": \"zstd\", \"configuration\": {\"level\": %d, \"checksum\": false}}", (int)level);
    }
    snprintf(text, sizeof text,
             "{\"zarr_format\": 3, \"node_type\": \"array\", \"shape\": %s, \"data_type\": \"%s\", \"chunk_grid\": "
             "{\"name\": \"regular\", \"configuration\": {\"chunk_shape\": %s}}, \"chunk_key_encoding\": "
             "{\"name\": \"default\", \"configuration\": {\"separator\": \"/\"}}, \"codecs\": [{\"name\": "
             "\"sharding_indexed\", \"configuration\": {\"chunk_shape\": %s, \"codecs\": [%s%s], \"index_codecs\": "
             "[%s, {\"name\": \"crc32c\"}], \"index_location\": \"end\"}}]}",
             shape_text(a, a->n), a->dtype ? a->dtype->text : "int64",
             shape_text(a, (a->chunks ? a->chunks : 1) * a->chunk_rows), shape_text(a, a->chunk_rows),
             a->item == 1 ? one : little, zstd, little);
    const Json *expected = parse((Bytes){(u8 *)text, strlen(text)}, sizeof text);
    for (u64 i = 0; i < expected->count; i++) {
        const Json *v = get(found, expected->items[i]->name);
        if (!v || !equal(v, expected->items[i])) return false;
    }
    bool floating = a->dtype && *a->dtype->text == 'f';
    if (!fill || !(fill->kind == INTEGER || (floating && fill->kind == FLOAT)) || fill->number != 0) return false;
    if (!is_kind(attributes, OBJECT)) return false;
    for (u64 i = 0; i < found->count; i++) {
        const Json *v = found->items[i];
        bool described = strlen(v->name) == v->name_size && (get(expected, v->name) || v == fill || v == attributes);
        bool names = v == get(found, "dimension_names") && is_kind(v, LIST) && v->count == get(found, "shape")->count;
        for (u64 k = 0; names && k < v->count; k++) names = v->items[k]->kind == TEXT || v->items[k]->kind == NOTHING;
        if (!described && !names && !is_kind(get(v, "must_understand"), FALSE)) return false;
    }
    return true;
}

static u64 little(const u8 *p, int n) {
    u64 v = 0;
    memcpy(&v, p, (size_t)n);
    return v;
}

/* Whether bytes are exactly one frame as 5.4 has it, by the header of RFC 8878 3.1.1.1. */
static bool is_frame(Bytes b, u64 content) {
    if (b.size < 6 || little(b.data, 4) != 0xFD2FB528) return false;
    u8 d = b.data[4], single = d >> 5 & 1, flag = d >> 6;
    int n = flag ? 1 << flag : single;
    u64 at = 5 + !single, window = 1ull << (10 + (b.data[5] >> 3));
    if (!single && window + window / 8 * (b.data[5] & 7) > 1u << 27) return false;
    if (d & 11 || !n || at + (u64)n > b.size || little(b.data + at, n) + (n == 2 ? 256 : 0) != content) return false;
    return ZSTD_findFrameCompressedSize(b.data, b.size) == b.size;
}

/* map (7.2): the bytes of an array, decompressed if need be. */
static void map_array(Array *a) {
    char path[2 * PATH];
    const char *code;
    snprintf(path, sizeof path, "%s/zarr.json", a->path);
    const Json *metadata = parse(read_file(path), MIB);
    if (!metadata || !is_metadata(metadata, a)) refuse("array-metadata", path);
    a->data = (const u8 *)"";
    if (!a->n) return;
    size_t used = (size_t)sprintf(path, "%s/c", a->path);
    for (u64 i = 0; i < 1 + (a->shape ? a->shape->count : 0); i++) used += (size_t)sprintf(path + used, "/0");
    a->file = map_file(path, &code);
    if (!a->file.data) refuse(code, path);
    if (a->file.size != a->size) refuse("file-size", path);
    a->data = a->file.data;
    if (!a->zarr) return;
    u64 end = a->size - 20 * a->chunks - 4, most = a->chunk_nbytes + a->chunk_nbytes / 128 + 1024;
    const u8 *index = a->file.data + end + 4 * a->chunks;
    if (crc32c(index, 16 * a->chunks) != little(index + 16 * a->chunks, 4)) refuse("shard-index", path);
    if ((u128)a->chunks * a->chunk_nbytes > MEMORY) refuse("too-large", path);
    u8 *out = take(a->chunks * a->chunk_nbytes);
    for (u64 i = 0; i < a->chunks; i++) {
        u64 offset = little(index + 16 * i, 8), size = little(index + 16 * i + 8, 8);
        if (size > end || offset > end - size || size > most || size < 6 + 4 * ((a->chunk_nbytes + 131071) / 131072))
            refuse("shard-index", path);
        u8 *to = out + i * a->chunk_nbytes;
        if (!is_frame((Bytes){a->file.data + offset, size}, a->chunk_nbytes) ||
            ZSTD_decompress(to, a->chunk_nbytes, a->file.data + offset, size) != a->chunk_nbytes)
            refuse("checksum", path);
    }
    a->data = out;
}

static void check_offsets(const Array *a) {
    const i64 *o = (const i64 *)a->data;
    bool right = o[0] == 0 && o[a->n - 1] == (i64)a->total;
    for (u64 i = 1; i < a->n; i++) right = right && o[i - 1] <= o[i];
    if (!right) refuse("offsets", a->path);
}
