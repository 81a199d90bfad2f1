/* Links: each is one pair of endpoints of a session. State, window, credits, contexts of what is posted. */
#ifndef GORAIL_LINK_H
#define GORAIL_LINK_H

#include "rail.h"

enum {
    RX_BUFS = 32,     /* receives posted for a peer that sends to us = credits of the sender */
    CREDIT_BUFS = 8,  /* receives posted for credit messages: RX_BUFS / CREDIT_BATCH can be under way */
    CREDIT_BATCH = 8,
    SMALL = 128 << 10, /* transfers up to here go before larger ones */
    HURRY = 256 << 10, /* see link_most */
};

typedef struct msg msg;         /* message.h */
typedef struct subxfer subxfer; /* transfer.h */

enum { CTX_RMA, CTX_SEND, CTX_RECV, CTX_ORPHAN /* an orphan: its completion, should there be one, means nothing */ };

struct ctx { /* one posted operation */
    gr_ctx base;
    ctx *next, *prev; /* link->ep.posted, or the free list */
    gr_link *link;
    int kind;
    uint8_t bulk;    /* all of a transfer: no bytes of the window's */
    uint8_t stopped; /* its transfer was aborted, and the rail asked to end it */
    uint8_t first; /* it failed first on its link: the others' errors are consequences */
    uint8_t slotted; /* a SEND that took a credit, for the slot */
    uint32_t slot;
    uint64_t bytes;
    batch *batch;
    msg *msg;
    buf *buf;
};

enum {
    LINK_UP = GR_LINK_STATE_UP,
    LINK_STOPPED = GR_LINK_STATE_STOPPED,
    LINK_DEAD = GR_LINK_STATE_DEAD,
    LINK_PROBING = GR_LINK_STATE_PROBING /* nothing but a probe goes out */
};

enum { HELLO_WAITS = 1, HELLO_DUE = 2 /* something has gone through */ };

/* Under the rail's lock but where something else is said. */
struct gr_link {
    rail_st *rail; /* this and what follows to role: for good */
    gr_sess *sess;
    uint64_t id, peer_id; /* the peer's number of the link */
    int peer_rail, role;
    void (*halted)(gr_link *link); /* tells the transfers that have work on it: no more posts */
    _Atomic int state; /* read by any thread */
    int dead_err;
    gr_link *next, *prev; /* rail->links, or the core's free links */
    gr_link *rx_next; /* sess->rx.links; rx.mu */
    gr_link *id_next; /* rail->by_id */
    struct { /* the endpoint and what is posted on it */
        void *handle;
        uint32_t epoch; /* Go's number of it */
        uint32_t ops;   /* in flight, sends among them */
        ctx *posted;
        uint32_t recv_debt; /* receives that the provider would not take yet */
        uint8_t reported;   /* an error event is out */
    } ep;
    struct {
        subxfer *todo, *todo_tail, *small_tail; /* small transfers first, small_tail the last of them */
        subxfer *waiting; /* for completions */
    } work;
    struct {
        msg *first, *last;
        msg *cur;   /* the first that is not posted */
        msg *plain; /* the first without a number, the last ones are */
        uint32_t n;
    } out;
    struct { /* see window.c */
        uint64_t inflight, size, rate;
        _Atomic uint64_t load, rate_pub; /* inflight and rate, for any thread */
        _Atomic uint64_t weight;  /* relative speed; any thread */
        uint64_t meas_ns, meas_bytes;
        uint64_t small_ns; /* when a small transfer was posted last */
        uint8_t limited;   /* the window was the limit since the last measurement */
    } win;
    struct { /* see credit.c */
        uint32_t next, acked, failed; /* slots of what we send; failed is a bit for each from acked on */
        uint64_t taken;               /* of what comes in: all below are, */
        uint32_t seen, granted, twice;   /* these bits of those from there on; and the peer knows of so many */
        uint8_t again;                /* a CREDIT is to go out again */
        _Atomic int queued;           /* cmd is in the rail's inbox; any thread */
        cmd cmd;
    } credit;
    struct {
        uint8_t posted;
        uint8_t hello; /* HELLO_*: a probe is to go out though the link is up: the peer's endpoint is new, and waits for a message */
        uint8_t heard; /* a message has come in since the endpoint is this one */
        uint64_t answer, answered; /* the peer's probe that the next CREDIT answers; the last one's; 0: none */
    } probe;
    _Atomic uint64_t count[GR_N_COUNT]; /* see link_count */
};

/* Counts for the link and its rail. */
static inline void link_count(gr_link *link, int which, uint64_t n)
{
    counter_add(&link->count[which], n);
    counter_add(&link->rail->count[which], n);
}

/* Bytes in flight on the link: more and fewer of them. */
static inline void link_flying(gr_link *link, uint64_t more, uint64_t less)
{
    link->win.inflight += more - less;
    atomic_store_explicit(&link->win.load, link->win.inflight, memory_order_relaxed);
    counter_add(&link->rail->load, more - less);
}

/* link.c */
void link_halt(gr_link *link);
void link_refused(gr_link *link, int rc);
void link_error(gr_link *link, int err);

/* ctx.c */
ctx *ctx_new(rail_st *rail, gr_link *link, int kind);
void ctx_done(rail_st *rail, ctx *c);
void ctx_orphan(rail_st *rail, ctx *c);

/* window.c */
/* The window that is nearest to so many bytes. */
uint64_t link_window(const gr_link *link, uint64_t bytes);
void link_measure(gr_link *link, uint64_t bytes);
uint64_t link_hurry(gr_link *link);

/* Bytes that the link may have in flight when it posts of a transfer of so many. While small transfers come, larger ones keep
 * little in flight, in pieces: behind 4 x 1 MiB a write of 4 KiB took 3.5 ms, behind 2 x 128 KiB 0.2 (alone 0.08). */
static inline uint64_t link_most(gr_link *link, uint64_t bytes)
{
    return !link->win.small_ns || bytes <= SMALL || link->win.size <= HURRY ? link->win.size : link_hurry(link);
}

/* credit.c */
uint32_t slot_next(const gr_link *link);
uint32_t slot_probe(const gr_link *link);
int slot_use(gr_link *link, uint32_t slot);
void slot_failed(gr_link *link, uint32_t slot);
int slots_acked(gr_link *link, uint32_t below);
int slot_taken(gr_link *link, uint32_t slot);
void credits_fresh(gr_link *link);

/* Messages that may be posted now. */
static inline uint32_t credits_left(const gr_link *link)
{
    uint32_t again = link->credit.failed ? (uint32_t)__builtin_popcount(link->credit.failed) : 0;
    return link->role & GR_LINK_TX ? RX_BUFS - (link->credit.next - link->credit.acked) + again : 0;
}

/* Whether it is time for a CREDIT. */
static inline int credits_due(const gr_link *link)
{
    return (uint32_t)link->credit.taken - link->credit.granted >= CREDIT_BATCH || link->credit.again || link->probe.answer;
}

#endif
