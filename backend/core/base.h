/* The base of the core: its one struct, limits, time, counters. The layers above, each with a header that includes the one below:
 * session, rail, link, message, transfer, progress; docs/architecture.md has the picture.
 *
 * Who guards what:
 *   rail->dev->mu      links, parts, messages, contexts and buffers of that rail; never two rails at once
 *   xfer->mu           the pool of a transfer: what has been taken and given back
 *   sess->rx_mu        order of incoming notifications
 *   sess->tx_mu        numbers of outgoing ones
 *   core->ready_mu     notifications ready for the application
 *   core->ev_mu        events for Go
 *   core->slot_mu      free transfer slots and the region table's growth
 * Order: rail -> xfer->mu; rail -> rx_mu -> ready_mu | ev_mu; rail -> tx_mu. Nothing is called back with ready_mu, ev_mu or slot_mu held.
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

/* Before the application hears of what has arrived. No lock held. */
void core_flush(gr_core *core);
static inline int core_flushes(gr_core *core) { return atomic_load_explicit(&core->nflush, memory_order_acquire) != 0; }

#endif
