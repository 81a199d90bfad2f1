/* The base of the core: its one struct, sessions, rails, limits, time, counters. The layers above are link, transfer and control. Each
 * header includes the header of the layer below. doc.go has the picture.
 *
 * Locks and what they guard:
 *   rail->dev->mu      links, sub-transfers, messages, contexts and buffers of that rail; never two rails at once
 *   xfer->queue.mu     the work queue of a transfer: taken and returned operations
 *   sess->rx.mu        order of incoming notifications
 *   sess->tx.mu        numbers of outgoing notifications
 *   core->ready.mu     notifications ready for the application
 *   core->events.mu    events for Go
 *   core->slots.mu     free transfer slots, free links, the region table's growth, flush callbacks
 * Order: rail -> queue.mu; rail -> rx.mu -> ready.mu | events.mu; rail -> tx.mu; slots.mu -> events.mu.
 * No callback runs with ready.mu, events.mu or slots.mu held.
 */
#ifndef GORAIL_BASE_H
#define GORAIL_BASE_H

#include <stdint.h>
#include <sys/queue.h>

#include "gr_failpoint.h"
#include "gr_policy.h"

enum {
    MAX_RAILS = 64,
    SPARE_BLOCKS = 8,
    SPARE_BYTES = 32 << 20, /* of all spare blocks: a million operations */
    MAX_WORKERS = GR_MAX_WORKERS,
    MAX_FLUSHES = 64, /* at most so many GPUs */
    OVERHEAD = 64,    /* bytes that a queued notification counts besides its body and the sender's name */
    REGION_CHUNK = 1024,
    REGION_CHUNKS = 8192,
};

/* Types of upper layers. The base only stores pointers to them. */
typedef struct rail_st rail_st;
typedef struct xfer xfer;

/* A progress thread: it polls the rails whose gr_rail.worker is its index. The first one has the core from the start, and the
 * application's calls assist it. A rail starts its thread. */
struct worker {
    gr_core *core;
    pthread_t id;
    int wake_fd, epoll_fd, joined;
    _Atomic int up;
    _Atomic int deep; /* it sleeps longer than usual, since nothing happens */
};

struct owed { /* events of a link or a transfer that there was no memory for; events.mu */
    uint64_t id, seq;
    int32_t kind, code; /* kind 0: none; code 0: no error */
    int plain;          /* one without an error came, before that with the error */
};

struct gr_core {
    gr_core_cfg cfg;
    _Atomic int nrails;
    _Atomic(rail_st *) rails[MAX_RAILS]; /* NULL: reserved, see gr_core_reserve_rail */
    rail_st *dropped; /* dropped rails: their memory stays, since posted receives may be written to until the provider closes them */
    struct {
        size_t size; /* bytes of one entry */
        _Atomic(char *) chunk[REGION_CHUNKS];
    } regions;
    struct {
        pthread_mutex_t mu; /* guards the fields below, the growth of regions, and flush */
        xfer *xfers;        /* free transfer slots */
        LIST_HEAD(, gr_link) links; /* free links; never unmapped: an ended sub-transfer may still point to a link */
        struct xfer_block *blocks;
        struct spare_ops { /* memory of operations for the next transfers, oldest first */
            struct {
                gr_op *ops;
                uint64_t room; /* operations */
            } block[SPARE_BLOCKS];
            int n;
            uint64_t bytes;
        } spare;
    } slots;
    struct { /* notifications for the application */
        pthread_mutex_t mu;
        gr_notif *first, *last;
        _Atomic uint64_t n;
    } ready;
    struct { /* events for Go */
        pthread_mutex_t mu;
        struct event_node *first, *last;
        struct event_node *spare; /* for events that must not get lost */
        _Atomic int owed; /* some link or transfer has an event that there was no memory for: all must be looked at */
        int fd;
    } events;
    _Atomic uint64_t notif_bytes; /* bytes of incoming notifications of all sessions */
    struct {
        struct {
            void (*call)(void *);
            void *arg;
        } callbacks[MAX_FLUSHES]; /* entries do not change once set */
        _Atomic uint32_t n;
    } flush;
    struct worker workers[MAX_WORKERS];
    _Atomic int stop; /* the threads end */
    _Atomic uint64_t inline_polls; /* progress calls of the application */
    struct { /* threads of the application that poll in vain; times in ns */
        _Atomic uint64_t last, several_until;  /* the last thread; until then there are several */
        _Atomic uint64_t bulks, bulk_until;    /* of the rails at the last look; until then large operations count as being under way */
    } poll;
    _Atomic uint64_t tick; /* coarse time, at most one sleep of the first thread old, while the application polls; 0: read the clock */
    _Atomic uint64_t count[GR_C_COUNT];
    _Atomic(struct trace *) trace; /* NULL: no tracing */
    struct trace *traces;          /* its memory, once there; guarded by slots.mu */
};

#define COUNT(core, which, n) atomic_fetch_add_explicit(&(core)->count[which], (n), memory_order_relaxed)

/* The time for the hot path, where some milliseconds do not matter. Reading the clock costs 25 ns. Where the kernel must be
 * asked, reading costs some 300 ns, and in a virtual machine up to 30 us, twice a transfer. */
static inline uint64_t core_tick(gr_core *core)
{
    uint64_t t = atomic_load_explicit(&core->tick, memory_order_relaxed);
    return t ? t : gr_now_ns();
}

/* Wakes a thread, or all threads. */
void worker_wake(const struct worker *w);
void core_wake(gr_core *core);
void note_wire_err(gr_xfer *x, int err);

/* Flushes device writes to GPU memory. Called before the application learns of arrived data. Caller holds no lock. */
void core_flush(gr_core *core);
static inline int core_flushes(gr_core *core) { return atomic_load_explicit(&core->flush.n, memory_order_acquire) != 0; }

/* ---- Sessions: the sequence numbers of their notifications, and the queues to Go and to the application. */

enum {
    FAIR = 64 << 10, /* undelivered bytes that a session may always have, even when all sessions together exceed the limit */
    TX_BLOCKS = 8,
    TX_RESENT = TX_BLOCKS /* instead of a block index: see sess_resent */
};

typedef struct tx_block { /* consecutive sequence numbers: see reserve */
    uint32_t numbers, left; /* numbers given; numbers not yet acknowledged */
    uint64_t bytes;
} tx_block;

struct gr_sess {
    gr_core *core;
    uint64_t id;
    _Atomic int refs;
    struct { /* sequence numbers of outgoing notifications */
        pthread_mutex_t mu;
        _Atomic uint64_t seq;    /* next number to give */
        tx_block blocks[TX_BLOCKS];
        uint64_t oldest, newest; /* block numbers: all blocks before oldest have arrived; newest takes the next number while it has room */
        uint64_t bytes;          /* bytes of these blocks; 0: the peer has every numbered notification */
        int held;                /* a message waits for a number */
        uint32_t resent;         /* notifications out under numbers of an earlier session: no new numbers meanwhile */
    } tx;
    struct { /* order of incoming notifications */
        pthread_mutex_t mu;
        uint64_t next;
        uint64_t handed; /* messages handed to Go */
        int slow;        /* Go reorders messages */
        int ended;       /* incoming messages are dropped */
        gr_link *links;  /* links that return credits */
    } rx;
    _Atomic uint64_t tx_queued;    /* bytes accepted and not yet sent */
    _Atomic uint64_t ready_bytes;  /* bytes that the application has not taken; core->notif_bytes counts them too, and handed_bytes */
    _Atomic uint64_t handed_bytes; /* bytes of messages that were handed to Go and not yet handled */
    _Atomic(gr_link *) notif_link;       /* link for notifications without a transfer */
    _Atomic uint64_t small_ns;     /* time of the last post of a small transfer on a link whose bytes our processor moves; 0: none lately */
    _Atomic uint32_t turn;         /* the link that a small transfer tries first: a round-robin counter */
    size_t name_len;
    char name[];
};

struct event_node {
    struct event_node *next;
    gr_sess *sess; /* MSG: the event's bytes count in its handed_bytes */
    gr_event ev;
};

/* session.c */
void sess_unref(gr_sess *sess);

/* session.c: numbers */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq);
uint8_t sess_resent(gr_sess *s);
void sess_acked(gr_sess *s, uint8_t block);

enum { LINK_EVENTS = 3, XFER_EVENTS = 2 }; /* that one may have queued: first message, answered probe, error; end, end of a cached post */

/* session.c: queues */
/* Adds n nodes for core_event: so many events need no memory. 0 or -ENOMEM. */
int core_event_nodes(gr_core *core, uint32_t n);
/* Queues an event that must not get lost. Without a node and memory it stays in `owed`, and gr_events_take looks at all links and transfers.
 * now: the handle of the transfer that has the slot; NULL: of a link. */
void core_event(gr_core *core, const gr_event *ev, struct owed *owed, const _Atomic uint64_t *now);
int core_events_queued(gr_core *core, gr_event *out, int max); /* takes queued events, oldest first; returns their number */
int core_events_owed(gr_core *core, struct owed *owed, gr_event *out, int max); /* the same of a link or a transfer; -1: max is too small */
/* Queues a message for Go. Its bytes count as handed to Go. 0 or -ENOMEM. */
int core_event_msg(gr_sess *sess, const gr_event *ev);
void core_ready(gr_sess *sess, gr_notif *n);
int sess_full(gr_sess *sess);

/* ---- A message on a link: a header and up to FRAG bytes of payload. */

enum { HDR = 40, KIND_NOTIF = 1, KIND_CREDIT = 2, KIND_SKIP = 3, KIND_PROBE = 4, MAGIC = 0x5247, VERSION = 4 };

/* Same layout as wire.Header (header.go compares the two). Little endian on every machine that we run on. */
typedef struct header {
    uint16_t magic;
    uint8_t version;
    uint8_t kind;
    uint16_t subs; /* sub-transfers of the transfer */
    uint16_t sub;  /* the sub-transfer whose data precede this message */
    uint64_t seq;
    uint32_t total;
    uint32_t offset;
    uint32_t count;
    uint32_t sum;
    uint64_t to;
} header;

_Static_assert(sizeof(header) == HDR, "message header is 40 bytes on the wire");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header goes out as it lies in memory");

/* ---- One device inside the core: its inbox and its message buffers. The upper layers own the contents of its lists. */

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
    TAILQ_HEAD(busy_links, gr_link) busy; /* each of links that link_has_work, and some that had: see link_busy */
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

/* ---- Calls up: where a lower layer calls an upper one by name. All others are commands (cmd.run) and gr_rail.kick, which providers call. ---- */

/* link -> transfer. The link posts no more: its sub-transfers without batches leave it. subxfer.c */
void sub_evict_idle(gr_link *link);
/* message -> transfer. The transfer's notification has ended: the peer has it (0), or it will never be sent. xfer.c */
void xfer_msg_ended(msg *m, int err);
/* transfer -> progress. Work was pushed to another rail. Only tries that rail's lock. progress.c */
void rail_kick(gr_rail *dev);

#endif
