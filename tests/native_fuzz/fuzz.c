/* libFuzzer: all that a store says of an image is hostile, and so are the image's bytes. See run.py.
 *
 * An input is a job, the length of the table of restarts or entries, the table, and the file. */
#include <string.h>

#include "context.h"

context *context_new(void) { return calloc(1, sizeof(context)); }

/* The file as a whole; and its header with as many pixels as it says, of the bytes of the file. */
static void decode_and_encode(context *own, bytes_view file) {
    for (size_t at = 2, pixels = 0; at + 4 <= file.nbytes && file.bytes[at] == 0xFF;) {
        const uint8_t *s = file.bytes + at;
        size_t nbytes = 2 + (size_t)(s[2] << 8 | s[3]);
        if (nbytes > file.nbytes - at) return;
        if (s[1] == 0xC0 && nbytes > 9) pixels = (size_t)(s[5] << 8 | s[6]) * (size_t)(s[7] << 8 | s[8]) * s[9];
        at += nbytes;
        if (s[1] != 0xDA) continue;
        if (pixels < 1 || pixels > 100000) return;
        uint8_t *made = malloc(pixels);
        kernels_plain.decode(own, file, made, pixels);
        for (size_t i = 0; i < pixels; i++) made[i] = file.bytes[i % file.nbytes];
        bytes_view written, restarts, head = {file.bytes, at};
        kernels_plain.encode(own, head, (bytes_view){made, pixels}, &written, &restarts);
        free(made);
        return;
    }
}

/* Two views of an image that are decoded at once, by a cover that need not be theirs. */
static void crop_twice(context *own, const crop_shard *shard, crop_job job, uint8_t *out) {
    crop_cover cover = {{job.y.first & 0xFFFF, job.x.first & 0xFFFF}, {job.y.at & 0xFFFF, job.x.at & 0xFFFF}, {0}};
    crop_job other = job;
    other.y = job.x, other.x = job.y;
    kernels_plain.crop(own, shard, 1, &job, &cover, 32, 32, 3, out);
    kernels_plain.crop(own, shard, 1, &other, &cover, 32, 32, 3, out);
}

/* As many pixels as a job has of its image, as module.c passes them on. */
static void resize(context *own, const crop_job *job, bytes_view file) {
    const int32_t from[2] = {(job->height & 63) + 1, (job->width & 63) + 1};
    const crop_axis *crops[2] = {&job->y, &job->x};
    resize_axis axes[2];
    for (int i = 0; i < 2; i++) {
        axes[i] = (resize_axis){crops[i]->origin, crops[i]->extent, (crops[i]->resized & 127) + 1};
        if (!(axes[i].origin >= 0 && axes[i].origin <= from[i] && axes[i].extent > 0 && axes[i].extent <= from[i])) return;
    }
    size_t nbytes = 3 * (size_t)from[0] * (size_t)from[1];
    uint8_t *pixels = malloc(nbytes), *out = malloc(3 * (size_t)axes[0].resized * (size_t)axes[1].resized);
    for (size_t i = 0; i < nbytes; i++) pixels[i] = file.nbytes ? file.bytes[i % file.nbytes] : 0;
    kernels_plain.resize(own, pixels, from, axes, out);
    free(pixels), free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static context *own;
    static uint8_t out[32 * 32 * 3];
    crop_job job;
    uint16_t table;
    if (!own) own = context_new();
    if (size < sizeof job + 2) return 0;
    memcpy(&job, data, sizeof job), memcpy(&table, data + sizeof job, 2);
    data += sizeof job + 2, size -= sizeof job + 2;
    if (table > size) return 0;
    /* Copies of the exact sizes, so that ASan sees the first byte behind them. */
    uint8_t *marks = malloc(table + 1u) , *file = malloc(size - table + 1u);
    memcpy(marks, data, table), memcpy(file, data + table, size - table);
    uint8_t *own_marks = realloc(marks, table ? table : 1), *own_file = realloc(file, size - table ? size - table : 1);
    crop_shard shard = {{own_file, size - table}, {own_marks, table}, {own_marks, table}};
    const jpeg_entry *entries;
    pixel_sums sums;
    kernels_plain.crop(own, &shard, 1, &job, NULL, 32, 32, job.reserved & 1 ? 1 : 3, out);
    kernels_plain.index(own, shard.file, &entries, &sums);
    decode_and_encode(own, shard.file);
    crop_twice(own, &shard, job, out);
    resize(own, &job, shard.file);
    free(own_marks), free(own_file);
    return 0;
}
