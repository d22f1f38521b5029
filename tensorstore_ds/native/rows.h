/* Rows of a table into a batch. */
#ifndef TSDS_ROWS_H
#define TSDS_ROWS_H
#include <string.h>

#include "core.h"

static void gather_rows(const uint8_t *table, size_t nbytes, const int64_t *rows, size_t count, uint8_t *out) {
    for (size_t i = 0; i < count; i++) memcpy(out + i * nbytes, table + (size_t)rows[i] * nbytes, nbytes);
}
#endif
