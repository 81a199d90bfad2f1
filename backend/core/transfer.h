/* Transfers: their parts on links, the runs of operations that parts take, the work requests that these become. */
#ifndef GORAIL_TRANSFER_H
#define GORAIL_TRANSFER_H

#include "message.h"

enum {
    TX_RESERVE = 8,      /* queue depth kept free for messages */
    COMBINE = 128 << 10, /* bytes of descriptors packed into one work request */
    QUANTUM = 256 << 10, /* bytes a part posts before the next part's turn */
    CHAIN = 512 << 10,   /* bytes of WRITEs that one acknowledgement proves: see wr.c */
    RUN_OPS = 64,        /* descriptors that a link takes at a time, at most */
    WR_COST = 16 << 10,  /* what a work request counts at least for turns and budgets: about 3 us of copying */
};

struct run { /* consecutive operations of a transfer that one link has taken */
    run *next, *prev; /* part->runs, xfer->queue.back or a free list */
    part *part;
    uint64_t first, count, posted;
    uint64_t off;        /* bytes posted of the operation behind those */
    uint64_t weak_bytes; /* posted by weak WRITEs that no other WRITE proves yet; they count as in flight */
    gr_seg weak_end;     /* where the last of them with bytes went */
    uint32_t inflight, wrs; /* work requests: in flight, posted */
    uint8_t failed; /* an operation of it failed, and may yet land: the run waits until the peer's end is known to be closed */
    uint8_t blamed; /* its own operation was the first to fail */
    uint8_t tries;  /* how often it was to blame */
};

struct part { /* a transfer on one link */
    cmd start;
    gr_link *link;
    xfer *x;
    part *next, *prev; /* link->work.todo or .waiting */
    run *runs, *cur;   /* taken and not ended; the one that is being posted */
    _Atomic uint64_t bytes; /* proved over this link */
    uint8_t own, peer; /* the link's rails: it may be another session's when the transfer has ended */
    uint8_t listed;    /* 0, LIST_TODO or LIST_WAITING */
    uint8_t sole;      /* it is the transfer's last, and the notification goes out behind it: see xfer_sole */
    _Atomic uint8_t in; /* counted in parts_left */
    _Atomic uint8_t idle; /* nothing of it is posted; a hint */
    _Atomic uint8_t nudged; /* nudge is in the rail's inbox and counted in parts_left */
    cmd nudge;
    cmd late; /* gr_xfer_join came too late: its count in parts_left goes back on the rail of the part that is sole, late_to */
    uint32_t late_to;
};

struct xfer {
    gr_xfer pub;
    gr_core *core;
    xfer *free_next;
    gr_sess *sess;
    int op;
    uint8_t has_notif;
    uint8_t prove; /* gr_xfer_prove */
    _Atomic uint32_t shared;  /* SHARED: more than one link has worked on it in this round; SOLE and the part's number: none may any more */
    _Atomic uint32_t replays; /* links that failed under it */
    part *parts;
    uint32_t nparts, part_cap;
    uint32_t near; /* the first parts' links that are near the local memory */
    cmd fin; /* its notification's turn has come, on the rail of the session's home link */
    msg msg;
    struct {
        gr_rail *rail; /* whose memory the operations are in; NULL: they go by work requests */
        gr_bulk_region *regions; /* local ones first */
        uint32_t nlocal, nremote;
    } bulk;
    struct {
        pthread_mutex_t mu; /* below the rails' locks */
        uint64_t next; /* operations before it have been taken */
        run *back;     /* taken, and given back unproved */
    } queue;
};

enum { SHARED = 1, SOLE = 2, /* then the part's number */ SOLE_SHIFT = 2 };

struct xfer_block {
    struct xfer_block *next;
    xfer x[64];
};

/* run.c */
int pool_has(xfer *x);
void pool_drop(xfer *x, rail_st *rail);
run *run_take(part *p, int *later);
void run_end(run *r);
void run_back(run *r);
int run_proof(run *r);
int part_unposted(const part *p);

/* xfer.c */
void xfer_end(xfer *x);
void xfer_fail(xfer *x, int err, int wire_err);
void xfer_data_done(xfer *x, gr_link *link);
void xfer_msg_ended(msg *m, int err);
int xfer_sole(part *p);
void xfer_not_sole(part *p, uint32_t now);
void xfer_try_pipeline(part *p);

/* bulk.c */
void bulk_stop(part *p);
void bulk_free(xfer *x);

/* part.c */
enum { LIST_TODO = 1, LIST_WAITING = 2 };
void part_list(part *p, int which);
void part_unlist(part *p);
void part_nudge(rail_st *rail, cmd *self);
void part_late(rail_st *rail, cmd *self);
int part_drop(part *p);
void part_rest(part *p);
int part_call(part *p);
void part_leave(part *p);
void part_out(xfer *x, gr_link *link);
int part_evict(part *p);
void part_evict_idle(gr_link *link);

/* wr.c */
enum { POSTED, NO_ROOM, REGION_GONE, NOTHING };
int wr_post(gr_link *link, part *p, uint64_t *bytes);
int wr_post_bulk(gr_link *link, part *p);
void wr_done(ctx *c, int err);

/* pump.c */
void link_pump(gr_link *link, uint64_t budget);
void part_start(rail_st *rail, cmd *self);

#endif
