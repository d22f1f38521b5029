/* A reader and verifier of the store format tsds 1.0, written from the text of ../../spec.md alone.

   reader STORE STAGE      STAGE is open, map, verify or decode, each with all stages before it

   It answers in JSON on stdout, as ../../conformance/README.md asks: the arrays of a store that it accepts, with exit
   status 0, else the reason code. Every problem is a line on stderr. Numbers in parentheses are sections of spec.md.
   The reader maps local files: do not run it on a store that another process may cut while it is read (11). It leaves
   packed stores (12) to an unpacker, and refuses (too-large) arrays of more than 1 GiB in the layout zarr.
   The files, in the order of spec.md: base.h (hashes), json.h (4), manifest.h (2 to 4, open), arrays.h (5, map),
   images.h (6.4, 6.7) and verify.h (7.4). Nothing of a store's content is left out.
   Build: cc -std=c11 -O2 reader.c -lzstd. The machine must be little-endian. */
#include "base.h"
#include "json.h"
#include "manifest.h"
#include "arrays.h"
#include "images.h"
#include "verify.h"

static bool answered;

static void answer_array(FILE *out, const Array *a) {
    fprintf(out, "%s\n  \"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"sha256\": \"%s\"}", answered ? "," : "", a->path,
            a->dtype ? a->dtype->text : "int64", shape_text(a, a->n),
            sha256_hex((Bytes){a->data, a->n * a->row_nbytes}));
    answered = true;
}

int main(int argc, char **argv) {
    static const char *stages[] = {"open", "map", "verify", "decode"};
    int stage = 0;
    while (stage < 4 && (argc != 3 || strcmp(argv[2], stages[stage]))) stage++;
    if (stage == 4) return fprintf(stderr, "usage: reader STORE open|map|verify|decode\n"), 2;
    open_store(argv[1]);
    if (stage == 0) return puts("{}"), 0;
    const Json *files = get(manifest, "files");
    for (u64 i = 0; i < files->count; i++) {
        list_file("", files->items[i]->name, (u64)integer(get(files->items[i], "size")),
                  get(files->items[i], "sha256")->text);
        check_listed(&listed[listed_count - 1]);
    }
    Block *mark = blocks;
    for (u64 i = 0; i < splits->count; i++)
        for (u64 k = 0; k < get(splits->items[i], "shards")->count; k++, release(mark))
            load_shard(splits->items[i], k, true);
    if (stage >= 2) {
        if (listed_count) qsort(listed, listed_count, sizeof *listed, by_path);
        walk(fcntl(root, F_DUPFD_CLOEXEC, 0), "", 0);
        if (reason) refuse(reason, argv[1]);
        check_group("zarr.json", 64 * MIB, true);
    }
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (u64 i = 0; i < splits->count; i++, keys_count = 0) {
        const Json *split = splits->items[i];
        char path[2 * PATH];
        snprintf(path, sizeof path, "%s/zarr.json", split->name);
        if (stage >= 2) check_group(path, MIB, false);
        for (u64 k = 0; k < get(split, "shards")->count; k++, release(mark)) {
            Shard s = load_shard(split, k, false);
            for (Array *a = s.arrays; a; a = a->next) {
                map_array(a);
                if (!a->dtype) check_offsets(a);
                answer_array(out, a);
                if (stage >= 2) check_data_file(a);
            }
            if (stage < 2) continue;
            for (u64 n = 0; n < s.files->count; n++) { /* groups: those whose zarr.json is not an array's */
                const Json *file = s.files->items[n];
                bool group = file->name_size > 10 && !strcmp(file->name + file->name_size - 10, "/zarr.json") &&
                             !unreadable_part(file);
                snprintf(path, sizeof path, "%s/%.*s", s.folder, group ? (int)file->name_size - 10 : 0, file->name);
                for (const Array *a = s.arrays; a && group; a = a->next) group = strcmp(a->path, path);
                strcat(path, "/zarr.json");
                if (group) check_group(path, MIB, false);
            }
            snprintf(path, sizeof path, "%s/zarr.json", s.folder);
            check_group(path, 64 * MIB, false);
            for (u64 n = 0; n < fields->count; n++)
                if (!unreadable(fields->items[n]))
                    check_field_data(&s, fields->items[n], (u64)integer(get(s.shard, "rows")), stage == 3);
        }
        if (!distinct(keys, keys_count, sizeof *keys, by_digest)) report("key-text", split->name);
    }
    fclose(out);
    if (reason) refuse(reason, argv[1]);
    printf("{\"arrays\": {%s}}\n", text);
    free(text);
    return 0;
}
