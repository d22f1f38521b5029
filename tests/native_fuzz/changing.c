/* A map whose bytes another thread changes while the kernels read it: they stay in their memory, and afterwards their
 * context has the results of a new one. The arguments are an input of the fuzzer, and for how many seconds. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "context.h"

enum { SIDE = 32 };
static volatile uint8_t *bytes; /* up to a page that cannot be read */
static size_t nbytes;
static atomic_int is_over;

static void *change(void *sound) {
    uint32_t state = 1;
    while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
        state = state * 1664525u + 1013904223u;
        size_t at = state >> 9;
        at = state & 256 ? at % nbytes : at % (nbytes < 700 ? nbytes : 700); /* headers come first */
        for (int i = 0; i < 40; i++) bytes[at] = i & 1 ? ((uint8_t *)sound)[at] : (uint8_t)(state & 128 ? state >> 1 : 255 * (state & 1));
    }
    return NULL;
}

static int crop(context *own, bytes_view file, bytes_view table, const crop_job *job, uint8_t *out) {
    crop_shard shard = {file, table, table};
    const jpeg_entry *entries;
    pixel_sums sums;
    kernels_plain.index(own, file, &entries, &sums);
    memset(out, 0, SIDE * SIDE * 3);
    return kernels_plain.crop(own, &shard, 1, job, NULL, SIDE, SIDE, job->components, out);
}

int main(int count, char **arguments) {
    static uint8_t input[1 << 20], out[SIDE * SIDE * 3], again[sizeof out];
    FILE *from = count == 3 ? fopen(arguments[1], "rb") : NULL;
    crop_job job;
    uint16_t table_nbytes;
    size_t all = from ? fread(input, 1, sizeof input, from) : 0, start = sizeof job + 2;
    if (all < start) return 2;
    memcpy(&job, input, sizeof job), memcpy(&table_nbytes, input + sizeof job, 2);
    bytes_view table = {input + start, table_nbytes};
    uint8_t *sound = input + start + table_nbytes;
    nbytes = all - start - table_nbytes;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (nbytes + page - 1) / page * page;
    uint8_t *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + room, page, PROT_NONE)) return 2;
    bytes = map + room - nbytes;
    memcpy((uint8_t *)bytes, sound, nbytes);
    bytes_view file = {(uint8_t *)bytes, nbytes};

    static context both[2];
    context *own = both, *fresh = both + 1;
    int expected = crop(fresh, file, table, &job, again);
    pthread_t changing;
    if (pthread_create(&changing, NULL, change, sound)) return 2;
    long tries = 0, sound_ones = 0;
    for (time_t end = time(NULL) + atoi(arguments[2]); time(NULL) < end;)
        for (int i = 0; i < 50; i++, tries++) sound_ones += crop(own, file, table, &job, out) == CROP_OK;
    atomic_store(&is_over, 1), pthread_join(changing, NULL);
    memcpy((uint8_t *)bytes, sound, nbytes);
    int code = crop(own, file, table, &job, out);
    printf("%ld tries, %ld without an error, then %d instead of %d\n", tries, sound_ones, code, expected);
    return code != expected || memcmp(out, again, sizeof out) || expected != CROP_OK;
}
