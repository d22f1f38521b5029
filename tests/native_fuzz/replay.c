/* Runs the kernels over the cases of a file, in several threads at once, and prints a digest of each result. The digests
 * are the same for each processor, compiler and thread. See tests/install/test_replay.py.
 *
 * A case is five sizes, a job, the table of restarts or entries, and the file. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "context.h"

#if defined(CHECKS_WRITTEN) /* with MemorySanitizer */
#include <sanitizer/msan_interface.h>
#define WRITTEN(bytes, nbytes) __msan_check_mem_is_initialized(bytes, nbytes)
#else
#define WRITTEN(bytes, nbytes)
#endif

enum { ROWS = 90, SHARDS = 3, COUNT = 40, LARGEST = 70001 };

static uint8_t *cases, *pixels; /* what all threads read */
static size_t cases_nbytes;
static int64_t edges[SHARDS + 1] = {0, 20, 21, ROWS};

static uint32_t next(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static void print_digest(FILE *to, const char *what, long code, const void *bytes, size_t nbytes) {
    uint64_t digest = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < nbytes; i++) digest = (digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    WRITTEN(bytes, nbytes);
    fprintf(to, "%s: %ld, %016" PRIx64 "\n", what, code, digest);
}

static void run_crops(FILE *to) {
    context *own = calloc(1, sizeof *own);
    for (size_t at = 0; at < cases_nbytes;) {
        uint32_t sizes[5]; /* height, width, channels; bytes of the table and of the file */
        crop_job job;
        memcpy(sizes, cases + at, sizeof sizes), memcpy(&job, cases + at + sizeof sizes, sizeof job);
        at += sizeof sizes + sizeof job;
        bytes_view table = {cases + at, sizes[3]}, file = {cases + at + sizes[3], sizes[4]};
        at += (size_t)sizes[3] + sizes[4];
        crop_shard shard = {file, table, table};
        const jpeg_entry *entries;
        pixel_sums sums;
        size_t nbytes = (size_t)sizes[0] * sizes[1] * sizes[2];
        uint8_t *out = calloc(1, nbytes);
        int code = kernels_plain.crop(own, &shard, 1, &job, NULL, (int)sizes[0], (int)sizes[1], (int)sizes[2], out);
        print_digest(to, "crop", code, out, code == CROP_OK ? nbytes : 0);
        int64_t count = kernels_plain.index(own, file, &entries, &sums);
        print_digest(to, "index", (long)count, entries, count > 0 ? (size_t)count * sizeof *entries : 0);
        print_digest(to, "sums", (long)sums.channels, &sums, sizeof sums);
        free(out);
    }
    trim(own, 0), free(own);
}

/* A table that all threads share; each of them adds the shards, as the first one to need them would. */
static row_table *table_of(row_table *table, size_t nbytes) {
    table->nbytes = nbytes;
    for (int i = 0; i < SHARDS; i++)
        atomic_store_explicit(&table->from[i], pixels + (size_t)edges[i] * nbytes, memory_order_release);
    return table;
}

static void run_gather(FILE *to, const uint8_t *_Atomic *from) {
    static const size_t sizes[] = {1, 2, 3, 4, 8, 16, 17, 31, 33, 64, 100, 784, 3073, 4096, 5000, LARGEST};
    uint8_t *out = malloc((size_t)ROWS * LARGEST);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t state = (uint32_t)i;
        int64_t rows[ROWS];
        row_table table = {.shards = SHARDS, .edges = edges, .from = from + i * SHARDS};
        for (int k = 0; k < ROWS; k++) rows[k] = next(&state) % (2 * ROWS) - (int64_t)ROWS;
        size_t done = kernels_plain.gather(table_of(&table, sizes[i]), rows, ROWS, out);
        print_digest(to, "gather", (long)done, out, done * sizes[i]);
    }
    free(out);
}

/* Tables of levels: none, random ones of 1, 2 and 4 bytes, and a scale and a shift of each channel in float32, bfloat16. */
static void run_small(FILE *to, const uint8_t *_Atomic *from, const size_t *image, const size_t *canvas) {
    static const size_t items[] = {1, 1, 2, 4, 4, 2};
    uint32_t state = 1, levels[5 * 256];
    float factors[10];
    int64_t rows[COUNT], offset[2 * COUNT], first[2 * COUNT], last[2 * COUNT];
    uint8_t flip[COUNT], *scratch = malloc(1 << 16), *out = malloc(COUNT * canvas[0] * canvas[1] * image[2] * 4);
    for (int i = 0; i < COUNT; i++) rows[i] = next(&state) % ROWS, flip[i] = next(&state) & 1;
    for (int i = 0; i < 2 * COUNT; i++) {
        offset[i] = i % COUNT < 5 ? 0 : next(&state) % 17 - (int64_t)8;
        first[i] = next(&state) % 7 - (int64_t)3, last[i] = i % COUNT < 9 ? 1000 : next(&state) % 60;
    }
    for (int i = 0; i < 10; i++) factors[i] = (float)next(&state) / (1 << 20) - 8;
    row_table table = {.shards = SHARDS, .edges = edges, .from = from};
    table_of(&table, image[0] * image[1] * image[2]);
    for (int look = 0; look < 6; look++) {
        for (size_t i = 0; i < 256 * image[2]; i++) {
            float value = (float)(i % 256) * factors[i / 256] + factors[image[2] + i / 256];
            uint32_t bits;
            memcpy(&bits, &value, 4);
            if (look < 4) bits = next(&state) << 8 ^ next(&state);
            else if (look == 5) bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            if (items[look] == 1) ((uint8_t *)levels)[i] = (uint8_t)bits;
            else if (items[look] == 2) ((uint16_t *)(void *)levels)[i] = (uint16_t)bits;
            else
                levels[i] = bits;
        }
        moves all = {.image = {image[0], image[1], image[2]}, .canvas = {canvas[0], canvas[1]}, .count = COUNT,
                     .offset = offset, .first = first, .last = last, .flip = flip, .levels = look ? levels : NULL,
                     .factors = look > 3 ? factors : NULL, .item = items[look], .scratch = 1 << 14, .fill = 17};
        size_t done = kernels_plain.small(&table, &all, rows, COUNT, out, scratch);
        print_digest(to, "small", (long)done, out, done * canvas[0] * canvas[1] * image[2] * items[look]);
    }
    free(scratch), free(out);
}

static void *run_all(void *from) {
    char *text;
    size_t nbytes;
    FILE *to = open_memstream(&text, &nbytes);
    run_crops(to);
    run_gather(to, from);
    static const size_t sizes[][4] = {{9, 7, 9, 7}, {28, 28, 28, 28}, {6, 40, 5, 33}, {1, 1, 3, 2}, {5, 18, 9, 50}};
    const uint8_t *_Atomic *small = (const uint8_t *_Atomic *)from + 16 * SHARDS;
    for (size_t channels = 1; channels <= 5; channels++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, small += SHARDS)
            run_small(to, small, (size_t[]){sizes[i][0], sizes[i][1], channels}, sizes[i] + 2);
    for (size_t channels = 1; channels <= 4; channels++) {
        uint64_t sums[8];
        kernels_plain.sums(pixels, 100003, channels, sums);
        print_digest(to, "sums", (long)channels, sums, 16 * channels);
    }
    fclose(to);
    return text;
}

int main(int count, char **arguments) {
    static const uint8_t *_Atomic from[(16 + 25) * SHARDS];
    enum { MOST = 16 };
    pthread_t threads[MOST];
    uint32_t state = 7;
    int threads_count = count == 3 ? atoi(arguments[2]) : 0, is_same = 1;
    FILE *file = count == 3 ? fopen(arguments[1], "rb") : NULL;
    if (!file || threads_count < 1 || threads_count > MOST) return fputs("replay CASES THREADS\n", stderr), 2;
    fseek(file, 0, SEEK_END), cases_nbytes = (size_t)ftell(file), rewind(file);
    cases = malloc(cases_nbytes + 1), pixels = malloc((size_t)ROWS * LARGEST);
    if (fread(cases, 1, cases_nbytes, file) != cases_nbytes) return 2;
    for (size_t i = 0; i < (size_t)ROWS * LARGEST; i++) pixels[i] = (uint8_t)next(&state);
    for (int i = 0; i < threads_count; i++) pthread_create(&threads[i], NULL, run_all, from);
    char *first = NULL;
    for (int i = 0; i < threads_count; i++) {
        void *text;
        pthread_join(threads[i], &text);
        if (first) is_same &= !strcmp(first, text), free(text);
        else
            first = text;
    }
    fputs(first, stdout);
    free(first), free(cases), free(pixels), fclose(file);
    return is_same ? 0 : (fputs("threads have different results\n", stderr), 1);
}
