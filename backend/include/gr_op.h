/* One operation of a transfer. The plan writes it, the core posts it, and a GPU's copy kernel reads it. */
#ifndef GORAIL_OP_H
#define GORAIL_OP_H

#include <stdint.h>

/* Same layout as core.Op. */
typedef struct gr_op {
    uint64_t local;
    uint64_t remote;
    uint64_t len;
    uint32_t lregion;
    uint32_t rregion;
} gr_op;

_Static_assert(sizeof(gr_op) == 32, "the kernel reads it as two 16-byte words");

#endif
