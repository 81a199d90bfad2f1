/* The native provider for InfiniBand, RoCE and iWARP: what runs per request, completion or poll, and what changes tables that those
 * read. Go sets everything up (package verbs, by the Go files here); libibverbs is loaded, never linked.
 *
 * post.c (requests, READs that prove WRITEs), gather.c (what is posted in one call), poll.c (completions), slot.c (an endpoint's place on
 * the rail), mr.c (the core's own buffers); iwarp.c posts and takes completions there. What data passes is inline in libibverbs' own
 * header: it calls the device driver's functions without a detour.
 *
 * Locking: the ops table is called under the rail's lock; vb_ep_* and vb_iw_begin, _up, _connected and _fail take it themselves. Functions
 * return 0 or a negative errno.
 */
#ifndef GORAIL_VERBS_H
#define GORAIL_VERBS_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "gr_provider.h"
#include "gr_ready.h"

/* What C calls of the library; ibv.h has the rest. reg_mr_iova2 is NULL before rdma-core 28. */
typedef struct vb_lib {
    int (*get_cq_event)(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **cq_ctx);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
    int (*resize_cq)(struct ibv_cq *cq, int n);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int access);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access);
    int (*dereg_mr)(struct ibv_mr *mr);
} vb_lib;

/* ---- rails ---- */

enum {
    VB_CHAIN = 32, /* work requests gathered for one ibv_post_send; as many as go unsignaled */
    VB_SEND_DEPTH = 1024,  /* work requests of an endpoint */
    VB_RECV_DEPTH = 64,
};

typedef struct vb_sent { /* one operation in the send queue */
    gr_ctx *ctx;
    uint16_t wrs;
    uint8_t signaled;
    uint8_t broken; /* its chain was taken in part: it fails, whatever its requests say; on iWARP, its errno */
} vb_sent;

typedef struct vb_rail vb_rail;

/* Requests of one endpoint that wait for vb_flush, in the order of posting: [head, tail). Their operations are in vb_qp.sent. */
typedef struct vb_chain {
    struct vb_qp *qp;
    uint32_t head, tail;
    struct ibv_send_wr wr[VB_CHAIN];
    struct ibv_sge sge[VB_CHAIN];
} vb_chain;

/* The `ep` of the ops table: a queue pair. Rings are indexed by sequence number modulo their size, VB_SEND_DEPTH and
 * VB_RECV_DEPTH, powers of two. */
typedef struct vb_qp {
    /* Unchanged while it has its place. */
    vb_rail *rail;
    struct ibv_qp *qp;
    uint32_t number; /* in rail->slot; what work request ids name, with the generation */
    uint32_t inline_max;
    uint32_t sq_size, rq_size; /* work requests */

    /* Under the rail's lock. */
    uint8_t connected;
    uint8_t alone;  /* a request has failed: from then on each tells of itself alone */
    uint8_t connecting; /* iWARP: rdma_cm is at it */
    int failed;         /* iWARP: the errno that ended the connection, or kept it from coming about */

    vb_sent *sent;
    uint32_t sent_head, sent_tail;
    uint32_t sq_used;     /* work requests */
    uint32_t unsignaled; /* work requests behind the last signaled one */
    uint32_t signaled;   /* signaled operations under way */

    gr_ctx **recv;
    uint32_t recv_head, recv_tail;
} vb_qp;

typedef struct vb_slot {
    vb_qp *qp;
    uint32_t generation;
} vb_slot;

struct vb_rail {
    gr_rail base;

    /* Unchanged while it is open. */
    const vb_lib *lib;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    uint32_t max_cqe; /* the device's */
    uint8_t iwarp;
    uint8_t sink[64]; /* where READs go that prove WRITEs: the first byte */
    struct ibv_mr *sink_mr;

    /* Under the lock. */
    int armed; /* what an event was asked for */
    uint32_t cq_promised; /* completions that open endpoints may cause */
    vb_slot *slot;
    uint32_t slots;
    uint32_t tails; /* endpoints with unsignaled requests and nothing behind them that would tell of their end */
    gr_ready ready;
    vb_chain chain;
};

enum { VB_NOT, VB_URGENT, VB_ANY }; /* armed for nothing, for messages that are to wake us, for every completion */

/* ---- endpoints: slot.c ---- */

/* Gives the endpoint its place on the rail, whose tables grow; *step names the call that failed. */
int vb_ep_enter(vb_qp *qp, const char **step);
/* From now on requests are taken. */
void vb_ep_connected(vb_qp *qp);
/* The peer's access ends; what was posted is in the completions that poll hands out, as ECANCELED where it did not end. If
 * it fails the endpoint keeps its place. */
int vb_ep_close(vb_qp *qp);
/* The first half of it, for a queue pair that something else still uses: nothing of it completes any more, nobody gets
 * through it. */
void vb_ep_leave(vb_qp *qp);

/* ---- between the files ---- */

/* The descriptor of local memory is its struct ibv_mr: a key as a pointer would not be one to Go. Requests without bytes
 * have none. That of a GPU's memory is a byte beyond it (gpuRegion.Desc). */
enum { VB_GPU = 1 };
static inline uint32_t vb_lkey(const void *desc)
{
    return desc ? ((const struct ibv_mr *)((uintptr_t)desc & ~(uintptr_t)VB_GPU))->lkey : 0;
}

/* Whether the processor may put the bytes into the request itself, which it would have to read for that. Without a key never: who
 * ignores the flag needs one, and refuses the request then. */
static inline int vb_inline(const vb_qp *qp, const void *desc, uint64_t len)
{
    return len <= qp->inline_max && !((uintptr_t)desc & VB_GPU) && (desc || !len);
}

/* mr.c: without the lock, libibverbs has its own. NULL: errno has the reason. */
struct ibv_mr *vb_reg(const vb_rail *rail, uint64_t addr, size_t len, unsigned access);
int vb_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc);
void vb_own_unreg(gr_rail *base, void *mr);

extern const gr_rail_ops vb_ops;
extern const gr_rail_batch vb_batch;
/* gather.c: room for n requests of the endpoint, unused: rail->chain.wr[rail->chain.tail] and on. 0, or -EAGAIN. */
int vb_gather(vb_qp *qp, uint32_t n);
void vb_flush(gr_rail *base);
/* The endpoint's requests that the device has not got end with err. */
void vb_unpost(vb_qp *qp, int err);
/* poll.c: an operation is posted, whose completion is to cause an event where one may be waited for. */
void vb_expect(vb_rail *rail);
/* poll.c: hands out a completion. */
void vb_complete(vb_rail *rail, gr_ctx *ctx, int err, int vendor_err, uint64_t len);
/* post.c: the READ behind WRITEs whose completion is to prove them. */
struct ibv_send_wr vb_proof(const vb_qp *qp, struct ibv_sge *sge, int op, uint32_t n, const gr_seg *seg);
extern const gr_rail_ops vb_iw_ops; /* iwarp.c */
void vb_iw_take(vb_qp *qp, const struct ibv_wc *wc, uint32_t seq);
void vb_iw_give_up(vb_qp *qp);
/* The connecting begins; a side that is asked for the connection waits for the other's first message. Before any receive
 * is posted. */
int vb_iw_begin(vb_qp *qp, int asked);
/* The connection that we have asked for is there. */
int vb_iw_up(vb_qp *qp);
int vb_iw_connected(vb_qp *qp);
/* The connection is gone or did not come about: the first errno stays. */
void vb_iw_fail(vb_qp *qp, int err);
int vb_errno(enum ibv_wc_status s);
/* poll.c: takes in one completion; those that it tells of go to rail->ready. */
void vb_take(vb_rail *rail, const struct ibv_wc *wc);
/* poll.c: what is posted on a queue pair that is gone will not be heard of any more: it ends as ECANCELED. */
void vb_give_up(vb_qp *qp);
int vb_poll(gr_rail *base, gr_comp *out, int max);
int vb_arm(gr_rail *base);
/* post.c: a WRITE of nothing, signaled, behind unsignaled ones. */
void vb_close_tail(vb_qp *qp);

/* The last requests are unsignaled, and nothing is behind them that would tell of their end. */
static inline int vb_tail(const vb_qp *qp)
{
    return qp->unsignaled && !qp->signaled;
}

static inline uint64_t vb_id(const vb_qp *qp, uint32_t seq, int recv)
{
    uint64_t gen = qp->rail->slot[qp->number].generation & 0x7fff;
    return gen << 49 | (uint64_t)(qp->number & 0xffff) << 33 | (uint64_t)seq << 1 | (uint64_t)recv;
}

#endif
