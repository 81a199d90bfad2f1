/* What pack.c does with each element. elements is a multiple of 8, and PACK_LEAST at least. */
#ifndef GORAIL_TCP_PACK_ROWS_H
#define GORAIL_TCP_PACK_ROWS_H

#include <stdint.h>

enum { PACK_LEAST = 256 }; /* elements: a row is a vector at least */

/* Elements of width 1, 2 or 4 bytes to their top bytes and the rest, and back. */
void pack_split(uint8_t *top, uint8_t *rest, const uint8_t *from, uint32_t elements, int width);
void pack_merge(uint8_t *to, const uint8_t *top, const uint8_t *rest, uint32_t elements, int width);

/* Top bytes to codes in rows, and back: an exception becomes base + 2^bits - 1. */
void pack_rows(uint8_t *to, const uint8_t *top, uint32_t elements, uint8_t base, int bits);
void pack_tops(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits);

/* Takes exceptions out of top bytes, or puts them in. They write up to 64 bytes behind the top bytes. They return how many there
 * are, or most + 1 if there are more. */
uint32_t pack_take(uint8_t *to, uint8_t *top, uint32_t elements, uint8_t base, int bits, uint32_t most);
uint32_t pack_put(uint8_t *top, const uint8_t *from, uint32_t elements, uint8_t base, int bits, uint32_t most);

#endif
