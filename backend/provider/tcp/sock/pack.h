/* Lossless compression of floats, in blocks. A block's form, little endian on all machines:
 *
 *   head    kind, bytes of an element, base, bits of a code, number of exceptions (4 bytes)
 *   codes   bits rows of elements/8 bytes
 *   rest    the elements without their top bytes
 *   tail    bytes behind the last 8 elements, as they are
 *   exceptions
 *
 * An element is rotated left by one bit: its top byte is then the exponent (bf16, fp32), or the exponent and mantissa bits (fp16, fp8), and
 * the sign is the lowest bit. The code of a top byte is top - base, if that is below 2^bits - 1. Else the code is 2^bits - 1, and the top
 * byte is the next one of the exceptions. A kind without codes has only the head (zeros), or the head and the bytes (plain). */
#ifndef GORAIL_TCP_PACK_H
#define GORAIL_TCP_PACK_H

#include <stdint.h>

enum { PACK_BLOCK = 64 << 10, PACK_HEAD = 8, PACK_ROOM = PACK_HEAD + PACK_BLOCK };

/* Memory of an encoder or a decoder, zeroed at first. */
typedef struct pack_scratch {
    uint8_t top[PACK_BLOCK + 64]; /* top bytes of a block, and what fills the last mask */
} pack_scratch;

/* What the last block of a stream was, zeroed at first. Any value gives right bytes. */
typedef struct pack_hint {
    uint8_t width, base, bits; /* width 0: nothing is known */
    uint8_t left;              /* blocks that need no search */
    uint8_t pause;             /* that many the last time, after a block that was plain */
    uint16_t cost;             /* 1024ths of the block's bytes */
} pack_hint;

/* Writes n bytes (1 to PACK_BLOCK) as a block to PACK_ROOM bytes. Returns the bytes written, PACK_HEAD + n at most. from must not change
 * meanwhile, and must not overlap to. */
uint32_t pack_encode(pack_scratch *s, pack_hint *h, uint8_t *to, const uint8_t *from, uint32_t n);

/* Returns the bytes of the block with its head, for n bytes of text. 0: no block of n bytes has this head. */
uint32_t pack_length(const uint8_t head[PACK_HEAD], uint32_t n);

/* Returns 0, or -1: pack_encode did not write that. Reads at most len bytes and writes at most n, whatever the bytes are. */
int pack_decode(pack_scratch *s, uint8_t *to, uint32_t n, const uint8_t *from, uint32_t len);

#endif
