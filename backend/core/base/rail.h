/* One device inside the core: its inbox and its message buffers. The upper layers own the contents of its lists. */
#ifndef GORAIL_RAIL_H
#define GORAIL_RAIL_H

#include "session.h"

enum { STARVED = 1, LOOKS = 2 };

enum {
    FRAG = 2048, /* payload bytes of one message: 32 receives of a peer stay below 70 KiB */
    ID_BUCKETS = 256,
};

typedef struct ctx ctx; /* link.h */
typedef struct msg msg; /* message.h */
typedef struct batch batch; /* transfer.h */

typedef struct cmd cmd;
struct cmd { /* a command that the rail's lock holder runs */
    cmd *next;
    void (*run)(rail_st *rail, cmd *self);
};

/* Buffers for any message, and for one without a body: a link that only sends has no other incoming messages, and 1,000 idle ones had 16 MiB. */
enum { BUF_FULL, BUF_HEADER, BUF_KINDS };

typedef struct buf buf;
struct buf { /* a message buffer inside a registered slab */
    buf *next;
    void *desc;
    char *data;
    gr_sess *sess; /* in untaken: whose message it holds, */
    size_t len;    /* of so many bytes */
    int kind;
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

    /* fields for any thread */
    _Atomic(cmd *) inbox;
    _Atomic int nlinks;
    _Atomic uint64_t load;   /* bytes in flight on all links */
    _Atomic uint8_t starved; /* STARVED: a link waits for the provider to accept posts again. LOOKS: a link has sub-transfers that yield */
    _Atomic uint64_t count[GR_N_COUNT]; /* counters of all links since the start, freed links included; written under dev->mu */
    _Atomic uint64_t times[GR_TIME_CLASSES][GR_TIME_BUCKETS]; /* as above */
    _Atomic uint64_t now; /* time of the last poll that returned completions; written under dev->mu */

    /* fields under dev->mu */
    LIST_HEAD(, gr_link) links;
    gr_link *by_id[ID_BUCKETS];
    gr_link *shared;      /* pseudo link of a shared endpoint: owns the receives for all peers; else NULL */
    uint32_t rx_surplus;  /* posted receives of the shared endpoint that no link needs any more */
    uint32_t rma_ops;     /* WRITEs and READs in flight on all links */
    uint8_t coarse_clock; /* transfers overlapped since the rail was last idle: timestamps come from core_tick */
    uint8_t work_left;    /* a link has unposted operations, or credits to send: see poll_inline */
    struct {
        ctx *free_ctx;
        ctx *orphans; /* contexts of ended operations without a completion; the library may still use them: no reuse before the completion */
        buf *free_buf[BUF_KINDS];
        buf *untaken; /* messages that came in while memory was short */
        batch *free_batch;
        msg *free_msg; /* of msg_detach */
        struct slab *slabs;
    } mem;
};

/* Adds to a counter of the rail or of its links. Only the holder of the rail's lock writes these counters, so no locked
 * instruction is needed. Any thread may read. */
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}

/* The time of the last poll that returned completions. */
static inline uint64_t rail_now(const rail_st *rail) { return atomic_load_explicit(&rail->now, memory_order_relaxed); }

/* rail.c */
void rail_push(rail_st *rail, cmd *c);
void rail_inbox(rail_st *rail);
void rail_wake_starved(rail_st *rail);
/* Wakes the thread that polls the rail. */
static inline void rail_wake(const rail_st *rail) { worker_wake(&rail->core->workers[rail->dev->worker]); }
size_t rail_msg_size(const rail_st *rail);
size_t rail_buf_size(const rail_st *rail, int kind);
buf *rail_buf(rail_st *rail, int kind);
void rail_buf_put(rail_st *rail, buf *b);

#endif
