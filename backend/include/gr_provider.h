/* The interface that a provider implements in C, so that the core can post and poll without entering Go.
 *
 * A rail is one opened fabric device (libfabric domain, verbs device port, ...). The provider's own rail structure
 * begins with a gr_rail. An endpoint (ep) serves exactly one peer, so no operation below names an address.
 *
 * Locking: the core holds rail->mu during every call of the tables, except assist, ops_alloc and ops_free. The core releases
 * the lock through gr_rail_leave only. The provider's own C entry points that touch the same device (registration, opening and
 * closing endpoints, address tables) take the lock through gr_rail_lock(): libfabric's net provider up to 1.17 races there.
 */
#ifndef GORAIL_PROVIDER_H
#define GORAIL_PROVIDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gr_nixl.h"

/* An unsignaled WRITE completes when its local buffers are free; its completion proves nothing about the target. With
 * gr_rail.is.chained the completion of a later WRITE on the same endpoint proves it too. A WRITE of length 0 is allowed for
 * this purpose only.
 * The completion of a flushed WRITE proves that its data is visible to later work on any endpoint or device of the peer.
 * The completion of an ordinary WRITE may prove only that its data is placed before later work on the same endpoint. The
 * last address of a flushed WRITE names a byte that the peer lets us read, even at length 0. */
enum { GR_WRITE_UNSIGNALED = 4, GR_WRITE_FLUSHED = 5 }; /* in addition to GR_READ and GR_WRITE */
enum { GR_MAX_IOV = 8, GR_MAX_WORKERS = 8, GR_BULK = 256 << 10 /* bytes of a large operation */ };

/* One segment of a work request: local address and its registration descriptor, remote address and key as the wire needs
 * them (already an offset where the fabric has no virtual addressing). */
typedef struct gr_seg {
    uint64_t laddr;
    uint64_t raddr;
    uint64_t len;
    void *ldesc;
    uint64_t rkey;
} gr_seg;

/* Context of one posted operation. The core owns it. `scratch` comes first and belongs to the provider from the post until
 * the completion (libfabric's FI_CONTEXT2 wants 64 bytes at the address of op_context). */
typedef struct gr_ctx {
    uint64_t scratch[8];
} gr_ctx;

/* One completion. err is 0 or a positive errno. prov_err is for messages only. len is set for receives. */
typedef struct gr_comp {
    gr_ctx *ctx;
    int32_t err;
    int32_t prov_err;
    uint64_t len;
} gr_comp;

typedef struct gr_rail gr_rail;
struct gr_op;

/* A region that a bulk transfer uses: the core's region number, and the registration. */
typedef struct gr_bulk_region {
    uint32_t index;
    uint32_t pad;
    uint64_t addr, len;
    uint64_t from, to; /* the operations lie in [from, to) */
    void *desc;   /* our registration descriptor */
    uint64_t key; /* the peer's key */
    uint64_t base; /* the peer's wire address of addr */
} gr_bulk_region;

/* All operations of a transfer. Each operation lies inside one of the listed regions on either side. */
typedef struct gr_bulk {
    const struct gr_op *ops; /* allocated by ops_alloc; unchanged until the completion */
    uint64_t nops, bytes;
    const gr_bulk_region *local, *remote; /* valid during the call only */
    uint32_t nlocal, nremote;
} gr_bulk;

/* The functions that every provider has. All return 0 (or a count) or a negative errno. -EAGAIN: poll, then try again. */
typedef struct gr_rail_ops {
    /* Posts one RMA work request of n segments (n <= limit.iov_limit). It completes only when the data is placed at the
     * target (WRITE) or local (READ), as far as the caps promise. Implements fi_writemsg / fi_readmsg. */
    int (*rma)(gr_rail *rail, void *ep, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx);
    /* Sends one message from a registered buffer. It completes when the peer has the message, as far as the caps promise.
     * Without `wake` the peer may find the message only at its next regular poll: four times a second, or less often while
     * nothing happens. Implements fi_sendmsg. */
    int (*send)(gr_rail *rail, void *ep, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx);
    /* Posts one receive buffer. Implements fi_recv. */
    int (*recv)(gr_rail *rail, void *ep, void *buf, size_t len, void *desc, gr_ctx *ctx);
    /* Makes progress and takes up to max completions, failed ones included. Implements fi_cq_read / fi_cq_readerr. */
    int (*poll)(gr_rail *rail, gr_comp *out, int max);
    /* Called before blocking on wait_fd. 0: may block. 1: poll again first. Implements fi_trywait where it works. */
    int (*arm)(gr_rail *rail);
    /* Registers the core's own memory (message buffers). desc may come back NULL. Implements fi_mr_reg. */
    int (*reg)(gr_rail *rail, void *buf, size_t len, void **mr, void **desc);
    void (*unreg)(gr_rail *rail, void *mr);

    /* Extensions. NULL: not available. See docs/providers.md. */

    /* Gives all collected requests (gr_rail.gathered), of any number of endpoints, to the device: rma and send only collect. Requests that
     * the device refuses for now stay collected, or complete with an error. */
    void (*flush)(gr_rail *rail);
    /* Called without the lock, after a poll that found nothing or while another thread polls. Does work that needs no lock,
     * for a bounded time. Returns 1 if there was work. */
    int (*assist)(gr_rail *rail);
    /* The core has finished with the rail. Closes a shared endpoint (gr_rail.shared_ep) if that must happen before the memory of its
     * receives is unregistered. */
    void (*shut)(gr_rail *rail);
    /* The round trip of the endpoint's path in nanoseconds, without what queues add; 0: unknown. Called with the lock, every two
     * milliseconds at most. For long links. */
    uint64_t (*round_trip)(gr_rail *rail, void *ep);
} gr_rail_ops;

/* Bulk transfers: memory of GPUs is copied with one post a transfer. */
typedef struct gr_rail_bulk {
    /* Posts a whole transfer with one completion; limits of work requests do not apply. -EAGAIN: poll, then try again.
     * -ENOTSUP: this rail cannot reach the memory; the rail keeps the reason for later queries. */
    int (*post)(gr_rail *rail, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
    /* Asks to end that copy soon. Its completion is ECANCELED, unless the copy had ended. */
    void (*stop)(gr_rail *rail, void *ep, gr_ctx *ctx);
    /* Allocates memory for the operations, where the device reads them. Any thread, without the lock. NULL without memory. */
    void *(*ops_alloc)(gr_rail *rail, size_t size);
    void (*ops_free)(gr_rail *rail, void *mem);
} gr_rail_bulk;

struct gr_rail {
    const gr_rail_ops *ops;
    const gr_rail_bulk *bulk; /* NULL: not available */
    pthread_mutex_t mu;
    _Atomic int waiters; /* threads that wait for the lock; the poller yields to them */
    _Atomic int pending; /* commands wait in the inbox; the thread that unlocks calls kick */
    void (*kick)(gr_rail *rail);
    /* Set by the core. 1: the application polls steadily, or its posts leave nothing in flight. When the application stops
     * polling, the core's thread polls again within eight milliseconds. */
    _Atomic int app_polls;
    int wait_fd;         /* readable (edge) when there may be completions; -1: none, polled by timer */
    struct {
        uint32_t iov_limit;  /* segments of one work request, <= GR_MAX_IOV */
        uint32_t tx_depth;   /* work requests and sends in flight on one endpoint */
        uint32_t rx_depth;   /* receives posted on one endpoint */
        uint64_t max_msg;    /* bytes of one work request */
        /* Lower limit of a link's window in bytes, for a provider whose queued work delays no other work and can be taken
         * back at once; 0: the core's limit. */
        uint64_t window_min;
        /* A link's window is what its rate moves in this time and in two round trips; 0: the core's time. For a provider whose queue below
         * holds some work already. */
        uint64_t window_ns;
        uint32_t msg_size;   /* bytes of one message, header included */
    } limit;
    struct {
        uint8_t private_ep; /* an endpoint serves one peer: after close and a poll that finds nothing, it gives no completions */
        uint8_t ordered;    /* the receive of a SEND proves the WRITEs posted before it on the same endpoint */
        uint8_t completes_inline;     /* small operations complete within the post: the next poll returns their completions */
        uint8_t chained;    /* a WRITE's completion proves the unsignaled WRITEs posted before it on the same endpoint */
        uint8_t sure;         /* each completion, and each message that wakes, gives an event after arm: none is ever lost */
        uint8_t by_processor; /* this processor moves the bytes: large WRITEs of one link delay small ones of the peer's other links */
    } is;
    uint8_t gathered; /* set by the provider: flush must run before the lock is released */
    uint8_t soon; /* set by the provider's poll: something small of a peer came, and its next may come soon. A thread polls a little longer */
    _Atomic uint64_t bulks; /* counted by the provider: operations of peers with GR_BULK bytes and more, under the lock; any thread may read */
    void *shared_ep;     /* the shared endpoint, which has the receives; NULL: each peer has its own endpoint */
    void *core;          /* the core's rail structure; set by the core */
    /* Which of the core's progress threads polls the rail, < GR_MAX_WORKERS. 0: the thread that the application's calls assist.
     * Rails of other threads get small transfers only while the first thread has more than it can post, or while its links are
     * down. Set by the provider. */
    uint32_t worker;
    pthread_t thread; /* that thread, set by the core; it polls when the application does not */
};

/* Initializes the base part. The provider then sets its extensions, wait_fd and the limits. */
static inline void gr_rail_init(gr_rail *rail, const gr_rail_ops *ops)
{
    rail->ops = ops;
    rail->bulk = NULL;
    rail->bulks = 0;
    pthread_mutex_init(&rail->mu, NULL);
    atomic_init(&rail->waiters, 0);
    atomic_init(&rail->pending, 0);
    atomic_init(&rail->app_polls, 0);
    rail->kick = NULL;
    rail->wait_fd = -1;
    rail->gathered = 0;
    rail->soon = 0;
    rail->limit.window_min = 0;
    rail->limit.window_ns = 0;
    rail->shared_ep = NULL;
    rail->core = NULL;
    rail->worker = 0;
    rail->thread = (pthread_t)0;
}

static inline void gr_rail_lock(gr_rail *rail)
{
    atomic_fetch_add(&rail->waiters, 1);
    pthread_mutex_lock(&rail->mu);
    atomic_fetch_sub(&rail->waiters, 1);
}

/* Unlocks after a flush: no request that the device would accept stays collected. */
static inline void gr_rail_leave(gr_rail *rail)
{
    if (rail->gathered)
        rail->ops->flush(rail);
    pthread_mutex_unlock(&rail->mu);
}

static inline void gr_rail_unlock(gr_rail *rail)
{
    gr_rail_leave(rail);
    if (atomic_load(&rail->pending) && rail->kick)
        rail->kick(rail);
}

#endif
