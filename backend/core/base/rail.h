/* One device inside the core: its inbox and its message buffers. What is in its lists is the upper layers'. */
#ifndef GORAIL_RAIL_H
#define GORAIL_RAIL_H

#include "session.h"

enum {
    FRAG = 2048, /* payload bytes of one message: 32 receives a peer stay below 70 KiB */
    ID_BUCKETS = 256,
};

typedef struct ctx ctx; /* link.h */
typedef struct batch batch; /* transfer.h */

typedef struct cmd cmd;
struct cmd { /* work for whoever holds the rail next */
    cmd *next;
    void (*run)(rail_st *rail, cmd *self);
};

typedef struct buf buf;
struct buf { /* a message buffer inside a registered slab */
    buf *next;
    void *desc;
    char *data;
};

struct slab {
    struct slab *next;
    void *mr;
    char *mem;
    buf *bufs;
};

struct rail_st {
    gr_core *core;
    gr_rail *dev;
    int index;
    rail_st *next; /* core->dropped */

    /* any thread */
    _Atomic(cmd *) inbox;
    _Atomic int nlinks;
    _Atomic uint64_t load;   /* bytes in flight */
    _Atomic uint8_t starved; /* some link waits for the provider to take posts again */
    _Atomic uint64_t count[GR_N_COUNT]; /* of all its links, those that are gone included; written under dev->mu */

    /* dev->mu */
    gr_link *links;
    gr_link *by_id[ID_BUCKETS];
    gr_link *turn;       /* cfg.inflight_ops was reached: it goes first when there is room */
    gr_link *shared;     /* has the receives of an endpoint that all peers share; else NULL */
    uint32_t rx_surplus; /* receives of the shared link's that no link needs any more */
    uint32_t rma_ops;    /* WRITEs and READs in flight on all links */
    uint64_t now;        /* time of the last poll that found something */
    uint8_t stream;      /* transfers were posted beside others since it was idle: times are the core's tick */
    uint8_t more;        /* some link has left operations unposted, or owes credits: see poll_inline */
    struct {
        ctx *free_ctx;
        ctx *orphans; /* ended without a completion: not used again before one comes, the library may still know them */
        buf *free_buf;
        batch *free_batch;
        struct slab *slabs;
    } mem;
};

/* Only whoever holds the rail writes its counters and its links', so that no locked instruction is needed; anybody may read. */
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}

/* rail.c */
void rail_push(rail_st *rail, cmd *c);
void rail_inbox(rail_st *rail);
void rail_unstarve(rail_st *rail);
int rail_full(const rail_st *rail);
size_t rail_msg_size(const rail_st *rail);
buf *rail_buf(rail_st *rail);
void rail_buf_put(rail_st *rail, buf *b);

#endif
