/* A libibverbs for tests: reliable connections between queue pairs of one process, in memory. switches.h lists the switches, control.c
 * has the functions for tests.
 *
 * device.c (devices, ports, protection domains), mr.c, events.c (channels), cq.c, qp.c (states), post.c, exec.c (execution of
 * requests). One lock, vt_mu, protects everything. The caller of a vt_* function holds vt_mu unless the function's
 * comment says otherwise.
 */
#ifndef VT_H
#define VT_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "names.h"
#include "switches.h"

#undef ibv_query_port
#undef ibv_reg_mr

extern pthread_mutex_t vt_mu;
extern pthread_cond_t vt_acked; /* an event was acknowledged */

/* Pending events are in a list. fd is an eventfd: its count is the list's length. */
typedef struct vt_event {
    struct vt_event *next;
    void *of; /* queue pair or completion queue; NULL: an event of a port or of the device */
    struct ibv_async_event async;
} vt_event;

typedef struct vt_queue {
    int fd;
    vt_event *first;
} vt_queue;

typedef struct vt_ctx {
    struct vt_ctx *next;
    vt_queue events;
    int device;
    struct ibv_context context; /* the caller has a pointer to it */
} vt_ctx;

static inline vt_ctx *vt_ctx_of(const struct ibv_context *ctx) { return (vt_ctx *)(uintptr_t)((const char *)ctx - offsetof(vt_ctx, context)); }

typedef struct vt_pd {
    struct ibv_pd base;
    int users;
} vt_pd;

typedef struct vt_mr {
    struct ibv_mr base;
    unsigned access;
    uint64_t iova; /* address of the first byte in work requests */
    char *mem;     /* the first byte in this process */
    void *map;     /* dmabuf: the mapping that contains mem; else NULL */
    size_t map_len;
} vt_mr;

typedef struct vt_channel {
    struct ibv_comp_channel base;
    vt_queue events;
} vt_channel;

typedef struct vt_cqe {
    struct ibv_wc wc;
    uint64_t retires; /* the completion frees the send queue's slots below this request number */
    int sent;
} vt_cqe;

typedef struct vt_cq {
    struct ibv_cq base;
    vt_cqe *ring; /* base.cqe entries */
    uint32_t head, count;
    uint64_t polls;
    int armed, overrun, users;
    uint32_t taken; /* events returned by ibv_get_cq_event */
} vt_cq;

enum { VT_SGE = 4 };

typedef struct vt_wr {
    uint64_t id;
    enum ibv_wr_opcode op;
    int signaled, solicited, nsge;
    struct ibv_sge sge[VT_SGE];
    void *copy; /* inline data; else NULL */
    uint64_t len, raddr, due;
    uint32_t rkey;
} vt_wr;

typedef struct vt_qp {
    struct ibv_qp base;
    struct vt_qp *next;
    struct ibv_qp_cap cap;
    struct ibv_qp_attr attr; /* attributes set so far */
    union ibv_gid source;    /* what the entry of the GID table had at the transition to RTR; it stays */
    vt_wr *sq, *rq;
    uint64_t sq_retired, sq_done, sq_tail; /* request numbers; the slots of requests below sq_retired are free */
    uint64_t sq_reported;                  /* requests below have a completion, or a later completion covers them */
    uint64_t rq_done, rq_tail;
    int kicked, stalled, running, tries;
    uint32_t taken; /* async events returned by ibv_get_async_event */
} vt_qp;

/* control.c */
int vt_fails(int call); /* the errno with which this call must fail, or 0 */
void vt_breach(const char *what, ...) __attribute__((format(printf, 1, 2)));

/* events.c */
/* Called without the lock. Returns 0 and the next event with the lock held, or -1 and errno without the lock. */
int vt_next(vt_queue *q, vt_event *out);
int vt_queue_open(vt_queue *q);
void vt_queue_close(vt_queue *q);
void vt_raise(vt_queue *q, void *of, const struct ibv_async_event *async);
void vt_forget(vt_queue *q, const void *of); /* drops pending events of an object */
/* Waits until all returned events are acknowledged, as the real library does. After 2 s that is a breach, and the wait ends. */
void vt_wait_acks(const char *what, const uint32_t *taken, const uint32_t *acked);

/* device.c */
enum { VT_DEVICES = 4, VT_GIDS = 16 };
extern vt_ctx *vt_contexts;
/* The GID tables of all devices, each for all its ports; an empty entry is zero. Without an entry in any, GIDs mean nothing. */
extern union ibv_gid vt_gids[VT_DEVICES][VT_GIDS];
extern int vt_gid_tables; /* 1: a test has set an entry */
int vt_has_gid(const struct ibv_context *ctx, const union ibv_gid *gid);
int vt_lid(const struct ibv_context *ctx, int port);

/* mr.c */
/* The function of nvidia_peermem, see test/cuda/lib/direct.c. NULL: the module is not loaded. Protected by vt_mu. */
extern int (*vt_peermem)(uint64_t addr, uint64_t size);
/* The memory of a key. NULL: unknown key, another protection domain, out of bounds, or without all flags of access. */
void *vt_memory(const struct ibv_pd *pd, uint32_t key, int remote, uint64_t addr, uint64_t len, unsigned access);

/* cq.c */
/* solicited: the sender of the received message requested an event. A completion with an error causes one in any case. */
void vt_complete(vt_qp *qp, int sent, const struct ibv_wc *wc, uint64_t retires, int solicited);
void vt_remove(struct ibv_cq *cq, uint32_t qpn);
int vt_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc); /* called without the lock, like the other functions of struct ibv_context_ops */
int vt_req_notify_cq(struct ibv_cq *cq, int solicited);

/* qp.c */
extern vt_qp *vt_qps;
vt_qp *vt_find(uint32_t qpn);

/* post.c */
int vt_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vt_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* exec.c */
void vt_kick(vt_qp *qp);  /* new work: runs the queue pair now, or by the device thread with the switch async */
void vt_run(vt_qp *qp);   /* executes the requests that are due */
void vt_break(vt_qp *qp); /* moves to ERR, which flushes posted requests */
int vt_thread_start(void); /* starts the device thread at the first call; the thread never ends */

#endif
