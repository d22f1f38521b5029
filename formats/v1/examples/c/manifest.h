/* ---- Names (2) and files (3) ---- */

static bool is_device(const char *s, u64 n) { /* in any case */
    static const char devices[] = "con prn aux nul com lpt";
    char low[5] = "";
    for (u64 i = 0; i < n && i < 4; i++) low[i] = (char)(s[i] | (s[i] >= 'A' && s[i] <= 'Z' ? 32 : 0));
    bool digit = n == 4 && s[3] >= '0' && s[3] <= '9';
    const char *d = n == 3 || digit ? (low[3] = 0, strstr(devices, low)) : NULL;
    return d && (d - devices) % 4 == 0 && digit == (d - devices >= 16);
}

static bool is_name(const char *s, u64 n) {
    return n >= 1 && n <= 64 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") >= n && *s != '-' &&
           !is_device(s, n);
}

static bool is_root_name(const char *s, u64 n) {
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    return n >= 1 && n <= 64 && strspn(s, set) == n && *s != '.' && *s != '-' && s[n - 1] != '.' &&
           !is_device(s, strcspn(s, "."));
}

/* Parts that are names, with slashes between them; the last one may be zarr.json (4.4). */
static bool is_path(const Json *path) {
    const char *s = path->name, *end = s + path->name_size;
    for (u64 n; s <= end; s += n + 1) {
        const char *slash = memchr(s, '/', (size_t)(end - s));
        n = (u64)((slash ? slash : end) - s);
        if (!is_name(s, n) && (slash || n != 9 || memcmp(s, "zarr.json", 9))) return false;
    }
    return true;
}

static int root = -1; /* STORE */

/* Opens a regular file below STORE and follows no link. Says why it cannot. A pipe is not waited for. */
static int open_file(const char *path, struct stat *s, const char **code) {
    int folder = fcntl(root, F_DUPFD_CLOEXEC, 0), next;
    for (const char *slash;; path = slash + 1, folder = next) {
        char part[256] = "";
        slash = strchr(path, '/');
        size_t n = slash ? (size_t)(slash - path) : strlen(path);
        *code = "missing-file";
        if (n < sizeof part) memcpy(part, path, n);
        bool there = n < sizeof part && !fstatat(folder, part, s, AT_SYMLINK_NOFOLLOW);
        if (there && S_ISLNK(s->st_mode)) *code = "symlink";
        there = there && (slash ? S_ISDIR(s->st_mode) : S_ISREG(s->st_mode));
        next = there ? openat(folder, part, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
        if (there && next < 0 && errno == ELOOP) *code = "symlink";
        close(folder);
        if (next < 0 || (!slash && !fstat(next, s) && S_ISREG(s->st_mode))) return next;
    }
}

/* Maps a file whole, or returns no data and a code. `release` unmaps it. */
static Bytes map_file(const char *path, const char **code) {
    struct stat s;
    int file = open_file(path, &s, code);
    if (file < 0) return (Bytes){NULL, 0};
    Bytes b = {(const u8 *)"", (u64)s.st_size};
    take(0);
    if (b.size) {
        b.data = blocks->in.map = mmap(NULL, blocks->in.size = b.size, PROT_READ, MAP_PRIVATE, file, 0);
        if (b.data == MAP_FAILED) blocks->in.map = NULL, refuse("missing-file", path);
    }
    close(file);
    return b;
}

static Bytes read_file(const char *path) {
    const char *code;
    Bytes b = map_file(path, &code);
    if (!b.data) refuse(code, path);
    return b;
}

/* ---- Manifest (4) ---- */

static const Json *manifest, *fields, *splits;
static Json *document; /* all of the root's zarr.json */
typedef struct Path {
    char *path;
    struct Path *next;
} Path;
static Path *lengths; /* TABLE and TABLE/VALUE, which `lengths` of each shard have */
static u64 lengths_count;

static void need(bool rule, const char *where) {
    if (!rule) refuse("manifest", where);
}

static const char *const DTYPES[] = {"uint8", "int8",    "uint16", "int16", "float16", "uint32",
                                     "int32", "float32", "uint64", "int64", "float64"};

/* The bytes of a number of a data type (5.1), or 0. */
static u64 item_nbytes(const Json *dtype) {
    for (int i = 0; i < 11; i++)
        if (is(dtype, DTYPES[i])) return i < 2 ? 1 : i < 5 ? 2 : i < 8 ? 4 : 8;
    return 0;
}

static bool is_layout(const Json *v) { return is(v, "memmap") || is(v, "zarr"); }

static bool is_texts(const Json *v) { /* a list of strings, no two alike */
    if (!is_kind(v, LIST)) return false;
    Json **sorted = take(v->count * sizeof *sorted);
    for (u64 i = 0; i < v->count; i++)
        if (!is_kind(sorted[i] = v->items[i], TEXT)) return false;
    return distinct(sorted, v->count, sizeof *sorted, by_name);
}

static bool unknown_spec(const Json *v) {
    const Json *dtype = get(v, "dtype"), *layout = get(v, "layout");
    return (is_kind(dtype, TEXT) && !item_nbytes(dtype)) || (is_kind(layout, TEXT) && !is_layout(layout));
}

/* Whether a field is one that a reader of 1.0 leaves alone (4.2). */
static bool unreadable(const Json *field) {
    const Json *required = get(field, "requires");
    if ((required && required->count) || unknown_spec(field)) return true;
    for (int part = 0; part < 2; part++) {
        const Json *values = get(field, part ? "per_row" : "values");
        for (u64 i = 0; is_kind(values, OBJECT) && i < values->count; i++)
            if (unknown_spec(values->items[i])) return true;
    }
    return false;
}

static u64 row_nbytes(const Json *spec) { /* 2^53 if they are more */
    u128 n = item_nbytes(get(spec, "dtype"));
    const Json *shape = get(spec, "shape");
    for (u64 i = 0; i < shape->count; i++)
        if ((n *= (u64)integer(shape->items[i])) >= LIMIT) return LIMIT;
    return (u64)n;
}

static void check_spec(const Json *spec, const char *where) {
    const Json *shape = get(spec, "shape"), *layout = get(spec, "layout"), *ragged = get(spec, "ragged");
    need(item_nbytes(get(spec, "dtype")) && is_kind(shape, LIST) && shape->count <= 31, where);
    for (u64 i = 0; i < shape->count; i++) need(integer(shape->items[i]) >= 1, where);
    need(row_nbytes(spec) < LIMIT && (!layout || is_layout(layout)), where);
    need(!ragged || is_kind(ragged, TRUE) || is_kind(ragged, FALSE), where);
}

/* What named values must be (6). Flags: p in `per_row`, ! required, 1 the only value, r ragged, m `layout` is memmap.
   A shape is its digits; K is the number of keypoints. */
static const struct Rule {
    const char *kind, *name, *dtype, *shape, *flags;
} RULES[] = {{"encoded", "bytes", "uint8", "", "!1m"},
             {"encoded", "shape", "int32", "3", "p!"},
             {"encoded", "restarts", "uint32", "", "pr"},
             {"encoded", "entries", "uint32", "3", "pr"},
             {"encoded", "crc32c", "uint32", "", "p"},
             {"raw", "pixels", NULL, "", "!1m"},
             {"raw", "shape", "int32", "3", "p!"},
             {"key", "bytes", "uint8", "", "!1"},
             {"text", "text", "uint8", "", "!1r"},
             {"objects", "boxes", "float32", "4", ""},
             {"objects", "oriented_boxes", "float32", "5", ""},
            {"objects", "labels", "int64", "", ""},
             {"objects", "keypoints", "float32", "K2", ""},
             {"objects", "visibility", "uint8", "K", ""},
             {"objects", "difficult", "uint8", "", ""},
             {"objects", "truncated", "uint8", "", ""},
             {"objects", "occluded", "uint8", "", ""},
             {"objects", "iscrowd", "uint8", "", ""},
             {"objects", "area", "float32", "", ""},
             {"objects", "polygons", "float32", "2", "r"},
             {"objects", "rle", "uint32", "", "r"},
             {"label", NULL, "int64", "", ""},
             {"size", NULL, "int32", "2", ""}};

static void check_rules(const Json *field, const char *kind) {
    const char *where = field->name;
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        const struct Rule *rule = &RULES[i];
        if (strcmp(rule->kind, kind)) continue;
        const Json *part = get(field, strchr(rule->flags, 'p') ? "per_row" : "values");
        const Json *v = rule->name ? get(part, rule->name) : field, *shape = get(v, "shape");
        need(v || !strchr(rule->flags, '!'), where);
        if (!v) continue;
        need((!rule->dtype || is(get(v, "dtype"), rule->dtype)) && shape->count == strlen(rule->shape), where);
        for (u64 d = 0; d < shape->count; d++) {
            bool k = rule->shape[d] == 'K';
            need(integer(shape->items[d]) == (k ? (i64)get(field, "keypoints")->count : rule->shape[d] - '0'), where);
        }
        need(is_kind(get(v, "ragged"), TRUE) == !!strchr(rule->flags, 'r'), where);
        need(!strchr(rule->flags, '1') || part->count == 1, where);
        need(!strchr(rule->flags, 'm') || is(get(v, "layout"), "memmap"), where);
    }
}

/* Pairs of indices of keypoints; with `once`, each index at most once. */
static void check_pairs(const Json *pairs, u64 keypoints, bool once, const char *where) {
    need(is_kind(pairs, LIST), where);
    bool *seen = take(keypoints);
    for (u64 i = 0; i < pairs->count; i++) {
        need(is_kind(pairs->items[i], LIST) && pairs->items[i]->count == 2, where);
        for (int k = 0; k < 2; k++) {
            i64 index = integer(pairs->items[i]->items[k]);
            need(index >= 0 && (u64)index < keypoints && !(once && seen[index]), where);
            seen[index] = true;
        }
    }
}

static void check_channels(const Json *field, i64 count) { /* -1: of images of differing sizes */
    const Json *channels = get(field, "channels"), *range = get(field, "range"),
               **ends = range ? (const Json **)range->items : 0;
    need(!channels || (is_texts(channels) && (count < 0 || channels->count == (u64)count)), field->name);
    if (!range) return;
    need(is_kind(range, LIST) && range->count == 2, field->name);
    for (int i = 0; i < 2; i++) need(ends[i]->kind == INTEGER || ends[i]->kind == FLOAT, field->name);
    need(ends[0]->number < ends[1]->number, field->name);
}

/* The encoding of a field of kind image, "encoded" for files; "" of another one, NULL of another kind. */
static const char *encoding(const Json *field) {
    const Json *e = get(field, "encoding");
    if (!is(get(field, "kind"), "image")) return NULL;
    return is(e, "raw") ? "raw" : is(e, "jpeg") || is(e, "smart") || is(e, "source") ? "encoded" : "";
}

static void note_length(const char *table, const char *value) {
    Path *p = take(sizeof *p);
    p->path = take(PATH);
    snprintf(p->path, PATH, "%s%s%s", table, value ? "/" : "", value ? value : "");
    p->next = lengths, lengths = p, lengths_count++;
}

/* The name of the field of images that objects or a mask lie in, or NULL (4.2). */
static const Json *image_of(const Json *field) {
    const Json *name = get(field, "image"), *image = get(fields, name ? name->text : "image");
    return image && (unreadable(image) || encoding(image)) ? image : NULL;
}

static void check_field(const Json *field) {
    const char *where = field->name;
    const Json *kind = get(field, "kind"), *required = get(field, "requires"), *values = get(field, "values"),
               *per_row = get(field, "per_row");
    const Json *shape = get(field, "shape"), *classes = get(field, "classes"), *ignored = get(field, "ignored");
    need(is_kind(field, OBJECT) && (!required || is_texts(required)), where);
    if (unreadable(field)) return;
    need(is_kind(kind, TEXT), where);
    if (values) {
        need(is_kind(values, OBJECT) && values->count && !get(field, "dtype") && !shape, where);
        need(!per_row || is_kind(per_row, OBJECT), where);
        note_length(where, NULL);
        for (u64 i = 0, n = values->count; i < n + (per_row ? per_row->count : 0); i++) {
            const Json *v = i < n ? values->items[i] : per_row->items[i - n];
            need(strcmp(v->name, "offsets") && !(i >= n && get(values, v->name)), where);
            check_spec(v, where);
            if (is_kind(get(v, "ragged"), TRUE)) note_length(where, v->name);
        }
    } else check_spec(field, where);
    bool mask = is(kind, "mask"), objects = is(kind, "objects"), wide = is(get(field, "dtype"), "uint16");
    const Json *image = get(field, "image");
    need(!(mask || objects) || !image || (is_kind(image, TEXT) && is_name(image->text, image->size) && image_of(field)),
         where);
    if (mask || objects || is(kind, "label") || is(kind, "labels")) need(is_texts(classes), where);
    if (is(kind, "image")) {
        const char *e = encoding(field);
        need(is_kind(get(field, "encoding"), TEXT), where);
        if (*e && (values || *e == 'e'))
            need(values && integer(get(field, "max_pixels")) >= 0, where), check_rules(field, e);
        if (*e == 'r' && !values) need(shape->count == 3 && integer(shape->items[2]) <= 64, where);
        if (*e == 'r') check_channels(field, values ? -1 : integer(shape->items[2]));
    } else if (mask) {
        u64 all = wide ? 65536 : 256;
        need(!values && (wide || is(get(field, "dtype"), "uint8")) && shape->count == 2 && classes->count <= all,
             where);
        need(!ignored || (integer(ignored) >= (i64)classes->count && integer(ignored) < (i64)all), where);
    } else if (objects) {
        const Json *keypoints = get(field, "keypoints"), *skeleton = get(field, "skeleton");
        need(values && is_texts(keypoints), where);
        check_pairs(get(field, "flip_pairs"), keypoints->count, true, where);
        if (skeleton) check_pairs(skeleton, keypoints->count, false, where);
        check_rules(field, "objects");
    } else if (is(kind, "key") || is(kind, "text")) need(values, where), check_rules(field, kind->text);
    else if (is(kind, "label") || is(kind, "size")) need(!values, where), check_rules(field, kind->text);
    else if (is(kind, "labels"))
        need(!values && is(get(field, "dtype"), "int8") && shape->count == 1 &&
                 integer(shape->items[0]) == (i64)classes->count,
             where);
    else if (is(kind, "array")) need(!values, where);
}

static bool is_sha256(const Json *v) {
    return is_kind(v, TEXT) && v->size == 64 && strspn(v->text, "0123456789abcdef") == 64;
}

static void check_file(const Json *file) {
    need(integer(get(file, "size")) >= 0 && is_sha256(get(file, "sha256")), file->name);
}

static int by_number(const void *a, const void *b) {
    u64 x = *(const u64 *)a, y = *(const u64 *)b;
    return x < y ? -1 : x > y;
}

static u64 number_of(const Json *split, u64 place) {
    const Json *number = get(get(split, "shards")->items[place], "number");
    return number ? (u64)integer(number) : place;
}

/* The length of the name of the unreadable field that a path or length belongs to, or 0. */
static u64 unreadable_part(const Json *path) {
    char name[PATH] = "";
    u64 n = strcspn(path->name, "/");
    if (n > 64 || (n < path->name_size && path->name[n] != '/')) return 0;
    memcpy(name, path->name, n);
    const Json *field = get(fields, name);
    return field && unreadable(field) ? n : 0;
}

static void check_split(const Json *split) {
    const char *where = split->name;
    const Json *shards = get(split, "shards"), *replaced = get(split, "replaced"),
               *statistics = get(split, "statistics");
    need(integer(get(split, "rows")) >= 0 && is_kind(shards, LIST) && (!statistics || is_kind(statistics, OBJECT)),
         where);
    need(!replaced || is_kind(replaced, LIST), where);
    u64 more = replaced ? replaced->count : 0, *numbers = take((shards->count + more) * sizeof *numbers), rows = 0;
    for (u64 i = 0; i < shards->count; i++) {
        const Json *shard = shards->items[i], *found = get(shard, "lengths"), *number = get(shard, "number");
        need(integer(get(shard, "rows")) >= 0 && integer(get(shard, "nbytes")) >= 0 && is_sha256(get(shard, "sha256")),
             where);
        need((!number || integer(number) >= 0) && is_kind(found, OBJECT) && found->count >= lengths_count, where);
        rows += (u64)integer(get(shard, "rows")), numbers[i] = number_of(split, i);
        need(rows < LIMIT, where);
        u64 others = 0;
        for (Path *p = lengths; p; p = p->next) need(get(found, p->path) != NULL, where);
        for (u64 k = 0; k < found->count; k++) {
            need(integer(found->items[k]) >= 0, where);
            others += unreadable_part(found->items[k]) > 0;
        }
        need(found->count == lengths_count + others, where);
    }
    for (u64 i = 0; i < more; i++) {
        need(integer(replaced->items[i]) >= 0, where);
        numbers[shards->count + i] = (u64)integer(replaced->items[i]);
    }
    need(rows == (u64)integer(get(split, "rows")), where);
    need(distinct(numbers, shards->count + more, sizeof *numbers, by_number), where);
}

/* Names of fields, values, splits and files (2, 4.4). */
static void check_names(void) {
    const Json *files = get(manifest, "files"), *all[] = {fields, splits};
    for (int a = 0; a < 2; a++)
        for (u64 i = 0; is_kind(all[a], OBJECT) && i < all[a]->count; i++) {
            const Json *item = all[a]->items[i], *parts[] = {get(item, "values"), get(item, "per_row")};
            if (!is_name(item->name, item->name_size)) refuse("unsafe-path", item->name);
            for (int part = 0; a == 0 && !unreadable(item) && part < 2; part++)
                for (u64 k = 0; is_kind(parts[part], OBJECT) && k < parts[part]->count; k++)
                    if (!is_name(parts[part]->items[k]->name, parts[part]->items[k]->name_size))
                        refuse("unsafe-path", item->name);
        }
    if (!is_kind(files, OBJECT)) return;
    u64 count = 0;
    Json *low = take((files->count + (splits ? splits->count : 0) + 2) * sizeof *low), **names;
    for (u64 i = 0; i < files->count; i++) {
        const Json *file = files->items[i];
        bool below = memchr(file->name, '/', file->name_size);
        if (below ? !is_path(file) : !is_root_name(file->name, file->name_size)) refuse("unsafe-path", file->name);
        if (below || !strcmp(file->name, "zarr.json") || !strcmp(file->name, "zarr.json.sig")) continue;
        char *s = take(file->name_size + 1);
        for (u64 k = 0; k < file->name_size; k++)
            s[k] = (char)(file->name[k] | (file->name[k] >= 'A' && file->name[k] <= 'Z' ? 32 : 0));
        low[count++] = (Json){.name = s, .name_size = file->name_size};
    }
    for (u64 i = 0; is_kind(splits, OBJECT) && i < splits->count; i++) low[count++] = *splits->items[i];
    low[count++] = (Json){.name = "zarr.json", .name_size = 9};
    low[count++] = (Json){.name = "zarr.json.sig", .name_size = 13};
    names = take(count * sizeof *names);
    for (u64 i = 0; i < count; i++) names[i] = &low[i];
    if (!distinct(names, count, sizeof *names, by_name)) refuse("unsafe-path", "files");
}

/* open (7.1) */
static void open_store(const char *path) {
    const char *code = NULL, *where = "zarr.json", *version;
    Bytes b = {NULL, 0};
    root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root >= 0) b = map_file(where, &code);
    if (!b.data) refuse(code && !strcmp(code, "symlink") ? code : "not-a-store", where);
    if (!(document = parse(b, 64 * MIB))) refuse("manifest-json", where);
    const Json *attributes = get(document, "attributes"), *digest = get(attributes, "tsds_sha256"), *required, *files;
    if (integer(get(document, "zarr_format")) != 3 || !is(get(document, "node_type"), "group") ||
        !(manifest = get(attributes, "tsds")))
        refuse("not-a-store", where);
    need(is_kind(get(manifest, "format_version"), TEXT), where);
    version = get(manifest, "format_version")->text;
    size_t minor = strspn(version + (strncmp(version, "1.", 2) ? 0 : 2), "0123456789");
    if (strncmp(version, "1.", 2) || minor < 1 || minor > 4 || 2 + minor != get(manifest, "format_version")->size ||
        (version[2] == '0' && minor > 1))
        refuse("unknown-version", where);
    required = get(manifest, "requires");
    need(!required || is_texts(required), where);
    if (required && required->count) refuse("unknown-requirement", where);
    need(digest != NULL, where);
    u8 *copy = take(b.size);
    u64 count = 0;
    for (u64 i = 0; is_sha256(digest) && i + 64 <= b.size; i++) {
        if (copy[i]) continue;
        bool here = b.data[i] == (u8)*digest->text && !memcmp(b.data + i, digest->text, 64);
        if (here) count++, memset(copy + i, '0', 64);
    }
    for (u64 i = 0; i < b.size; i++) copy[i] = copy[i] ? copy[i] : b.data[i];
    if (count != 1 || strcmp(digest->text, sha256_hex((Bytes){copy, b.size}))) refuse("checksum", where);
    fields = get(manifest, "fields"), splits = get(manifest, "splits"), files = get(manifest, "files");
    check_names();
    need(is_layout(get(manifest, "layout")) && integer(get(manifest, "chunk_size")) >= 1, where);
    need(is_kind(fields, OBJECT) && is_kind(splits, OBJECT) && is_kind(files, OBJECT), where);
    const Json *provenance = get(manifest, "provenance"), *license = get(manifest, "license"),
               *cite = get(manifest, "citation");
    need((!provenance || is_kind(provenance, OBJECT)) && (!license || is_kind(license, TEXT)), where);
    need(!cite || is_kind(cite, TEXT), where);
    for (u64 i = 0; i < fields->count; i++) check_field(fields->items[i]);
    for (u64 i = 0; i < splits->count; i++) check_split(splits->items[i]);
    u64 below = 0;
    for (u64 i = 0; i < files->count; i++) check_file(files->items[i]), below += !!strchr(files->items[i]->name, '/');
    need(below == splits->count && !get(files, "zarr.json") && !get(files, "zarr.json.sig"), "files");
    for (u64 i = 0; i < splits->count; i++) {
        char group[PATH];
        snprintf(group, PATH, "%s/zarr.json", splits->items[i]->name);
        need(get(files, group) != NULL, group);
    }
}
