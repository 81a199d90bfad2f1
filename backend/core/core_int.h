/* Inside the core. Who guards what:
 *   rail->dev->mu      links, parts, messages, contexts and buffers of that rail; never two rails at once
 *   xfer->mu           the pool of a transfer: what has been taken and given back
 *   sess->rx_mu        order of incoming notifications
 *   sess->tx_mu        numbers of outgoing ones
 *   core->ready_mu     notifications ready for the application
 *   core->ev_mu        events for Go
 *   core->slot_mu      free transfer slots and the region table's growth
 * Order: rail -> xfer->mu; rail -> rx_mu -> ready_mu | ev_mu; rail -> tx_mu. Nothing is called back with ready_mu, ev_mu or slot_mu held.
 */
#ifndef GORAIL_CORE_INT_H
#define GORAIL_CORE_INT_H

#include "gr_policy.h"

enum {
    MAX_RAILS = 64,
    MAX_FLUSHES = 64,  /* GPUs */
    FRAG = 2048,       /* payload bytes of one message: 32 receives a peer stay below 70 KiB */
    RX_BUFS = 32,      /* receives posted for a peer that sends to us = credits of the sender */
    CREDIT_BUFS = 8,   /* receives posted for credit messages: RX_BUFS / CREDIT_BATCH can be under way */
    CREDIT_BATCH = 8,
    TX_RESERVE = 8,    /* queue depth kept free for messages */
    OVERHEAD = 64,     /* what a queued notification counts beside its body and the sender's name */
    FAIR = 64 << 10,   /* undelivered bytes that a session may have though all sessions together have too many */
    COMBINE = 128 << 10, /* bytes of descriptors packed into one work request */
    QUANTUM = 256 << 10, /* bytes a part posts before the next part's turn */
    CHAIN = 512 << 10,   /* bytes of WRITEs that one acknowledgement proves: see wr.c */
    RUN_OPS = 64,        /* descriptors that a link takes at a time, at most */
    SMALL = 128 << 10,   /* transfers up to here go before larger ones */
    WR_COST = 16 << 10,  /* what a work request counts at least for turns and budgets: about 3 us of copying */
    POLL_BATCH = 32,
    ID_BUCKETS = 256,
    REGION_CHUNK = 1024,
    REGION_CHUNKS = 8192,
};

typedef struct cmd cmd;
typedef struct part part;
typedef struct run run;
typedef struct msg msg;
typedef struct buf buf;
typedef struct rail_st rail_st;

struct cmd { /* work for whoever holds the rail next */
    cmd *next;
    void (*run)(rail_st *rail, cmd *self);
};

enum { CTX_RMA, CTX_SEND, CTX_RECV, CTX_DEAD /* in the grave: its completion, should there be one, means nothing */ };

typedef struct ctx { /* one posted operation */
    gr_ctx base;
    struct ctx *next, *prev; /* link->posted, or the free list */
    gr_link *link;
    int kind;
    uint8_t bulk;    /* all of a transfer: no bytes of the window's */
    uint8_t stopped; /* its transfer was aborted, and the rail asked to end it */
    uint8_t first; /* it failed first on its link: the others' errors are consequences */
    uint8_t slotted; /* a SEND that took a credit, for the slot */
    uint32_t slot;
    uint64_t bytes;
    run *run;
    msg *msg;
    buf *buf;
} ctx;

struct buf { /* a message buffer inside a registered slab */
    buf *next;
    void *desc;
    char *data;
};

struct run { /* consecutive operations of a transfer that one link has taken */
    run *next, *prev; /* part->runs, xfer->back or a free list */
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
    struct xfer *x;
    part *next, *prev; /* link->todo or link->waiting */
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

struct msg { /* an outgoing notification */
    cmd start;
    gr_link *link;
    gr_xfer *xfer; /* that it belongs to; NULL: genNotif */
    void (*ended)(msg *m, int err); /* tells that transfer: the peer has the message (0), or it will never be sent */
    msg *next, *prev;
    _Atomic(rail_st *) listed; /* of the link in whose list it is; changed under its lock alone */
    char *body;
    size_t len, off;
    uint64_t seq;
    uint32_t inflight;
    uint8_t numbered; /* seq is given: from here on it must arrive */
    uint8_t block;    /* of sess->tx_blocks, where it counts */
    uint8_t skip;     /* given up after it was numbered: the peer is told to go on without it */
    uint8_t posted;   /* every fragment is posted */
    uint8_t failed;
    uint8_t blamed, tries; /* as a run's */
    uint8_t pipelined; /* it follows its transfer's data on an ordered link without waiting */
    uint8_t unproved; /* parted from its transfer while pipelined: sent again, it would no longer prove the data */
    uint8_t done;
};

typedef struct xfer {
    gr_xfer pub;
    gr_core *core;
    struct xfer *free_next;
    int op;
    uint8_t has_notif;
    uint8_t prove;   /* gr_xfer_prove */
    _Atomic uint32_t shared;  /* SHARED: more than one link has worked on it in this round; SOLE and the part's number: none may any more */
    _Atomic uint32_t replays; /* links that failed under it */
    uint32_t nparts, part_cap;
    uint32_t near; /* the first parts' links that are near the local memory */
    part *parts;
    gr_sess *sess;
    cmd fin; /* its notification's turn has come, on the rail of the session's home link */
    msg msg;
    gr_rail *bulk; /* whose memory the operations are in; NULL: they go by work requests */
    gr_bulk_region *regions; /* a bulk's, local ones first */
    uint32_t nlocal, nremote;
    pthread_mutex_t mu; /* what follows; below the rails' locks */
    uint64_t next; /* operations before it have been taken */
    run *back;     /* taken, and given back unproved */
} xfer;

enum { SHARED = 1, SOLE = 2, /* then the part's number */ SOLE_SHIFT = 2 };

enum {
    LINK_UP = GR_LINK_STATE_UP,
    LINK_STOPPED = GR_LINK_STATE_STOPPED,
    LINK_DEAD = GR_LINK_STATE_DEAD,
    LINK_PROBING = GR_LINK_STATE_PROBING /* nothing but a probe goes out */
};

enum { HELLO_WAITS = 1, HELLO_DUE = 2 /* something has gone through */ };

struct gr_link {
    rail_st *rail;
    gr_sess *sess;
    gr_link *next, *prev; /* rail->links, or the core's free links */
    void *ep;
    uint64_t id;
    int peer_rail, role, dead_err;
    void (*halted)(gr_link *link); /* tells the transfers that have work on it: no more posts */
    _Atomic int state;
    _Atomic uint64_t load, weight; /* bytes in flight; relative speed */
    gr_link *rx_next; /* sess->rx_links */
    gr_link *id_next; /* rail->by_id */
    uint64_t peer_id; /* the peer's number of the link */
    uint64_t small_ns; /* when a small transfer was posted last */
    uint8_t reported; /* an error event is out */
    uint8_t limited;  /* the window was the limit since the last measurement */
    uint8_t probe;    /* it is posted */
    uint8_t hello;    /* HELLO_*: a probe is to go out though the link is up: the peer's endpoint is new, and waits for a message */
    uint8_t heard;    /* a message has come in since the endpoint is this one */
    uint64_t answer, answered; /* the peer's probe that the next CREDIT answers; the last one's; 0: none */
    uint32_t recv_debt; /* receives that the provider would not take yet */
    uint32_t epoch; /* of the endpoint, Go's number */
    part *todo, *todo_tail, *small_tail, *waiting; /* todo: small transfers first, small_tail the last of them */
    msg *msgs, *msgs_tail, *cur, *plain; /* cur: the first that is not posted; plain: the first without a number, the last ones are */
    ctx *posted;
    uint32_t inflight_ops, nmsgs;
    uint32_t slot_next, slot_acked, slots_failed;   /* see credit.c: of what we send; slots_failed is a bit for each from slot_acked on */
    uint64_t slots_taken;                           /* of what comes in: all below are, */
    uint32_t slots_seen, slots_told, slots_twice;   /* these bits of those from there on; and the peer knows of so many */
    uint8_t credit_failed;                          /* a CREDIT is to go out again */
    uint64_t inflight_bytes, window, rate;
    _Atomic uint64_t rate_pub; /* rate, for whoever does not hold the rail */
    uint64_t meas_ns, meas_bytes;
    cmd credit_cmd;
    _Atomic int credit_queued;
    _Atomic uint64_t count[GR_N_COUNT]; /* see link_count */
};

enum { TX_BLOCKS = 8, TX_RESENT = TX_BLOCKS /* in place of a block */ };

typedef struct tx_block { /* consecutive numbers of notifications: see numbers.c */
    uint32_t numbers, left; /* given; of them, the peer is not known to have */
    uint64_t bytes;
} tx_block;

struct gr_sess {
    gr_core *core;
    uint64_t id;
    _Atomic int refs;
    pthread_mutex_t tx_mu;         /* to tx_held */
    uint64_t tx_seq;               /* next number to give */
    tx_block tx_blocks[TX_BLOCKS];
    uint64_t tx_oldest, tx_newest; /* blocks, by number: all before the oldest have arrived; the newest has room or is full */
    uint64_t tx_bytes;             /* of these blocks; 0: the peer has all that have a number */
    int tx_held;                   /* some message waits for a number */
    uint32_t tx_resent;            /* out under numbers of a session before: nothing new gets one meanwhile */
    _Atomic uint64_t tx_queued;    /* bytes accepted, not yet sent */
    _Atomic uint64_t ready_bytes;  /* bytes the application has not taken; also in core->notif_bytes, as handed_bytes */
    pthread_mutex_t rx_mu;
    uint64_t rx_next;
    uint64_t handed; /* messages given to Go */
    _Atomic uint64_t handed_bytes; /* of them, that Go is not done with */
    int slow;        /* Go is putting messages in order */
    int ended;       /* nothing more is taken in */
    gr_link *rx_links;       /* where owed credits go back; guarded by rx_mu */
    _Atomic(gr_link *) home; /* where notifications go out */
    _Atomic uint32_t turn;   /* which link a small transfer tries first */
    size_t name_len;
    char name[];
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
    gr_link *links;
    gr_link *by_id[ID_BUCKETS];
    gr_link *hub;        /* has the receives of an endpoint that all peers share; else NULL */
    uint32_t rx_surplus; /* receives of the hub's that no link needs any more */
    uint32_t rma_ops;    /* WRITEs and READs in flight on all links */
    gr_link *turn;       /* cfg.inflight_ops was reached: it goes first when there is room */
    _Atomic int nlinks;
    _Atomic(cmd *) inbox;
    ctx *free_ctx;
    rail_st *next; /* core->dropped */
    ctx *grave; /* ended without a completion: not used again before one comes, the library may still know them */
    buf *free_buf;
    run *free_run;
    struct slab *slabs;
    _Atomic uint64_t count[GR_N_COUNT]; /* of all its links, those that are gone included */
    _Atomic uint64_t load; /* bytes in flight */
    uint8_t more;        /* some link has left operations unposted, or owes credits: see prompt_rest */
    _Atomic uint8_t starved; /* some link waits for the provider to take posts again */
    uint64_t now;    /* time of the last poll that found something */
    uint8_t stream;  /* transfers were posted beside others since it was idle: times are the core's tick */
};

struct xfer_block {
    struct xfer_block *next;
    xfer x[64];
};

struct event_node {
    struct event_node *next;
    gr_sess *sess; /* MSG: counted in its handed_bytes */
    gr_event ev;
};

struct gr_core {
    gr_core_cfg cfg;
    _Atomic int nrails;
    _Atomic(rail_st *) rails[MAX_RAILS]; /* NULL: reserved, see gr_core_reserve_rail */
    size_t region_size;
    _Atomic(char *) regions[REGION_CHUNKS];
    pthread_mutex_t slot_mu;
    xfer *free_xfers;
    gr_link *free_links; /* never unmapped: an ended part may still name one */
    struct xfer_block *blocks;
    rail_st *dropped; /* their rails are closed before their memory goes: what was posted may be written to until then */

    pthread_mutex_t ready_mu;
    gr_notif *ready, *ready_tail;
    _Atomic uint64_t nready;

    pthread_mutex_t ev_mu;
    struct event_node *ev, *ev_tail;
    int ev_fd;

    _Atomic uint64_t notif_bytes; /* of incoming notifications, of all sessions */

    struct { void (*call)(void *); void *arg; } flush[MAX_FLUSHES]; /* written under slot_mu, never changed */
    _Atomic uint32_t nflush;

    pthread_t thread;
    int thread_up, wake_fd, epoll_fd;
    _Atomic int stop;
    _Atomic uint64_t inline_polls;
    _Atomic uint64_t tick; /* the time, while the thread naps and the application polls, a nap old at most; 0: ask the system */
    _Atomic uint64_t count[GR_C_COUNT];
};

#include "core_calls.h"

#endif
