/* Arguments of the kernels that pack a chunk of floats on a GPU, and unpack it (kernel/pack.cu). The driver, the kernels and the fake driver
 * include this header.
 *
 * A chunk is cut into blocks of 64 KiB, and each is packed by itself: provider/tcp/sock/pack.h has the form of a block. The last block may be
 * shorter, and then goes plain (or as zeros). A packed chunk, little endian:
 *
 *   table   length of each block, 4 bytes each; zeros up to a multiple of GR_PACK_ALIGN
 *   blocks  each with zeros up to a multiple of GR_PACK_ALIGN
 */
#ifndef GORAIL_GPU_PACK_H
#define GORAIL_GPU_PACK_H

#include <stdint.h>

enum {
    GR_PACK_TEXT = 64 << 10, /* bytes of a block in clear: PACK_BLOCK */
    GR_PACK_ALIGN = 16,
    GR_PACK_STRIDE = GR_PACK_TEXT + GR_PACK_ALIGN, /* from one packed block to the next before they are put together */
    GR_PACK_GAIN = 33,       /* a chunk that shrinks by less than one of so many bytes goes in clear */
    GR_PACK_THREADS = 1024,  /* of a thread block: 33 of them pack 183 GB/s and unpack 170 (H200); of 512, 166 and 128, and the driver takes twice as long to translate them */
};

/* The parameter of all three kernels, which run on one stream:
 *
 *   gr_pack     text -> blocks, lens: one thread block takes blocks in turn
 *   gr_pack_out blocks, lens -> slot, as a packed chunk. If that has no room or does not gain: text -> slot. Then word->packed, word->done
 *   gr_unpack   blocks (a packed chunk) -> text. If that is no packed chunk: word->bad = seq, mark->cancel = seq, so that the copy
 *               behind it stops */
typedef struct gr_pack_args {
    uint64_t text;   /* GPU memory, aligned to 16 */
    uint64_t blocks; /* GPU memory, aligned to 16: GR_PACK_STRIDE bytes for each block, or the packed chunk */
    uint64_t lens;   /* uint32_t * in GPU memory, one for each block; gr_unpack does not use it */
    uint64_t slot;   /* pinned host memory, aligned to 16 */
    uint64_t word;   /* gr_gather_word * of the job */
    uint64_t mark;   /* gr_gather_mark * of the job */
    uint32_t bytes;  /* of the text */
    uint32_t packed; /* gr_pack_out: bytes that the slot has room for; gr_unpack: bytes of the packed chunk */
    uint32_t seq;    /* gr_pack_out: this launch; gr_unpack: the launch of the copy behind it */
    uint32_t pad;
} gr_pack_args;
_Static_assert(sizeof(gr_pack_args) == 64, "the parameter of the kernels");

#ifdef __cplusplus
#define GR_PACK_FUNCTION constexpr /* the kernels call it, too */
#else
#define GR_PACK_FUNCTION static inline
#endif
GR_PACK_FUNCTION uint32_t gr_pack_blocks(uint64_t bytes) { return (uint32_t)((bytes + GR_PACK_TEXT - 1) / GR_PACK_TEXT); }
GR_PACK_FUNCTION uint64_t gr_pack_aligned(uint64_t n) { return (n + GR_PACK_ALIGN - 1) & ~(uint64_t)(GR_PACK_ALIGN - 1); }

#endif
