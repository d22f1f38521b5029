/* The order of an epoch, with the numbers that NumPy draws: numpy.random.Generator(PCG64).shuffle, to the bit. */
#ifndef TSDS_ORDER_H
#define TSDS_ORDER_H
#include <stddef.h>
#include <stdint.h>

enum { DRAWN = 256 }; /* numbers that are drawn before they are used, so that their places can be asked for */

__extension__ typedef unsigned __int128 wide;

/* PCG XSL RR 128/64 (O'Neill, 2014), of which two numbers of 32 bits come from one of 64: `high` is the second one. */
typedef struct {
    wide state, step;
    uint32_t high;
    int has_high;
} pcg64;

static inline uint32_t next_number(pcg64 *random) {
    random->has_high = !random->has_high;
    if (!random->has_high) return random->high;
    const wide factor = (wide)0x2360ED051FC65DA4 << 64 | 0x4385DF649FCCF645;
    random->state = random->state * factor + random->step;
    uint64_t mixed = (uint64_t)(random->state >> 64) ^ (uint64_t)random->state;
    unsigned turn = (unsigned)(random->state >> 122);
    mixed = mixed >> turn | mixed << (-turn & 63);
    random->high = (uint32_t)(mixed >> 32);
    return (uint32_t)mixed;
}

/* Fisher and Yates, of 0 to `count` - 1, at most 2^32. Each place is drawn with a mask, again if it is too large. */
static void shuffle_order(pcg64 random, int64_t *order, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) order[i] = (int64_t)i;
    if (count < 2) return;
    uint32_t last = (uint32_t)(count - 1), mask = UINT32_MAX, places[DRAWN];
    while (last) {
        uint32_t left = last;
        size_t n = 0;
        while (n < DRAWN && left) {
            while (left <= mask >> 1) mask >>= 1;
            places[n] = next_number(&random) & mask;
            int fits = places[n] <= left; /* added, because nobody could predict a branch */
            n += (size_t)fits, left -= (uint32_t)fits;
        }
        for (size_t i = 0; i < n; i++) __builtin_prefetch(order + places[i], 1, 3);
        for (size_t i = 0; i < n; i++, last--) {
            int64_t row = order[last];
            order[last] = order[places[i]], order[places[i]] = row;
        }
    }
}
#endif
