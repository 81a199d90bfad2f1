/* The native provider for InfiniBand, RoCE and iWARP: reliable connections over libibverbs, which is loaded, never linked.
 *
 * loader.c (the library), scan.c (ports there are), rail.c (an opened port), qp.c (endpoints: one queue pair each), post.c
 * (requests), gather.c (what is posted in one call), proof.c (READs that prove WRITEs), poll.c (completions), mr.c; iwarp.c posts and
 * takes completions there, package rdmacm connects. What data passes is inline in libibverbs' own header: it calls the device driver's
 * functions without a detour.
 *
 * Locking: the ops table is called under the rail's lock; vb_ep_open, vb_ep_close, vb_mr_* take it themselves. Functions
 * return 0 or a negative errno; *step names the call that failed.
 */
#ifndef GORAIL_VERBS_H
#define GORAIL_VERBS_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "gr_provider.h"
#include "gr_ready.h"

/* ---- the library ---- */

/* NULL members: a library older than the function, which is optional then. */
typedef struct vb_lib {
    void *dl;
    struct ibv_device **(*get_device_list)(int *n);
    void (*free_device_list)(struct ibv_device **list);
    struct ibv_context *(*open_device)(struct ibv_device *dev);
    int (*close_device)(struct ibv_context *ctx);
    int (*query_device)(struct ibv_context *ctx, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *ctx);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t len, int access);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access); /* 1.8 */
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access); /* 1.12 */
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *ctx);
    int (*destroy_comp_channel)(struct ibv_comp_channel *ch);
    struct ibv_cq *(*create_cq)(struct ibv_context *ctx, int n, void *cq_ctx, struct ibv_comp_channel *ch, int vector);
    int (*resize_cq)(struct ibv_cq *cq, int n);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **cq_ctx);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*get_async_event)(struct ibv_context *ctx, struct ibv_async_event *ev);
    void (*ack_async_event)(struct ibv_async_event *ev);
    const char *(*event_type_str)(enum ibv_event_type ev);
    int (*fork_init)(void);
} vb_lib;

/* Loads path once more. NULL: err says why. */
vb_lib *vb_load(const char *path, char *err, size_t err_len);

/* ---- ports ---- */

typedef struct vb_port {
    char device[IBV_SYSFS_NAME_MAX];
    uint8_t port;
    uint8_t iwarp;    /* connected by rdma_cm alone */
    uint8_t ethernet; /* RoCE (or iWARP), else InfiniBand */
    uint8_t active;
    int state;     /* enum ibv_port_state */
    int mtu;       /* bytes */
    int gids;      /* entries of the GID table */
    uint64_t mbps;
    int err;       /* the errno that kept the device from being opened or asked; all but device, port and step is unset then */
    const char *step; /* the call that failed */
} vb_port;

/* All ports of all devices; *out is malloc'ed. Count, or a negative errno (-ENOSYS: no RDMA in this kernel). Devices of
 * other kinds (EFA) are left out. */
int vb_scan(const vb_lib *lib, vb_port **out);

/* ---- rails ---- */

typedef struct vb_opts {
    int gid_index; /* of InfiniBand; -1: no global route, within a subnet */
    uint8_t sl, tc, timeout, retry_cnt, rnr_retry, max_reads;
    uint16_t pkey_index;
    int mtu; /* bytes, 0: the port's */
    uint8_t odp; /* memory of others' is registered on demand */
} vb_opts;

enum {
    VB_CHAIN = 32, /* work requests gathered for one ibv_post_send; as many as go unsignalled */
    VB_SEND_DEPTH = 1024,  /* work requests of an endpoint */
    VB_RECV_DEPTH = 64,
};

typedef struct vb_sent { /* one operation in the send queue */
    gr_ctx *ctx;
    uint16_t wrs;
    uint8_t signalled;
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
    vb_rail *rail;
    struct ibv_qp *qp;
    uint32_t number; /* in rail->slot; what work request ids name, with the generation */
    uint32_t psn;
    int gid_index; /* the source of its route; -1: no global one */
    uint8_t connected;
    uint8_t alone;  /* a request has failed: from then on each tells of itself alone */
    uint8_t connecting; /* iWARP: rdma_cm is at it */
    int failed;         /* iWARP: the errno that ended the connection, or kept it from coming about */
    uint32_t inline_max;
    vb_sent *sent;
    uint32_t sent_head, sent_tail;
    uint32_t sq_size, sq_used; /* work requests */
    uint32_t unsignalled;      /* work requests behind the last signalled one */
    uint32_t signalled;        /* signalled operations under way */
    gr_ctx **recv;
    uint32_t recv_head, recv_tail, rq_size;
} vb_qp;

typedef struct vb_slot {
    vb_qp *qp;
    uint32_t generation;
} vb_slot;

struct vb_rail {
    gr_rail base;
    const vb_lib *lib;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    vb_opts opt;
    uint8_t port, ethernet, iwarp;
    uint8_t sink[64]; /* where READs go that prove WRITEs: the first byte */
    struct ibv_mr *sink_mr;
    struct ibv_device_attr dev;
    struct ibv_port_attr attr;
    int armed; /* what an event was asked for */
    uint32_t cq_promised; /* completions that open endpoints may cause */
    vb_slot *slot;
    uint32_t slots;
    uint32_t tails; /* endpoints with unsignalled requests and nothing behind them that would tell of their end */
    gr_ready ready;
    int open_eps, open_mrs;
    uint8_t dmabuf; /* memory can be registered by a dmabuf */
    vb_chain chain;
};

enum { VB_NOT, VB_URGENT, VB_ANY }; /* armed for nothing, for messages that are to wake us, for every completion */

enum { VB_OTHER, VB_UP, VB_DOWN, VB_GIDS }; /* the port came up; it or the device went away; its table of GIDs has changed */

/* The next event of the device that is there: 1, 0 for none. text is static. */
int vb_event(vb_rail *rail, int *what, const char **text);
int vb_rail_open(const vb_lib *lib, const char *device, uint8_t port, const vb_opts *opt, vb_rail **out, const char **step);
/* -EBUSY while endpoints or regions are open. */
int vb_rail_close(vb_rail *rail);

/* ---- endpoints ---- */

typedef struct vb_addr {
    uint32_t qpn, psn;
    uint16_t lid;
    uint8_t ethernet;
    uint8_t reads; /* READs that may be under way towards it */
    uint16_t mtu;  /* bytes */
    uint8_t gid[16];
} vb_addr;

/* gid_index is RoCE's, which may change while the rail lives; gid is its value. */
int vb_ep_open(vb_rail *rail, int gid_index, const uint8_t gid[16], vb_qp **out, vb_addr *addr, const char **step);
int vb_ep_connect(vb_rail *rail, vb_qp *qp, const vb_addr *peer, const char **step);
/* The peer's access ends; what was posted is in the completions that poll hands out, as ECANCELED where it did not end. */
int vb_ep_close(vb_rail *rail, vb_qp *qp);
/* The first half of it, for a queue pair that something else still uses: nothing of it completes any more, nobody gets
 * through it. */
void vb_ep_leave(vb_rail *rail, vb_qp *qp);

/* ---- regions ---- */

/* on_demand: pages are looked for when they are used. Memory of a GPU, which has no such pages, is taken by nvidia_peermem, if that is loaded;
 * else it is -EFAULT. */
int vb_mr_open(vb_rail *rail, uint64_t addr, uint64_t len, int on_demand, struct ibv_mr **out);
int vb_mr_close(vb_rail *rail, struct ibv_mr *mr);
/* len bytes from offset of a dmabuf, which requests call iova: both lie alike in their pages, else -EINVAL. -EOPNOTSUPP where
 * rail->dmabuf is 0. */
int vb_mr_open_dmabuf(vb_rail *rail, int fd, uint64_t offset, uint64_t len, uint64_t iova, struct ibv_mr **out);
/* mr.c: what the device can do with memory; what vb_rail_open asks. */
int vb_can_dmabuf(const vb_rail *rail);
int vb_can_odp(struct ibv_context *ctx);

/* ---- between the files ---- */

static inline uint32_t vb_at_most(int device, uint32_t want)
{
    return device > 0 && (uint32_t)device < want ? (uint32_t)device : want;
}

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

int vb_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc);
void vb_own_unreg(gr_rail *base, void *mr);

extern const gr_rail_ops vb_ops;
/* gather.c: room for n requests of the endpoint, unused: rail->chain.wr[rail->chain.tail] and on. 0, or -EAGAIN. */
int vb_gather(vb_qp *qp, uint32_t n);
void vb_flush(gr_rail *base);
/* The endpoint's requests that the device has not got end with err. */
void vb_unpost(vb_qp *qp, int err);
/* poll.c: an operation is posted, whose completion is to cause an event where one may be waited for. */
void vb_expect(vb_rail *rail);
/* poll.c: hands out a completion. */
void vb_tell(vb_rail *rail, gr_ctx *ctx, int err, int vendor_err, uint64_t len);
struct ibv_send_wr vb_proof(const vb_qp *qp, struct ibv_sge *sge, int op, uint32_t n, const gr_seg *seg); /* proof.c */
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
/* post.c: a WRITE of nothing, signalled, behind unsignalled ones. */
void vb_close_tail(vb_qp *qp);

/* The last requests are unsignalled, and nothing is behind them that would tell of their end. */
static inline int vb_tail(const vb_qp *qp)
{
    return qp->unsignalled && !qp->signalled;
}

static inline uint64_t vb_id(const vb_qp *qp, uint32_t seq, int recv)
{
    uint64_t gen = qp->rail->slot[qp->number].generation & 0x7fff;
    return gen << 49 | (uint64_t)(qp->number & 0xffff) << 33 | (uint64_t)seq << 1 | (uint64_t)recv;
}

#endif
