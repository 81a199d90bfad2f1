/* Transfers: their sub-transfers on links, the batches of operations that sub-transfers take, and the work requests made
 * from batches. */
#ifndef GORAIL_TRANSFER_H
#define GORAIL_TRANSFER_H

#include "link.h"

enum {
    TX_RESERVE = 8,      /* queue depth kept free for messages */
    COMBINE = 128 << 10, /* bytes of descriptors packed into one work request */
    QUANTUM = 256 << 10, /* bytes that a sub-transfer posts before the next sub-transfer's turn */
    CHAIN = 512 << 10,   /* bytes of WRITEs that one acknowledgement proves: see wr.c */
    BATCH_OPS = 64,      /* most descriptors that a link takes at a time */
    WR_COST = 16 << 10,  /* least cost of a work request in turns and budgets, in bytes: about 3 us of copying */
};

struct batch { /* consecutive operations of a transfer, taken by one link */
    batch *next, *prev; /* subxfer->batches, xfer->queue.returned or a free list */
    subxfer *sub;
    uint64_t first, count, posted;
    uint64_t off;        /* bytes posted of the next operation after the `posted` ones */
    uint64_t unflushed_bytes; /* bytes of unsignaled WRITEs that no later WRITE proves yet; they count as in flight */
    gr_seg unflushed_end;     /* where the last of them with bytes went */
    uint32_t inflight, wrs; /* work requests: in flight, posted */
    uint8_t failed; /* an operation failed and may still land: the batch waits until the peer's endpoint is known to be closed */
    uint8_t at_fault; /* its own operation was the first to fail on the link */
    uint8_t tries;  /* how often it was the first to fail */
};

struct subxfer { /* a transfer's share on one link */
    cmd start;
    gr_link *link;
    xfer *x;
    subxfer *next, *prev; /* link->work.todo or .waiting */
    batch *batches, *cur;   /* batches taken and not ended; the batch that is being posted */
    _Atomic uint64_t bytes; /* bytes completed over this link */
    uint8_t own, peer; /* the link's rails, noted here: the link may belong to another session once the transfer has ended */
    uint8_t listed;    /* 0, LIST_TODO or LIST_WAITING */
    uint8_t yields;    /* it waits, without batches, while it leaves its link to small transfers */
    uint8_t exclusive; /* it has the transfer's last batch, and the notification goes out behind the batch: see xfer_exclusive */
    _Atomic uint8_t active; /* counted in subs_left */
    _Atomic uint8_t idle; /* nothing is posted; a hint */
    _Atomic uint8_t release_queued; /* release is in the rail's inbox and counted in subs_left */
    cmd release;
    cmd late; /* gr_xfer_join came too late: gives its counts in subs_left back, on the rail of the exclusive sub-transfer late_sub */
    uint32_t late_sub;
    _Atomic uint32_t late_count; /* counts that late gives back: a link may come up again before late runs */
};

struct xfer {
    gr_xfer pub;
    uint64_t room; /* operations that pub.ops has room for */
    gr_core *core;
    xfer *free_next;
    gr_sess *sess;
    uint64_t sess_id; /* of the last round; sess may be gone */
    int op;
    uint8_t has_notif;
    uint8_t prove; /* gr_xfer_prove */
    _Atomic uint32_t shared;  /* SHARED: several links have worked on this round. EXCLUSIVE and a sub-transfer's number: no other may join */
    _Atomic uint32_t replays; /* how many links failed under the transfer */
    subxfer *subs;
    uint32_t nsubs, sub_cap;
    uint32_t near; /* how many of the first sub-transfers have links near the local memory */
    cmd fin; /* runs the notification's turn on the rail of the session's notification link */
    msg msg;
    struct {
        gr_rail *rail; /* the rail whose memory holds the operations; NULL: the transfer uses work requests */
        gr_bulk_region *regions; /* local regions first */
        uint32_t nlocal, nremote;
        int ranged; /* the regions have their `from` and `to` */
    } bulk;
    struct {
        pthread_mutex_t mu; /* taken after a rail's lock */
        uint64_t next; /* all operations before this one have been taken */
        batch *returned;   /* batches taken, and returned without completion */
    } queue;
    struct owed owed; /* events for Go; events.mu */
};

enum { SHARED = 1, EXCLUSIVE = 2, /* the sub-transfer's number follows */ EXCLUSIVE_SHIFT = 2 };

struct xfer_block {
    struct xfer_block *next;
    xfer x[64];
};

/* ops.c */
typedef struct ops_mem {
    gr_op *ops;
    uint64_t room; /* operations */
    gr_rail *rail; /* whose memory it is; NULL: the heap */
} ops_mem;
int ops_new(gr_core *core, int rail, uint64_t nops, ops_mem *mem); /* rail < 0: the heap. 0 or -ENOMEM */
void ops_free(gr_core *core, const ops_mem *mem);
void ops_drop(xfer *x);

/* ops.c: batches */
int queue_has(xfer *x);
void queue_drop(xfer *x, rail_st *rail);
batch *batch_take(subxfer *p, int *later);
void batch_end(batch *r);
void batch_return(batch *r);
int batch_flush(batch *r);
int sub_unposted(const subxfer *p);

/* xfer.c */
void xfer_end(xfer *x);
void xfer_fail(xfer *x, int err, int wire_err);
void xfer_data_done(xfer *x, gr_link *link);
int xfer_exclusive(subxfer *p);
void xfer_not_exclusive(subxfer *p, uint32_t now);
void xfer_try_pipeline(subxfer *p);

/* xfer.c: times */
void xfer_time(xfer *x, rail_st *rail);
void xfer_trace(xfer *x);

/* ops.c: bulk transfers */
void bulk_stop(subxfer *p);
void bulk_free(xfer *x);
/* Sets the regions' `from` and `to`, once. After their `addr` and `len`. */
void bulk_ranges(xfer *x);

/* subxfer.c */
enum { LIST_TODO = 1, LIST_WAITING = 2 };
void sub_list(subxfer *p, int which);
void sub_unlist(subxfer *p);
void sub_release(rail_st *rail, cmd *self);
void sub_late(rail_st *rail, cmd *self);
int sub_drop(subxfer *p);
void sub_deactivate(subxfer *p);
int sub_activate_others(subxfer *p);
int xfer_yields(const xfer *x, const gr_link *link);
int sub_yield(subxfer *p);
void sub_look(gr_link *link);
void sub_leave(subxfer *p);
void sub_out(xfer *x, gr_link *link);
int sub_evict(subxfer *p);

/* wr.c */
enum { POSTED, NO_ROOM, REGION_GONE, NOTHING, YIELDS };
int wr_post(gr_link *link, subxfer *p, uint64_t *bytes);
int wr_post_bulk(gr_link *link, subxfer *p);
void wr_done(ctx *c, int err);

/* wr.c: posting */
void link_pump(gr_link *link, uint64_t budget);
void sub_start(rail_st *rail, cmd *self);

#endif
