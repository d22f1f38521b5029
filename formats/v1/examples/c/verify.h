/* ---- Verify (7.4) ---- */

static int by_path(const void *a, const void *b) {
    return strcmp(((const Listed *)a)->path, ((const Listed *)b)->path);
}

static const Listed *find_listed(const char *path) {
    Listed key = {.path = (char *)path};
    return listed_count ? bsearch(&key, listed, listed_count, sizeof key, by_path) : NULL;
}

static bool is_replaced_folder(const char *path) {
    char split[65] = "", number[32];
    size_t n = strcspn(path, "/");
    if (n > 64 || !path[n]) return false;
    memcpy(split, path, n);
    i64 value = strtoll(path + n + 1, NULL, 10);
    const Json *replaced = get(get(splits, split), "replaced");
    snprintf(number, sizeof number, "%05lld", (long long)value);
    for (u64 i = 0; replaced && i < replaced->count; i++)
        if (integer(replaced->items[i]) == value) return !strcmp(number, path + n + 1);
    return false;
}

/* Compares every file below a folder with its listed SHA-256. Listed paths are at most some 40 folders deep. */
static void walk(int folder, const char *prefix, int depth) {
    DIR *entries = fdopendir(folder);
    if (!entries || depth > 100) refuse("too-large", prefix);
    for (struct dirent *entry; (entry = readdir(entries));) {
        char path[4096];
        const char *name = entry->d_name, *code;
        struct stat s;
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        if (snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "/" : "", name) >= (int)sizeof path)
            refuse("too-large", prefix);
        if (fstatat(dirfd(entries), name, &s, AT_SYMLINK_NOFOLLOW) || !strcmp(path, "zarr.json")) continue;
        if (S_ISDIR(s.st_mode)) {
            if (!strcmp(path, "zarr.json.sig")) report("missing-file", path);
            if (is_replaced_folder(path)) continue;
            int next = openat(dirfd(entries), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (next < 0) refuse("missing-file", path);
            walk(next, path, depth + 1);
            continue;
        }
        const Listed *file = find_listed(path);
        if (!strcmp(path, "zarr.json.sig")) {
            if (S_ISLNK(s.st_mode)) report("symlink", path);
            else if (!S_ISREG(s.st_mode)) report("missing-file", path);
            else if (s.st_size > MIB) report("file-size", path);
        } else if (!file) report("unlisted-file", path);
        else {
            Block *mark = blocks;
            Bytes b = map_file(path, &code);
            if (!b.data) refuse(code, path);
            if (b.size < file->size) refuse("file-size", path);
            if (strcmp(file->sha256, sha256_hex((Bytes){b.data, file->size}))) report("checksum", path);
            release(mark);
        }
    }
    closedir(entries);
}

/* A group's zarr.json has just the members of 3.2. */
static void check_group(const char *path, u64 limit, bool is_root) {
    Block *mark = blocks;
    const Json *g = parse(read_file(path), limit), *metadata = get(g, "consolidated_metadata");
    bool right = integer(get(g, "zarr_format")) == 3 && is(get(g, "node_type"), "group") &&
                 is_kind(get(g, "attributes"), OBJECT) && g->count == 3u + (is_root && metadata);
    if (right && metadata) {
        const Json *all = get(metadata, "metadata");
        right = is_kind(get(metadata, "must_understand"), FALSE) && is_kind(all, OBJECT);
        for (u64 i = 0; right && i < all->count; i++) {
            Block *inner = blocks;
            char file[PATH];
            bool fits = strlen(all->items[i]->name) == all->items[i]->name_size &&
                        snprintf(file, PATH, "%s/zarr.json", all->items[i]->name) < PATH && find_listed(file);
            const Json *found = fits ? parse(read_file(file), 64 * MIB) : NULL;
            right = found && equal(found, all->items[i]);
            release(inner);
        }
    }
    if (right && is_root) {
        static const char convention[] = "{\"uuid\": \"6f0f2d0c-3a55-4a8c-9d55-7a1d4b1f52e6\", \"name\": \"tsds\", "
                                         "\"description\": \"tensorstore-ds: image data sets as Zarr arrays that are "
                                         "also memory maps, format version 1\"}";
        const Json *c = get(get(g, "attributes"), "zarr_conventions"),
                   *ours = parse((Bytes){(u8 *)convention, sizeof convention - 1}, MIB);
        right = false;
        for (u64 i = 0; is_kind(c, LIST) && i < c->count; i++) right = right || equal(c->items[i], ours);
    }
    if (!right) report("group-metadata", path);
    release(mark);
}

/* The index, the checksums and the filling of a data file (5.3, 5.4). */
static void check_data_file(const Array *a) {
    if (!a->n) return;
    u64 end = a->size - 20 * a->chunks - 4, next = 0;
    const u8 *sums = a->file.data + end, *index = sums + 4 * a->chunks;
    bool right = crc32c(index, 16 * a->chunks) == little(index + 16 * a->chunks, 4);
    for (u64 i = 0; right && i < a->chunks; i++) {
        u64 offset = little(index + 16 * i, 8), size = little(index + 16 * i + 8, 8);
        right = offset == next && size <= end - offset && (a->zarr || size == a->chunk_nbytes) &&
                crc32c(a->file.data + offset, size) == little(sums + 4 * i, 4);
        next = offset + size;
    }
    right = right && next == end;
    for (u64 i = a->n * a->row_nbytes; right && i < a->chunks * a->chunk_nbytes; i++) right = !a->data[i];
    if (!right) report("shard-index", a->path);
}

static const Array *part(const Shard *s, const Json *field, const char *name) {
    for (const Array *a = s->arrays; a; a = a->next)
        if (a->field == field && !strcmp(a->name, name)) return a;
    return NULL;
}

/* Height and width of the image that a row of a field lies in, if they are known (6.2). */
static bool image_size(const Shard *s, const Json *field, u64 row, i64 *height, i64 *width) {
    const Json *image = image_of(field);
    if (!image || unreadable(image) || !encoding(image) || !*encoding(image)) return false;
    const Json *shape = get(image, "shape");
    const int32_t *shapes = shape ? NULL : (const int32_t *)part(s, image, "shape")->data;
    *height = shapes ? shapes[3 * row] : integer(shape->items[0]);
    *width = shapes ? shapes[3 * row + 1] : integer(shape->items[1]);
    return true;
}

static u8 (*keys)[32]; /* the SHA-256 of each key of a split, its first bytes replaced by the number of the field */
static u64 keys_count, keys_room;

static int by_digest(const void *a, const void *b) { return memcmp(a, b, 32); }

static void note_key(Bytes key, const Json *field) {
    if (keys_count == keys_room) {
        keys_room = 2 * keys_room + 64;
        if (!(keys = realloc(keys, keys_room * sizeof *keys))) refuse("too-large", "keys");
    }
    sha256(key, keys[keys_count]);
    memcpy(keys[keys_count++], &field, sizeof field);
}

/* Whether both coordinates of a point are finite, or both are NaN. */
static bool is_point(const float *p) { return isfinite(p[0]) ? isfinite(p[1]) : isnan(p[0]) && isnan(p[1]); }

static void check_points(const Array *a, const char *code) {
    for (u64 i = 0; a && i < a->n * a->row_nbytes / 8; i++)
        if (!is_point((const float *)a->data + 2 * i)) {
            report(code, a->path);
            return;
        }
}

static void check_oriented(const Array *a) {
    for (u64 i = 0; a && i < a->n; i++) {
        const float *b = (const float *)a->data + 5 * i;
        int absent = 0, finite = 0;
        for (int k = 0; k < 5; k++) absent += isnan(b[k]) != 0, finite += isfinite(b[k]) != 0;
        if (absent == 5 || (finite == 5 && b[2] > 0 && b[3] > 0 && fabsf(b[4]) <= 3.14159274f)) continue;
        report("oriented-range", a->path);
        return;
    }
}

static void check_most(const Array *a, u8 most, const char *code) {
    for (u64 i = 0; a && i < a->n * a->row_nbytes; i++)
        if (a->data[i] > most) {
            report(code, a->path);
            return;
        }
}

static void check_objects(const Shard *s, const Json *f, u64 rows) {
    const Array *offsets = part(s, f, "offsets"), *boxes = part(s, f, "boxes"), *labels = part(s, f, "labels");
    const Array *starts = part(s, f, "rle/offsets"), *runs = part(s, f, "rle/items");
    const i64 *o = (const i64 *)offsets->data;
    for (u64 i = 0; labels && i < labels->n; i++) {
        i64 label = ((const i64 *)labels->data)[i];
        if (label < 0 || label >= (i64)get(f, "classes")->count) {
            report("label-range", labels->path);
            break;
        }
    }
    bool inside = true, sums = true;
    for (u64 row = 0; row < rows; row++) {
        i64 h = 0, w = 0;
        bool bound = image_size(s, f, row, &h, &w);
        for (i64 k = o[row]; k < o[row + 1]; k++) {
            const float *b = boxes ? (const float *)boxes->data + 4 * k : NULL;
            if (b)
                inside = inside && b[0] >= 0 && b[0] < b[2] && b[1] >= 0 && b[1] < b[3] && isfinite(b[2]) &&
                         isfinite(b[3]) && (!bound || (b[2] <= (double)w && b[3] <= (double)h));
            if (!runs) continue;
            const i64 *r = (const i64 *)starts->data + k;
            u64 sum = 0;
            for (i64 i = r[0]; i < r[1]; i++) sum += ((const u32 *)runs->data)[i];
            sums = sums && (!bound || r[0] == r[1] || sum == (u64)(h * w));
        }
    }
    if (!inside) report("box-range", boxes->path);
    if (!sums) report("rle-range", runs->path);
    check_oriented(part(s, f, "oriented_boxes"));
    check_points(part(s, f, "keypoints"), "keypoint-range");
    check_points(part(s, f, "polygons/items"), "polygon-range");
    check_most(part(s, f, "difficult"), 1, "flag-range");
    check_most(part(s, f, "truncated"), 1, "flag-range");
    check_most(part(s, f, "occluded"), 1, "flag-range");
    check_most(part(s, f, "iscrowd"), 1, "flag-range");
    check_most(part(s, f, "visibility"), 2, "flag-range");
}

/* The files of a field of encoded images (6.4). */
static void check_images(const Shard *s, const Json *f, u64 rows, bool decode) {
    const Array *offsets = part(s, f, "offsets"), *bytes = part(s, f, "bytes"), *shapes = part(s, f, "shape");
    const Array *restarts = part(s, f, "restarts/offsets"), *entries = part(s, f, "entries/offsets"),
                *sums = part(s, f, "crc32c");
    const i64 *o = (const i64 *)offsets->data;
    for (u64 i = 0; i < rows; i++) {
        In in = {{bytes->data + o[i], (u64)(o[i + 1] - o[i])}, false, false};
        Image m = {0};
        Jpeg j = {0};
        const int32_t *shape = (const int32_t *)shapes->data + 3 * i;
        const char *wrong = read_image(&in, get(f, "encoding"), &m, &j);
        if (!wrong) {
            bool turned = m.orientation > 1, swapped = m.orientation > 4;
            i64 h = swapped ? m.width : m.height, w = swapped ? m.height : m.width;
            if (h != shape[0] || w != shape[1] || m.channels != shape[2] ||
                (turned && !is(get(f, "encoding"), "source")) || (u128)h * (u64)w > (u64)integer(get(f, "max_pixels")))
                wrong = "image-shape";
        }
        if (wrong) report(wrong, bytes->path);
        if (restarts) {
            const i64 *r = (const i64 *)restarts->data + i;
            const u32 *list = (const u32 *)part(s, f, "restarts/items")->data + r[0];
            if (r[0] < r[1] && !has_restarts(in.b, j.scan, list, (u64)(r[1] - r[0])))
                report("image-restarts", bytes->path);
        }
        if (sums && ((const u32 *)sums->data)[i] != crc32c(in.b.data, in.b.size)) report("checksum", bytes->path);
        if (entries) {
            const i64 *e = (const i64 *)entries->data + i;
            const u32(*list)[3] = (const u32(*)[3])part(s, f, "entries/items")->data + e[0];
            if (e[0] < e[1] && !has_entries(&in, &j, list, (u64)(e[1] - e[0]), decode))
                report("image-entries", bytes->path);
        }
    }
}

/* What a field of each kind means (7.4). */
static void check_field_data(const Shard *s, const Json *f, u64 rows, bool decode) {
    const Array *a = part(s, f, ""), *offsets = part(s, f, "offsets");
    const Json *kind = get(f, "kind"), *classes = get(f, "classes"), *ignored = get(f, "ignored"),
               *e = get(f, "encoding");
    const i64 *o = offsets ? (const i64 *)offsets->data : NULL;
    bool right = true;
    if (is(kind, "label")) {
        for (u64 i = 0; i < rows; i++) {
            i64 label = ((const i64 *)a->data)[i];
            right = right && label >= -1 && label < (i64)classes->count;
        }
        if (!right) report("label-range", a->path);
    } else if (is(kind, "labels")) {
        for (u64 i = 0; i < rows * a->row_nbytes; i++) right = right && (a->data[i] <= 1 || a->data[i] == 255);
        if (!right) report("label-range", a->path);
    } else if (is(kind, "mask")) {
        i64 h, w, mask_h = integer(a->shape->items[0]), mask_w = integer(a->shape->items[1]);
        for (u64 i = 0; i < rows * a->row_nbytes; i += a->item) {
            u64 pixel = little(a->data + i, (int)a->item);
            right = right && (pixel < classes->count || (ignored && pixel == (u64)integer(ignored)));
        }
        if (!right) report("mask-range", a->path);
        right = true;
        for (u64 i = 0; i < rows; i++) right = right && (!image_size(s, f, i, &h, &w) || (h == mask_h && w == mask_w));
        if (!right) report("mask-shape", a->path);
    } else if (is(kind, "size")) {
        for (u64 i = 0; i < 2 * rows; i++) right = right && ((const int32_t *)a->data)[i] >= 1;
        if (!right) report("size-range", a->path);
    } else if (is(kind, "key")) {
        const Array *bytes = part(s, f, "bytes");
        for (u64 i = 0; i < rows; i++) {
            Bytes key = {bytes->data + o[i], (u64)(o[i + 1] - o[i])};
            right = right && is_utf8(key);
            note_key(key, f);
        }
        if (!right) report("key-text", bytes->path);
    } else if (is(kind, "text")) {
        const Array *starts = part(s, f, "text/offsets"), *items = part(s, f, "text/items");
        const i64 *t = (const i64 *)starts->data;
        for (u64 i = 0; i + 1 < starts->n; i++)
            right = right && is_utf8((Bytes){items->data + t[i], (u64)(t[i + 1] - t[i])});
        if (!right) report("text", items->path);
    } else if (is(kind, "objects")) check_objects(s, f, rows);
    else if (encoding(f) && *encoding(f) == 'e') check_images(s, f, rows, decode);
    else if (is(kind, "image") && is(e, "raw") && o) {
        const Array *shapes = part(s, f, "shape");
        const Json *channels = get(f, "channels");
        for (u64 i = 0; i < rows; i++) {
            const int32_t *v = (const int32_t *)shapes->data + 3 * i;
            u64 pixels = (u64)v[0] * (u64)v[1];
            right = right && v[0] >= 1 && v[1] >= 1 && v[2] >= 1 && v[2] <= 64 &&
                    pixels <= (u64)integer(get(f, "max_pixels")) &&
                    (u128)pixels * (u64)v[2] == (u64)(o[i + 1] - o[i]) && (!channels || channels->count == (u64)v[2]);
        }
        if (!right) report("image-shape", shapes->path);
    }
}
