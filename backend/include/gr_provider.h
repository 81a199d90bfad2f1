/* What a provider implements in C, so that the core can post and poll without entering Go.
 *
 * A rail is one opened fabric device (libfabric domain, verbs device port, ...). The provider's own rail structure
 * begins with a gr_rail. An endpoint (ep) serves exactly one peer, so no operation below names an address.
 *
 * Locking: the core holds rail->mu round every call of the tables but help and the memory of bulk, and lets go of it by gr_rail_leave alone. The provider's own C entry points that touch
 * the same device (registration, opening and closing endpoints, address tables) take it through gr_rail_lock():
 * libfabric's net provider up to 1.17 races there.
 */
#ifndef GORAIL_PROVIDER_H
#define GORAIL_PROVIDER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gr_nixl.h"

/* A unsignaled WRITE completes when its local buffers are free and proves nothing; the completion of a WRITE posted behind it on
 * the same endpoint proves it too (gr_rail.is.chained). A WRITE of length 0 is allowed, for that purpose alone.
 * The completion of a proven WRITE is good for what goes to the peer by another way, too: another endpoint, another device.
 * That of an ordinary one may prove no more than that what follows on the same endpoint comes after it. Its last address
 * names a byte that the peer lets us read, even when it is of length 0. */
enum { GR_WRITE_UNSIGNALED = 4, GR_WRITE_FLUSHED = 5 }; /* beside GR_READ and GR_WRITE */
enum { GR_MAX_IOV = 8 };

/* One piece of a work request: local address and its registration descriptor, remote address and key as the wire
 * wants them (already an offset where the fabric has no virtual addressing). */
typedef struct gr_seg {
    uint64_t laddr;
    uint64_t raddr;
    uint64_t len;
    void *ldesc;
    uint64_t rkey;
} gr_seg;

/* Context of one posted operation, owned by the core. `scratch` comes first and belongs to the provider from post
 * until completion (libfabric's FI_CONTEXT2 wants 64 bytes at the address of op_context). */
typedef struct gr_ctx {
    uint64_t scratch[8];
} gr_ctx;

/* One completion. err is 0 or a positive errno; prov_err is for messages only. len is set for receives. */
typedef struct gr_comp {
    gr_ctx *ctx;
    int32_t err;
    int32_t prov_err;
    uint64_t len;
} gr_comp;

typedef struct gr_rail gr_rail;
struct gr_op;

/* A region that a bulk names: the core's number of it, and what it was registered as. */
typedef struct gr_bulk_region {
    uint32_t index;
    uint32_t pad;
    uint64_t addr, len;
    void *desc;   /* ours */
    uint64_t key; /* the peer's */
} gr_bulk_region;

/* All operations of a transfer, each inside one of the regions on either side. */
typedef struct gr_bulk {
    const struct gr_op *ops; /* of ops_alloc; unchanged until the completion */
    uint64_t nops, bytes;
    const gr_bulk_region *local, *remote; /* good during the call */
    uint32_t nlocal, nremote;
} gr_bulk;

/* What every provider has. All functions return 0 (or a count) or a negative errno; -EAGAIN means: poll, then try again. */
typedef struct gr_rail_ops {
    /* One RMA work request of n segments (n <= limit.iov_limit); completes only when the data is proved placed (WRITE)
     * or local (READ), as far as the caps promise. Implements fi_writemsg / fi_readmsg. */
    int (*rma)(gr_rail *rail, void *ep, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx);
    /* One message from a registered buffer; completes when the peer has it, as far as the caps promise. Without `wake` it may
     * lie there until the peer looks by itself: it does four times a second. fi_sendmsg */
    int (*send)(gr_rail *rail, void *ep, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx);
    /* Posts one receive buffer. fi_recv */
    int (*recv)(gr_rail *rail, void *ep, void *buf, size_t len, void *desc, gr_ctx *ctx);
    /* Makes progress and takes up to max completions, failed ones included. fi_cq_read / fi_cq_readerr */
    int (*poll)(gr_rail *rail, gr_comp *out, int max);
    /* Before blocking on wait_fd: 0 = may block, 1 = poll again first. fi_trywait where it works */
    int (*arm)(gr_rail *rail);
    /* Registers memory of the core's own (message buffers); desc may come back NULL. fi_mr_reg */
    int (*reg)(gr_rail *rail, void *buf, size_t len, void **mr, void **desc);
    void (*unreg)(gr_rail *rail, void *mr);
} gr_rail_ops;

/* Extensions: a provider that has one sets its pointer in gr_rail; NULL means that it has none. docs/providers.md. */

/* rma and send only gather what they are given; it goes to the device in one batch. */
typedef struct gr_rail_batch {
    /* Hands to the device what was gathered (gr_rail.gathered), however many endpoints that is. What it does not
     * take now stays gathered, or completes with an error. */
    void (*flush)(gr_rail *rail);
} gr_rail_batch;

/* Progress that needs no lock. */
typedef struct gr_rail_unlocked {
    /* Called without the lock by whoever has polled and found nothing, or another at it: does, for a while that is bounded, work that
     * needs no lock. 1: there was some. */
    int (*help)(gr_rail *rail);
} gr_rail_unlocked;

/* One endpoint serves all peers (gr_rail.shared_ep). */
typedef struct gr_rail_shared {
    /* The core is done with the rail: closes the shared endpoint where that must be before the memory of its receives is
     * unregistered. */
    void (*shut)(gr_rail *rail);
} gr_rail_shared;

/* Peers connect over a network. */
typedef struct gr_rail_listen {
    /* A message of the peer's has come in over the endpoint, the first since it was bound to a link. What the provider does to let
     * the peer connect has an end. */
    void (*heard)(gr_rail *rail, void *ep);
} gr_rail_listen;

/* Memory of GPUs is copied whole. */
typedef struct gr_rail_bulk {
    /* A whole transfer with one completion, whatever the limits of work requests. -EAGAIN as ever; -ENOTSUP: this memory can't be
     * reached from here, and the rail keeps the reason for whoever asks. */
    int (*post)(gr_rail *rail, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
    /* That copy is to end soon: its completion is ECANCELED, unless it had ended. */
    void (*stop)(gr_rail *rail, void *ep, gr_ctx *ctx);
    /* Memory for the operations, where the device reads them; any thread, without the lock. NULL without memory. */
    void *(*ops_alloc)(gr_rail *rail, size_t size);
    void (*ops_free)(gr_rail *rail, void *mem);
} gr_rail_bulk;

struct gr_rail {
    const gr_rail_ops *ops;
    const gr_rail_batch *batch;       /* the extensions; NULL: none */
    const gr_rail_unlocked *unlocked;
    const gr_rail_shared *shared;
    const gr_rail_listen *listen;
    const gr_rail_bulk *bulk;
    pthread_mutex_t mu;
    _Atomic int waiters; /* blocking lockers; the poller stands back for them */
    _Atomic int pending; /* work was queued while the lock was taken: whoever unlocks runs kick */
    void (*kick)(gr_rail *rail);
    _Atomic int app_polls; /* set by the core: the application polls all the time, or posts what leaves nothing under way; should it stop, the core's thread does so within eight milliseconds */
    int wait_fd;         /* readable (edge) when there may be completions; -1: none, polled by timer */
    struct {
        uint32_t iov_limit;  /* segments of one work request, <= GR_MAX_IOV */
        uint32_t tx_depth;   /* work requests and sends one endpoint takes */
        uint32_t rx_depth;   /* receives one endpoint takes */
        uint64_t max_msg;    /* bytes of one work request */
        uint64_t window_min; /* bytes that a link may have in flight at least: what waits here costs nobody, and is taken back at once; 0: the core's */
        uint32_t msg_size;   /* bytes of one message, header included */
    } limit;
    struct {
        uint8_t private_ep; /* an endpoint is one peer's: once closed and polled empty, nothing of it completes any more */
        uint8_t ordered;    /* the receive of a SEND proves the WRITEs posted before it on the same endpoint */
        uint8_t completes_inline;     /* small operations complete within the post: a poll behind it finds them */
        uint8_t chained;    /* the completion of a WRITE proves the unsignaled ones posted before it on the same endpoint */
    } is;
    uint8_t gathered; /* set by the provider: flush has something to do before the lock is let go */
    void *shared_ep;     /* the endpoint of all peers, for receives; NULL: each has its own */
    void *core;          /* the core's side of the rail, set by the core */
    pthread_t thread;    /* the core's, set by it: it polls when the application doesn't */
};

/* Sets up the base part; the provider then fills its extensions, wait_fd and the limits. */
static inline void gr_rail_init(gr_rail *rail, const gr_rail_ops *ops)
{
    rail->ops = ops;
    rail->batch = NULL;
    rail->unlocked = NULL;
    rail->shared = NULL;
    rail->listen = NULL;
    rail->bulk = NULL;
    pthread_mutex_init(&rail->mu, NULL);
    atomic_init(&rail->waiters, 0);
    atomic_init(&rail->pending, 0);
    atomic_init(&rail->app_polls, 0);
    rail->kick = NULL;
    rail->wait_fd = -1;
    rail->gathered = 0;
    rail->limit.window_min = 0;
    rail->shared_ep = NULL;
    rail->core = NULL;
    rail->thread = (pthread_t)0;
}

static inline void gr_rail_lock(gr_rail *rail)
{
    atomic_fetch_add(&rail->waiters, 1);
    pthread_mutex_lock(&rail->mu);
    atomic_fetch_sub(&rail->waiters, 1);
}

/* Unlocks; nothing stays gathered that the device would take. */
static inline void gr_rail_leave(gr_rail *rail)
{
    if (rail->gathered)
        rail->batch->flush(rail);
    pthread_mutex_unlock(&rail->mu);
}

static inline void gr_rail_unlock(gr_rail *rail)
{
    gr_rail_leave(rail);
    if (atomic_load(&rail->pending) && rail->kick)
        rail->kick(rail);
}

#endif
