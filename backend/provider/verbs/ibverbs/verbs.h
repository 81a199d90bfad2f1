/* The native provider for InfiniBand and RoCE: the code that runs per request, completion or poll, and the code
 * that changes the tables which that code reads. Go does the set-up (package verbs, through the Go files here).
 * libibverbs is loaded, never linked.
 *
 *  - post.c: work requests, and READs that prove WRITEs
 *  - gather.c: requests gathered for one ibv_post_send
 *  - poll.c: completions
 *  - slot.c: an endpoint's slot on the rail
 *  - queue.c: the rail's completion queues, and room in them
 *  - mr.c: registration, also of the core's own buffers
 *
 * The data path functions are inline in the header of libibverbs and call the device driver directly.
 *
 * Locking: the ops table is called under the rail's lock. vb_ep_* take the lock themselves. Functions return 0 or a negative errno. */
#ifndef GORAIL_VERBS_H
#define GORAIL_VERBS_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "gr_provider.h"
#include "gr_ready.h"

/* Functions of the library that C calls; ibv.h has the rest. reg_mr_iova2 is NULL before rdma-core 28. */
typedef struct vb_lib {
    int (*get_cq_event)(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **cq_ctx);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
    struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int n, void *cq_ctx, struct ibv_comp_channel *ch, int vector);
    int (*resize_cq)(struct ibv_cq *cq, int n);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int access);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access);
    int (*dereg_mr)(struct ibv_mr *mr);
} vb_lib;

/* ---- rails ---- */

enum {
    VB_CHAIN = 32, /* work requests gathered for one ibv_post_send; also the number of unsignaled requests in a row */
    VB_SEND_DEPTH = 1024,  /* work requests of an endpoint */
    VB_RECV_DEPTH = 64,
};

typedef struct vb_sent { /* an operation in the send queue */
    gr_ctx *ctx;
    uint16_t wrs;
    uint8_t signaled;
    uint8_t broken; /* the device took the chain in part: the operation fails, whatever its requests report */
} vb_sent;

typedef struct vb_rail vb_rail;

/* A completion queue. It is the cq_context of its ibv_cq, and stays until the rail closes. Under the rail's lock. */
typedef struct vb_cq {
    struct ibv_cq *cq;
    struct vb_cq *next; /* of the rail's ring */
    uint32_t reserved;  /* completions that its endpoints may produce */
    int armed;          /* VB_NOT ... */
} vb_cq;

/* Gathered requests of one endpoint that wait for vb_flush, in the order of posting: [head, tail). Their operations
 * are in vb_qp.sent. */
typedef struct vb_chain {
    struct vb_qp *qp;
    uint32_t head, tail;
    struct ibv_send_wr wr[VB_CHAIN];
    struct ibv_sge sge[VB_CHAIN];
} vb_chain;

/* The `ep` of the ops table: a queue pair. The rings are indexed by sequence number modulo their sizes VB_SEND_DEPTH
 * and VB_RECV_DEPTH, powers of two. */
typedef struct vb_qp {
    /* Unchanged while the endpoint has a slot. */
    vb_rail *rail;
    struct ibv_qp *qp;
    vb_cq *cq;       /* of both its queues */
    uint32_t number; /* index in rail->slot; work request ids contain it, with the generation */
    uint32_t inline_max;
    uint32_t sq_size, rq_size; /* work requests */

    /* Under the rail's lock. */
    uint8_t connected;
    uint8_t send_failed;  /* an operation has failed: a completion no longer implies that earlier operations succeeded */
    uint8_t recv_failed;  /* a receive has failed: the device has taken in that the queue pair is in ERR */
    uint32_t room;        /* completions reserved in the completion queue */

    vb_sent *sent;
    uint32_t sent_head, sent_tail;
    uint32_t sq_used;     /* work requests */
    uint32_t unsignaled; /* work requests behind the last signaled one */
    uint32_t signaled;   /* signaled operations in flight */

    gr_ctx **recv;
    uint32_t recv_head, recv_tail;
} vb_qp;

typedef struct vb_slot {
    vb_qp *qp;
    uint32_t generation;
} vb_slot;

struct vb_rail {
    gr_rail base;

    /* Unchanged while the rail is open. */
    const vb_lib *lib;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    uint32_t max_cq, max_cqe; /* the device's limits: queues (0: unknown), and entries of one */
    uint8_t sink[64]; /* receives the data of READs that prove WRITEs: one byte */
    struct ibv_mr *sink_mr;

    /* Under the lock. */
    vb_cq *cq;         /* the first of a ring of queues */
    vb_cq *turn;       /* the one that is polled first the next time */
    uint32_t cqs;
    uint32_t reserved; /* completions that open endpoints may produce */
    vb_slot *slot;
    uint32_t slots;
    uint32_t tails; /* endpoints whose last requests are unsignaled, with no signaled request in flight */
    gr_ready ready;
    vb_chain chain;
};

/* Armed for nothing, for solicited messages, for every completion. VB_MAYBE: for solicited messages, if none of the completions that were taken
 * since was one. */
enum { VB_NOT, VB_MAYBE, VB_SOLICITED, VB_ANY };

/* ---- completion queues: queue.c ---- */

/* Makes the rail's first queue. *step names the call that failed. */
int vb_cq_first(vb_rail *rail, const char **step);
/* Implements ibv_destroy_cq of all queues, and returns the first error. */
int vb_cq_close(vb_rail *rail);
/* Reserves room for so many completions, before ibv_create_qp: in the first queue that has or gets it, else in another one. *step names
 * the call that failed. */
int vb_cq_reserve(vb_qp *qp, uint32_t comps, const char **step);
/* Gives back what is reserved beyond `comps`. Under the rail's lock. */
void vb_cq_keep(vb_qp *qp, uint32_t comps);
/* Gives back all of it, of an endpoint without a slot. Takes the lock. */
void vb_cq_leave(vb_qp *qp);

/* ---- endpoints: slot.c ---- */

/* Gives the endpoint a slot on the rail and grows the rail's tables if needed. */
int vb_ep_enter(vb_qp *qp);
/* Allows posts. */
void vb_ep_connected(vb_qp *qp);
/* Implements ibv_modify_qp to ERR. poll reports everything posted, as ECANCELED if it had not completed. *quiet: the
 * device is known to use no memory for the queue pair any more. If that is not known, ibv_destroy_qp ends it, before
 * anything is reported. After a failure of that the endpoint keeps its slot. */
int vb_ep_quiesce(vb_qp *qp, int *quiet);
/* Implements ibv_destroy_qp of a quiet queue pair. Runs without the rail's lock: soft RoCE waits here for packets that
 * wait for a neighbour, up to three seconds. After a failure the endpoint keeps its slot. */
int vb_ep_destroy(vb_qp *qp);

/* ---- between the files ---- */

/* The descriptor of local memory is its struct ibv_mr. The lkey itself would not be a valid pointer for Go. Requests
 * without bytes have no descriptor. The descriptor of GPU memory is the address of its ibv_mr plus one byte
 * (gpuRegion.Desc). */
enum { VB_GPU = 1 };
static inline uint32_t vb_lkey(const void *desc) { return desc ? ((const struct ibv_mr *)((uintptr_t)desc & ~(uintptr_t)VB_GPU))->lkey : 0; }

/* Reports whether the CPU may copy the bytes into the request. The CPU must be able to read them, so GPU memory is
 * excluded. Bytes without a key are excluded too: a driver that ignores IBV_SEND_INLINE needs the key and would refuse
 * the request. */
static inline int vb_inline(const vb_qp *qp, const void *desc, uint64_t len)
{
    return len <= qp->inline_max && !((uintptr_t)desc & VB_GPU) && (desc || !len);
}

/* mr.c: called without the rail's lock; libibverbs has its own. NULL: the reason is in errno. */
struct ibv_mr *vb_reg(const vb_rail *rail, uint64_t addr, size_t len, unsigned access);
int vb_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc);
void vb_own_unreg(gr_rail *base, void *mr);

extern const gr_rail_ops vb_ops;
/* gather.c: makes room for n requests of the endpoint from rail->chain.wr[rail->chain.tail] on. 0, or -EAGAIN. */
int vb_gather(vb_qp *qp, uint32_t n);
void vb_flush(gr_rail *base);
/* Fails with err those requests of the endpoint that the device has not accepted. */
void vb_unpost(vb_qp *qp, int err);
/* poll.c: an operation is posted. Its completion must cause an event if the rail is armed. */
void vb_expect(vb_qp *qp);
/* poll.c: hands a completion to the core. */
void vb_complete(vb_rail *rail, gr_ctx *ctx, int err, int vendor_err, uint64_t len);
/* poll.c: takes up to 32 completions from the queue. The operations that they complete go to rail->ready. Returns their number, or an error. */
int vb_cq_take(vb_rail *rail, vb_cq *q);
/* poll.c: ends as ECANCELED everything posted on a queue pair that will report no more completions. */
void vb_cancel_posted(vb_qp *qp);
int vb_poll(gr_rail *base, gr_comp *out, int max);
int vb_arm(gr_rail *base);
/* post.c: posts an empty signaled WRITE behind unsignaled requests. */
void vb_close_tail(vb_qp *qp);

/* The last requests are unsignaled, and no signaled operation is in flight that would report their end. */
static inline int vb_tail(const vb_qp *qp) { return qp->unsignaled && !qp->signaled; }

static inline uint64_t vb_id(const vb_qp *qp, uint32_t seq, int recv)
{
    uint64_t gen = qp->rail->slot[qp->number].generation & 0x7fff;
    return gen << 49 | (uint64_t)(qp->number & 0xffff) << 33 | (uint64_t)seq << 1 | (uint64_t)recv;
}

#endif
