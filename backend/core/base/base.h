/* The base of the core: its one struct, limits, time, counters. The layers above are session, rail, link, message, transfer
 * and progress. Each layer has a header that includes the header of the layer below. ../doc.go has the picture.
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

#endif
