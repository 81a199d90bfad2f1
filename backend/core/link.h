/* Links. A link is one pair of endpoints of a session: state, window, credits, and the contexts of posted operations. */
#ifndef GORAIL_LINK_H
#define GORAIL_LINK_H

#include <stdlib.h>

#include "base.h"

enum {
    RX_BUFS = 32,     /* receives posted for a peer that sends to us; equals the sender's credits */
    CREDIT_BUFS = 8,  /* receives posted for CREDITs; at most RX_BUFS / CREDIT_BATCH of them are in flight */
    CREDIT_BATCH = 8,
    SMALL = 128 << 10, /* transfers up to this size go before larger ones */
    SMALL_WINDOW = 192 << 10, /* window of large transfers while small ones are posted: see link_most */
    SHARED_SMALL_WINDOW = 96 << 10, /* the same if our processor moves the bytes of several links */
};

typedef struct subxfer subxfer; /* transfer.h */

enum { CTX_RMA, CTX_SEND, CTX_RECV, CTX_ORPHAN /* an orphan's completion, if one comes, is ignored */ };

struct ctx { /* one posted operation */
    gr_ctx base;
    ctx *next, *prev; /* link->ep.posted, or the free list */
    gr_link *link;
    int kind;
    uint8_t bulk;    /* a bulk transfer: its bytes do not count against the window */
    uint8_t stopped; /* its transfer was aborted, and the rail was asked to end the operation */
    uint8_t first; /* first failure on its link: later errors are consequences */
    uint8_t slotted; /* a SEND that took the credit of slot */
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
    LINK_PROBING = GR_LINK_STATE_PROBING /* only a probe goes out */
};

enum { PROBE_WAITS = 1, PROBE_DUE = 2 /* an operation has completed */ };

/* Guarded by the rail's lock, except where noted. */
struct gr_link {
    rail_st *rail; /* fields up to role do not change */
    gr_sess *sess;
    uint64_t id, peer_id; /* the peer's number of the link */
    int peer_rail, role;
    _Atomic int state; /* any thread may read */
    int dead_err;
    LIST_ENTRY(gr_link) list; /* rail->links, or the core's free links */
    TAILQ_ENTRY(gr_link) busy_list; /* rail->busy, if busy */
    uint8_t busy;
    gr_link *rx_next; /* sess->rx.links; rx.mu */
    gr_link *id_next; /* rail->by_id */
    struct { /* the endpoint and its posted operations */
        void *handle;
        uint32_t epoch; /* Go's number of the endpoint */
        uint32_t ops;   /* operations in flight, SENDs included */
        ctx *posted;
        uint32_t missing_recvs; /* receives that the provider has not accepted yet */
        uint8_t reported;   /* no further error event: one was sent, or the link has stopped */
    } ep;
    struct {
        subxfer *todo, *todo_tail, *small_tail; /* small transfers come first; small_tail is the last small one */
        subxfer *waiting; /* sub-transfers that wait for completions only */
        _Atomic uint8_t any; /* todo is not empty; any thread may read */
        uint32_t yielding;   /* how many of waiting yield */
        uint64_t looked_ns;  /* when it last looked whether they still do */
    } work;
    struct {
        TAILQ_HEAD(, msg) list;
        msg *cur;   /* the first message that is not posted */
        msg *plain; /* the first message without a number; the numbered ones come before it */
        uint32_t n;
    } out;
    struct { /* see link_measure */
        uint64_t inflight, size, rate;
        _Atomic uint64_t load, rate_pub; /* copies of inflight and rate for any thread */
        _Atomic uint64_t weight;  /* relative speed; any thread */
        uint64_t meas_ns, meas_bytes;
        uint64_t small_ns; /* time of the last post of a small transfer; 0: none lately */
        uint8_t limited;   /* the window limited the link since the last measurement */
    } win;
    struct { /* see slot_use */
        uint32_t next, acked, failed; /* slots that we send; failed: one bit for each slot from acked on */
        uint64_t taken;               /* slots that we receive: all below taken have arrived */
        uint32_t seen, granted, repeats; /* seen: a bit for each slot from taken on; granted: sent in the last CREDIT; repeats: repeated slots */
        uint8_t resend;                /* a CREDIT must go out again */
        uint8_t held;                  /* the session's queues are full: no credits for now */
        _Atomic int queued;           /* cmd is in the rail's inbox; any thread */
        cmd cmd;
    } credit;
    struct {
        uint8_t posted;
        uint8_t wanted; /* PROBE_*: a probe must go out though the link is up: the peer's new endpoint waits for a message */
        uint8_t received; /* a message has arrived over this endpoint */
        uint64_t answer, answered; /* number of the peer's probe that the next CREDIT answers; number of the last answered one; 0: none */
    } probe;
    _Atomic uint64_t count[GR_N_COUNT]; /* see link_count */
    _Atomic uint64_t last_ns;           /* time of the last completion */
    struct owed owed;                   /* events for Go; events.mu */
};

/* Adds to a counter of the link and of its rail. */
static inline void link_count(gr_link *link, int which, uint64_t n)
{
    counter_add(&link->count[which], n);
    counter_add(&link->rail->count[which], n);
}

/* The endpoint has accepted an operation. */
static inline void link_posted(gr_link *link) { link->ep.ops++; }

/* Adds `more` bytes in flight to the link and its rail, and subtracts `less`. */
static inline void link_inflight(gr_link *link, uint64_t more, uint64_t less)
{
    link->win.inflight += more - less;
    atomic_store_explicit(&link->win.load, link->win.inflight, memory_order_relaxed);
    counter_add(&link->rail->load, more - less);
}

/* link.c */
void link_halt(gr_link *link);
void link_refused(gr_link *link, int rc);
void link_error(gr_link *link, int err);

/* link.c: contexts */
ctx *ctx_new(rail_st *rail, gr_link *link, int kind);
void ctx_done(rail_st *rail, ctx *c);
void ctx_orphan(rail_st *rail, ctx *c);

/* link.c: the window */
/* The window nearest to so many bytes, within the limits. */
uint64_t link_window(const gr_link *link, uint64_t bytes);
void link_measure(gr_link *link, uint64_t bytes);
void link_small_posted(gr_link *link, uint64_t now);
/* Whether a small transfer was posted in the last 10 ms that large ones delay. It is at least the time `least`. Where link_shares_thread holds,
 * the caller needs no lock. */
int link_beside_small(const gr_link *link, uint64_t least);
uint64_t link_limited(gr_link *link, int several);

/* Whether the first thread moves the link's bytes by processor, as those of all such links. */
static inline int link_shares_thread(const gr_link *link) { return link->rail->dev->is.by_processor && !link->rail->dev->worker; }

/* When a small transfer was posted that large ones of the link delay: on the link, or where the first thread moves the bytes on any of its links
 * to the peer. 0: none lately. */
static inline uint64_t link_smalls(const gr_link *link)
{
    return link_shares_thread(link) ? atomic_load_explicit(&link->sess->small_ns, memory_order_relaxed) : link->win.small_ns;
}

/* The window of large transfers while small ones are posted. several: other links work on the transfer, too. */
static inline uint64_t link_small_window(const gr_link *link, int several)
{
    return several && link_shares_thread(link) ? SHARED_SMALL_WINDOW : SMALL_WINDOW;
}

/* Bytes that the link may have in flight when it posts for a transfer of so many bytes. While small transfers are posted,
 * larger ones keep few bytes in flight, in small pieces. Behind 4 x 1 MiB a write of 4 KiB took 3.5 ms (alone 0.08 ms). Over tcp
 * a window of 256 KiB gives 140 us (alone 19) and large ones 2.1 GB/s, 192 KiB 77 us and 1.9 GB/s, 128 KiB 80 us and 1.0 GB/s.
 * Over two tcp rails (alone 26 us, a busy machine) it took 730 us while the other rail kept its window, 320 us with 192 KiB for
 * each, 160 us with 96 KiB. */
static inline uint64_t link_most(gr_link *link, uint64_t bytes, int several)
{
    return bytes <= SMALL || !link_smalls(link) ? link->win.size : link_limited(link, several);
}

/* link.c: credits */
uint32_t slot_next(const gr_link *link);
uint32_t slot_probe(const gr_link *link);
int slot_use(gr_link *link, uint32_t slot);
void slot_failed(gr_link *link, uint32_t slot);
int slots_acked(gr_link *link, uint32_t below);
int slot_taken(gr_link *link, uint32_t slot);
void credits_reset(gr_link *link);

/* Number of messages that may be posted now. */
static inline uint32_t credits_left(const gr_link *link)
{
    uint32_t again = link->credit.failed ? (uint32_t)__builtin_popcount(link->credit.failed) : 0;
    return link->role & GR_LINK_TX ? RX_BUFS - (link->credit.next - link->credit.acked) + again : 0;
}

/* Whether a CREDIT must go out. */
static inline int credits_due(const gr_link *link)
{
    return (uint32_t)link->credit.taken - link->credit.granted >= CREDIT_BATCH || link->credit.resend || link->probe.answer;
}

/* ---- Messages of a link: notifications, probes and credits, outgoing and incoming. */

enum { MSG_SMALL = 128 }; /* bytes of a transfer's notification that need no memory of their own */

struct msg { /* an outgoing notification */
    cmd start;
    gr_link *link;
    gr_xfer *xfer; /* the transfer of the notification; NULL: a notification without a transfer (genNotif) */
    TAILQ_ENTRY(msg) list;
    _Atomic(rail_st *) listed; /* rail of the link that lists the message; changed only under that rail's lock */
    char *body;
    size_t len;
    struct {
        uint64_t seq;
        uint8_t given; /* a number is given: the message or a SKIP must arrive */
        uint8_t block; /* the block of sess->tx.blocks that counts the message */
    } number;
    struct msg_sent { /* state on this endpoint; a fence clears it */
        size_t off;
        uint32_t inflight;
        uint8_t posted; /* every fragment is posted */
        uint8_t failed;
        uint8_t at_fault; /* as in struct batch */
    } sent;
    uint8_t tries;     /* as in struct batch */
    uint8_t skip;      /* given up after it was numbered: a SKIP goes out instead */
    uint8_t pipelined; /* posted behind its transfer's data on an ordered link, without waiting for completions */
    uint8_t unproved;  /* detached from a failed transfer while pipelined: sent again, the message would no longer prove the data */
    uint8_t done;
    uint8_t reused; /* detached: it goes to rail->mem.free_msg */
    msg *next;      /* in free_msg */
    char small[MSG_SMALL]; /* body of a transfer's short notification */
};

/* Frees the body. */
static inline void msg_body_free(msg *m)
{
    if (m->body != m->small && m->body != (char *)(m + 1))
        free(m->body);
    m->body = NULL;
}

/* The number of the link's probe. It differs for each endpoint, so that answers to earlier endpoints' probes do not count. */
static inline uint64_t link_probe_seq(const gr_link *link) { return (uint64_t)link->ep.epoch + 1; }

/* Whether msg_pump has work. */
static inline int msg_due(const gr_link *link)
{
    return (link->state == LINK_PROBING && !link->probe.posted) ||
           (link->state == LINK_UP && (link->out.cur || link->probe.wanted || link->ep.missing_recvs || credits_due(link)));
}

/* Whether link_pump may have work, now or once the rail, the window or the peer admit it. */
static inline int link_has_work(const gr_link *link)
{
    return msg_due(link) || (link->state == LINK_UP && (link->work.todo || link->work.yielding));
}

/* Progress looks at busy links alone: of 1,000 idle peers with two rails it would look at 2,000 links between two completions, 250 us. So whatever
 * makes link_has_work true calls this. Progress takes links without work off the list. */
static inline void link_busy(gr_link *link)
{
    rail_st *rail = link->rail;
    if (link->busy || link == rail->shared) /* progress looks at a shared link anyway */
        return;
    link->busy = 1;
    TAILQ_INSERT_TAIL(&rail->busy, link, busy_list);
}

static inline void link_not_busy(gr_link *link)
{
    if (!link->busy)
        return;
    link->busy = 0;
    TAILQ_REMOVE(&link->rail->busy, link, busy_list);
}

/* message.c */
int msg_queue(gr_link *link, msg *m);
void msg_unlist(msg *m);
int msg_number(msg *m);
void msg_resend(msg *m, uint64_t seq);
void msg_leave(msg *m);
void msg_free(msg *m);
void msg_end(msg *m, int err);
int msg_skip(msg *m);
int msg_detach(msg *m, int err);

/* message.c: out */
void msg_pump(gr_link *link);
void msg_sent(ctx *c, int err);
void msg_start(rail_st *rail, cmd *self);
void msg_move(msg *m, gr_link *to);
void msg_credit_cmd(rail_st *rail, cmd *self);

/* receive.c */
/* Takes in the messages that came in while memory was short. The peer gets no credits before. */
void msg_take_held(rail_st *rail);
void msg_received(ctx *c, int err, uint64_t len);
uint32_t msg_recvs(const gr_link *link);
int msg_post_recvs(gr_link *link);
void msg_post_missing_recvs(gr_link *link);

#endif
