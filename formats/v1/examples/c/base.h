#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;
typedef unsigned __int128 u128; /* 5.2: products of two numbers below 2^53 */
typedef struct {
    const u8 *data;
    u64 size;
} Bytes;
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are read as they lie in the file");
enum { PATH = 512, MIB = 1 << 20, VALUES = 2097152, DEPTH = 64, MEMORY = 1 << 30 };
static const u64 LIMIT = 1ull << 53;

/* ---- Problems and memory ---- */

static const char *reason; /* of the first problem */

/* Notes a problem and goes on. A path is escaped for the terminal (11). */
static void report(const char *code, const char *where) {
    for (; *where; where++) fputc(*where >= ' ' && *where <= '~' ? *where : '?', stderr);
    fprintf(stderr, ": %s\n", code);
    if (!reason) reason = code;
}

static _Noreturn void refuse(const char *code, const char *where) {
    report(code, where);
    printf("{\"reason\": \"%s\"}\n", reason);
    exit(1);
}

/* Memory and maps form a stack. `release` gives back all that were taken after a mark. */
typedef union Block {
    struct {
        union Block *below;
        void *map;
        u64 size;
    } in;
    max_align_t align;
} Block;
static Block *blocks;

static void *take(u64 size) {
    Block *block = size <= MEMORY ? calloc(1, sizeof(Block) + size) : NULL;
    if (!block) refuse("too-large", "memory");
    block->in.below = blocks;
    blocks = block;
    return block + 1;
}

static void release(Block *mark) {
    while (blocks != mark) {
        Block *below = blocks->in.below;
        if (blocks->in.map) munmap(blocks->in.map, blocks->in.size);
        free(blocks);
        blocks = below;
    }
}

/* Sorts items and tells whether no two are alike. */
static bool distinct(void *items, u64 count, size_t width, int (*compare)(const void *, const void *)) {
    if (count > 1) qsort(items, count, width, compare);
    for (u64 i = 1; i < count; i++)
        if (!compare((u8 *)items + (i - 1) * width, (u8 *)items + i * width)) return false;
    return true;
}

/* ---- SHA-256 (FIPS 180-4) and CRC-32C (RFC 3720) ---- */

/* The first 32 bits behind the point of the square or cube root of a prime: the constants of SHA-256. */
static u32 root_bits(u32 prime, int power) {
    u128 root = 0;
    for (u64 bit = 1ull << 40; bit; bit >>= 1) {
        u128 t = root | bit;
        if (power == 2 ? t * t <= (u128)prime << 64 : t * t * t <= (u128)prime << 96) root = t;
    }
    return (u32)root;
}

static void sha256(Bytes b, u8 digest[32]) {
    static u32 k[64], start[8];
    for (u32 p = 2, n = 0; n < 64 && !k[63]; p++) {
        u32 d = 2;
        while (d * d <= p && p % d) d++;
        if (d * d <= p) continue;
        if (n < 8) start[n] = root_bits(p, 2);
        k[n++] = root_bits(p, 3);
    }
#define TURN(x, n) ((x) >> (n) | (x) << (32 - (n)))
    u32 h[8], w[64], v[8];
    u8 last[128] = {0};
    u64 tail = b.size % 64, blocks_count = b.size / 64, ends = tail < 56 ? 1 : 2;
    memcpy(h, start, sizeof h);
    if (tail) memcpy(last, b.data + b.size - tail, tail);
    last[tail] = 0x80;
    for (int i = 0; i < 8; i++) last[64 * ends - 1 - i] = (u8)(b.size * 8 >> 8 * i);
    for (u64 block = 0; block < blocks_count + ends; block++) {
        const u8 *p = block < blocks_count ? b.data + 64 * block : last + 64 * (block - blocks_count);
        for (int i = 0; i < 16; i++, p += 4) w[i] = (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3];
        for (int i = 16; i < 64; i++) {
            u32 a = w[i - 15], z = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (TURN(a, 7) ^ TURN(a, 18) ^ a >> 3) + (TURN(z, 17) ^ TURN(z, 19) ^ z >> 10);
        }
        memcpy(v, h, sizeof v);
        for (int i = 0; i < 64; i++) {
            u32 a = v[0], e = v[4], choice = (e & v[5]) ^ (~e & v[6]),
                majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
            u32 t = v[7] + (TURN(e, 6) ^ TURN(e, 11) ^ TURN(e, 25)) + choice + k[i] + w[i];
            memmove(v + 1, v, 7 * sizeof *v);
            v[4] += t;
            v[0] = t + (TURN(a, 2) ^ TURN(a, 13) ^ TURN(a, 22)) + majority;
        }
        for (int i = 0; i < 8; i++) h[i] += v[i];
    }
    for (int i = 0; i < 32; i++) digest[i] = (u8)(h[i / 4] >> (24 - i % 4 * 8));
}

static const char *sha256_hex(Bytes b) {
    static char hex[65];
    u8 digest[32];
    sha256(b, digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return hex;
}

static u32 crc32c(const u8 *data, u64 size) {
    static u32 table[256];
    for (u32 i = 0; i < 256 && !table[255]; i++) {
        u32 c = i;
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
        table[i] = c;
    }
    u32 crc = ~0u;
    for (u64 i = 0; i < size; i++) crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
    return ~crc;
}
