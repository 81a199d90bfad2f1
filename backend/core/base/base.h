/* The base of the core: its one struct, limits, time, counters. The layers above, each with a header that includes the one below:
 * session, rail, link, message, transfer, progress; docs/architecture.md has the picture.
 *
 * Who guards what:
 *   rail->dev->mu      links, sub-transfers, messages, contexts and buffers of that rail; never two rails at once
 *   xfer->queue.mu     the operations of a transfer: what has been taken and given back
 *   sess->rx.mu        order of incoming notifications
 *   sess->tx.mu        numbers of outgoing ones
 *   core->ready.mu     notifications ready for the application
 *   core->events.mu    events for Go
 *   core->slots.mu     free transfer slots and the region table's growth
 * Order: rail -> queue.mu; rail -> rx.mu -> ready.mu | events.mu; rail -> tx.mu. Nothing is called back with ready.mu, events.mu or slots.mu held.
 */
#ifndef GORAIL_BASE_H
#define GORAIL_BASE_H

#include "gr_policy.h"

enum {
    MAX_RAILS = 64,
    MAX_FLUSHES = 64, /* GPUs */
    OVERHEAD = 64,    /* what a queued notification counts beside its body and the sender's name */
    REGION_CHUNK = 1024,
    REGION_CHUNKS = 8192,
};

/* Of upper layers: the base has pointers to them alone. */
typedef struct rail_st rail_st;
typedef struct xfer xfer;

struct gr_core {
    gr_core_cfg cfg;
    _Atomic int nrails;
    _Atomic(rail_st *) rails[MAX_RAILS]; /* NULL: reserved, see gr_core_reserve_rail */
    rail_st *dropped; /* their rails are closed before their memory goes: what was posted may be written to until then */
    struct {
        size_t size; /* of an entry */
        _Atomic(char *) chunk[REGION_CHUNKS];
    } regions;
    struct {
        pthread_mutex_t mu; /* the rest, the growth of regions and flush */
        xfer *xfers;        /* free */
        gr_link *links;     /* free; never unmapped: an ended sub-transfer may still name one */
        struct xfer_block *blocks;
    } slots;
    struct { /* notifications for the application */
        pthread_mutex_t mu;
        gr_notif *first, *last;
        _Atomic uint64_t n;
    } ready;
    struct { /* for Go */
        pthread_mutex_t mu;
        struct event_node *first, *last;
        int fd;
    } events;
    _Atomic uint64_t notif_bytes; /* of incoming notifications, of all sessions */
    struct {
        struct { void (*call)(void *); void *arg; } by[MAX_FLUSHES]; /* never changed */
        _Atomic uint32_t n;
    } flush;
    struct {
        pthread_t id;
        int up, wake_fd, epoll_fd;
        _Atomic int stop;
    } thread;
    _Atomic uint64_t inline_polls; /* by the application */
    _Atomic uint64_t tick; /* the time, while the thread naps and the application polls, a nap old at most; 0: ask the system */
    _Atomic uint64_t count[GR_C_COUNT];
};

#define COUNT(core, which, n) atomic_fetch_add_explicit(&(core)->count[which], (n), memory_order_relaxed)

/* The time where thousands of operations come and go and some milliseconds do not matter: asking costs 25 ns, where the kernel has to be
 * asked some 300 ns and in a virtual machine up to 30 us, twice a transfer. */
static inline uint64_t core_tick(gr_core *core)
{
    uint64_t t = atomic_load_explicit(&core->tick, memory_order_relaxed);
    return t ? t : gr_now_ns();
}

/* Wakes the thread. */
void core_wake(gr_core *core);
void note_wire_err(gr_xfer *x, int err);

/* Before the application hears of what has arrived. No lock held. */
void core_flush(gr_core *core);
static inline int core_flushes(gr_core *core) { return atomic_load_explicit(&core->flush.n, memory_order_acquire) != 0; }

#endif
