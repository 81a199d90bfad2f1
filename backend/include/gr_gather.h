/* Arguments and shared words of the copy kernel (kernel/gather.cu). The driver, the kernel and the fake driver include this
 * header. */
#ifndef GORAIL_GATHER_H
#define GORAIL_GATHER_H

#include <stdint.h>

#include "gr_op.h"

enum {
    GR_GATHER_THREADS = 256, /* threads of a block: 8 warps; each warp copies by itself */
    GR_GATHER_WARP = 32,
    GR_GATHER_RUN = 16,      /* largest number of slices that a warp takes at a time */
    GR_GATHER_ROUND = 2048,  /* bytes that a warp has in flight: 4 times 16 a thread */
    GR_GATHER_LOOK = 32768,  /* bytes that a warp copies between two reads of the cancel word */
};

/* Words of one job in GPU memory, which thousands of warps may read at once. A word in host memory is read only about once
 * a microsecond in all (measured: 10,000 reads took 9.3 ms). */
typedef struct gr_gather_mark {
    uint32_t ended;  /* blocks that have ended; 0 before and after a launch */
    uint32_t cancel; /* seq of a launch that must stop; a copy engine writes it */
    uint32_t pad[2];
} gr_gather_mark;

/* Words of one job in pinned host memory. */
typedef struct gr_gather_word {
    uint32_t done;    /* seq of the launch; the kernel's last store. Every byte is then in place, unless stopped is this seq too */
    uint32_t stopped; /* seq of a launch in which some warp stopped early */
    uint32_t cancel;  /* value that the copy engine copies to the mark */
    uint32_t packed;  /* gr_pack_out: bytes of the packed chunk; 0: the slot has it in clear */
    uint32_t bad;     /* gr_unpack: seq of the copy behind it: what was to be unpacked is no packed chunk */
    uint32_t pad[11];
} gr_gather_word;
_Static_assert(sizeof(gr_gather_word) == 64, "one cache line");

typedef struct gr_gather_args {
    uint64_t ops;    /* gr_op *, pinned */
    uint64_t table;  /* uint64_t * in GPU memory, indexed by remote region; or 0 */
    uint64_t delta;  /* added to every remote address */
    uint64_t word;   /* gr_gather_word * */
    uint64_t mark;   /* gr_gather_mark * */
    uint32_t nops;
    uint32_t split;  /* slices of each operation */
    uint32_t run;    /* slices that a warp takes at a time, 1 to GR_GATHER_RUN */
    uint32_t write;
    uint32_t seq;
    uint32_t pad;
} gr_gather_args;
_Static_assert(sizeof(gr_gather_args) == 64, "the parameter of gr_gather");

/* A few operations travel in the launch parameters. Each read of host memory costs a microsecond, and many readers of one
 * address wait for each other. */
typedef struct gr_gather_piece {
    uint64_t from, to, len;
} gr_gather_piece;

enum { GR_GATHER_FEW = 128 };
typedef struct gr_gather_few {
    gr_gather_args args; /* ops, table, delta and write are unused */
    gr_gather_piece piece[GR_GATHER_FEW];
} gr_gather_few;
_Static_assert(sizeof(gr_gather_few) == 3136, "the parameter of gr_gather_short, of at most 4096 bytes");

#endif
