/* The native provider for InfiniBand and RoCE: reliable connections over libibverbs, which is loaded, never linked.
 *
 * loader.c (the library), scan.c (ports there are), rail.c (an opened port), qp.c (endpoints: one queue pair each), post.c
 * (posting), poll.c (completions), mr.c. What data passes is inline in libibverbs' own header: it calls the device driver's
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
    int gid_index; /* of RoCE; -1: no global route (InfiniBand within a subnet) */
    uint8_t sl, tc, timeout, retry_cnt, rnr_retry, max_reads;
    uint16_t pkey_index;
    int mtu; /* bytes, 0: the port's */
} vb_opts;

enum {
    VB_CHAIN = GR_MAX_IOV, /* work requests of one post */
    VB_SEND_DEPTH = 1024,  /* work requests of an endpoint */
    VB_RECV_DEPTH = 64,
};

typedef struct vb_sent { /* one operation in the send queue */
    gr_ctx *ctx;
    uint16_t wrs;
    uint8_t signalled;
    uint8_t broken; /* its chain was taken in part: it fails, whatever its requests say */
} vb_sent;

typedef struct vb_rail vb_rail;

/* The `ep` of the ops table: a queue pair. Rings are indexed by sequence number modulo their size, VB_SEND_DEPTH and
 * VB_RECV_DEPTH, powers of two. */
typedef struct vb_qp {
    vb_rail *rail;
    struct ibv_qp *qp;
    uint32_t number; /* in rail->slot; what work request ids name, with the generation */
    uint32_t psn;
    uint8_t connected;
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
    uint8_t port, ethernet;
    struct ibv_device_attr dev;
    struct ibv_port_attr attr;
    int armed;
    uint32_t cq_promised; /* completions that open endpoints may cause */
    vb_slot *slot;
    uint32_t slots;
    uint32_t tails; /* endpoints with unsignalled requests and nothing behind them that would tell of their end */
    gr_comp *ready; /* completions not handed out yet */
    uint32_t ready_head, ready_tail, ready_size;
    uint32_t owed; /* operations posted whose completion was not handed out, <= ready_size */
    int open_eps, open_mrs;
};

/* The next event of the device that is there: 1, 0 for none. *up is 1 for a port that came up, 0 for one or a device that went
 * away, -1 for others; text is static. */
int vb_event(vb_rail *rail, int *up, const char **text);
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

int vb_ep_open(vb_rail *rail, const uint8_t gid[16], vb_qp **out, vb_addr *addr, const char **step);
int vb_ep_connect(vb_rail *rail, vb_qp *qp, const vb_addr *peer, const char **step);
/* The peer's access ends; what was posted is in the completions that poll hands out, as ECANCELED where it did not end. */
int vb_ep_close(vb_rail *rail, vb_qp *qp);

/* ---- regions ---- */

int vb_mr_open(vb_rail *rail, uint64_t addr, uint64_t len, struct ibv_mr **out);
int vb_mr_close(vb_rail *rail, struct ibv_mr *mr);

/* ---- between the files ---- */

static inline uint32_t vb_at_most(int device, uint32_t want)
{
    return device > 0 && (uint32_t)device < want ? (uint32_t)device : want;
}

/* The descriptor of local memory is its struct ibv_mr: a key as a pointer would not be one to Go. Requests without bytes
 * have none. */
static inline uint32_t vb_lkey(const void *desc)
{
    return desc ? ((const struct ibv_mr *)desc)->lkey : 0;
}

int vb_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc);
void vb_own_unreg(gr_rail *base, void *mr);

extern const gr_rail_ops vb_ops;
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
