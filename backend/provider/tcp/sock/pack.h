/* Lossless compression of floats. STUB: replaced by the codec's branch. */
#ifndef GORAIL_TCP_PACK_H
#define GORAIL_TCP_PACK_H

#include <stdint.h>
#include <string.h>

enum { PACK_BLOCK = 64 << 10, PACK_HEAD = 8, PACK_ROOM = PACK_HEAD + PACK_BLOCK };
typedef struct pack_scratch { int none; } pack_scratch;
typedef struct pack_hint { int none; } pack_hint;
uint32_t pack_encode(pack_scratch *s, pack_hint *h, uint8_t *to, const uint8_t *from, uint32_t n);
uint32_t pack_length(const uint8_t head[PACK_HEAD], uint32_t n);
int pack_decode(pack_scratch *s, uint8_t *to, uint32_t n, const uint8_t *from, uint32_t len);

#endif
