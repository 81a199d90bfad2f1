/* Descriptor pairs become operations. C, because it runs for each descriptor: in Go a pair takes 3.5 ns and not 2.5
 * [m: docs/performance.md]. */
#ifndef GR_PAIRS_H
#define GR_PAIRS_H

#include "gr_op.h"

/* One element of a descriptor list: nixlMetaDesc. md is the shim's metadata object. */
typedef struct gr_list_desc {
    uint64_t addr, len, dev;
    uint64_t md;
} gr_list_desc;

/* The range that descriptors with a metadata object may be in. It does not run past the end of the address space. */
typedef struct gr_window {
    uint64_t md, addr, size;
    uint32_t index; /* of the region */
} gr_window;

/* A plan that grows. */
typedef struct gr_plan {
    gr_op *ops;
    uint64_t room, used;     /* operations */
    uint64_t bytes, longest; /* of all operations, and of the longest one */
} gr_plan;

/* Adds the operations of n descriptor pairs. It drops empty pairs, and merges a pair with the operation before if it touches that on both
 * sides. Stops at the first pair that is not in both windows, whose lengths differ, or that there is no room for, and returns the number
 * of pairs before. The caller ensures that the bytes of n such pairs and of the plan are less than 2^63. */
uint64_t gr_plan_pairs(gr_plan *plan, const gr_list_desc *local, const gr_list_desc *remote, uint64_t n, const gr_window *lw,
                       const gr_window *rw);

#endif
