/* What the copy kernel (kernel/gather.cu) is launched with. Read by the driver, the kernel and the imitation of the driver. */
#ifndef GORAIL_GATHER_H
#define GORAIL_GATHER_H

#include <stdint.h>

#include "gr_op.h"

enum {
    GR_GATHER_THREADS = 256, /* of a block: 8 warps, each copies by itself */
    GR_GATHER_WARP = 32,
    GR_GATHER_RUN = 16,      /* slices that a warp takes at a time, at most */
    GR_GATHER_ROUND = 2048,  /* bytes that a warp has in flight: 4 times 16 a thread */
    GR_GATHER_LOOK = 32768,  /* bytes that a warp copies between two looks at the cancel word */
};

/* Of one job, in the GPU's memory, where thousands of warps may look at once: the same word of the host's memory is read once a
 * microsecond, by whoever it is (measured: 10,000 looks at it took 9.3 ms). */
typedef struct gr_gather_mark {
    uint32_t ended;  /* blocks; 0 before and after */
    uint32_t cancel; /* launches of this seq are to stop; written by a copy engine */
    uint32_t pad[2];
} gr_gather_mark;

/* Of one job, in pinned memory. */
typedef struct gr_gather_word {
    uint32_t done;    /* the kernel's last store: seq of the launch, every byte of which is in place, but: */
    uint32_t stopped; /* seq of a launch of which some warp stopped early */
    uint32_t cancel;  /* what is copied to the mark */
    uint32_t pad[13];
} gr_gather_word;
_Static_assert(sizeof(gr_gather_word) == 64, "one cache line");

typedef struct gr_gather_args {
    uint64_t ops;    /* gr_op *, pinned */
    uint64_t table;  /* uint64_t *, in the GPU's memory, by remote region, or 0 */
    uint64_t delta;  /* of all */
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

/* Few operations go along with the launch: each read of the host's memory costs a microsecond, and many readers of one address
 * queue up. */
typedef struct gr_gather_piece {
    uint64_t from, to, len;
} gr_gather_piece;

enum { GR_GATHER_FEW = 128 };
typedef struct gr_gather_few {
    gr_gather_args args; /* ops, table, delta and write mean nothing */
    gr_gather_piece piece[GR_GATHER_FEW];
} gr_gather_few;
_Static_assert(sizeof(gr_gather_few) == 3136, "the parameter of gr_gather_short, of at most 4096 bytes");

#endif
