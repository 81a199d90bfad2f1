/* A libibverbs for tests: reliable connections between queue pairs of one process, in memory. switches.h says what can be
 * changed, control.c how.
 *
 * device.c (devices, ports, protection domains), mr.c, events.c (channels), cq.c, qp.c (states), post.c, exec.c (what a device
 * does with requests), cm.c (librdmacm). One lock, vt_mu, round everything; functions named vt_* want it held unless they say otherwise.
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

/* Events wait in a list; fd is an eventfd that counts them. */
typedef struct vt_event {
    struct vt_event *next;
    void *of; /* its queue pair or completion queue, NULL: a port's or the device's */
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
    struct verbs_context ex; /* what the caller has is ex.context */
} vt_ctx;

static inline vt_ctx *vt_ctx_of(const struct ibv_context *ctx)
{
    return (vt_ctx *)(uintptr_t)((const char *)ctx - offsetof(vt_ctx, ex.context));
}

typedef struct vt_pd {
    struct ibv_pd base;
    int users;
} vt_pd;

typedef struct vt_mr {
    struct ibv_mr base;
    unsigned access;
    uint64_t iova; /* what requests call the first byte */
    char *mem;     /* where it is */
    void *map;     /* of a dmabuf: the mapping around it, else NULL */
    size_t map_len;
} vt_mr;

typedef struct vt_channel {
    struct ibv_comp_channel base;
    vt_queue events;
} vt_channel;

typedef struct vt_cqe {
    struct ibv_wc wc;
    uint64_t retires; /* requests of the send queue, up to this one */
    int sent;
} vt_cqe;

typedef struct vt_cq {
    struct ibv_cq base;
    vt_cqe *ring; /* base.cqe entries */
    uint32_t head, count;
    uint64_t polls;
    int armed, overrun, users;
    uint32_t told; /* events taken by ibv_get_cq_event */
} vt_cq;

enum { VT_SGE = 4 };

typedef struct vt_wr {
    uint64_t id;
    enum ibv_wr_opcode op;
    int signaled, solicited, nsge;
    struct ibv_sge sge[VT_SGE];
    void *copy; /* of inline data */
    uint64_t len, raddr, due;
    uint32_t rkey;
} vt_wr;

typedef struct vt_qp {
    struct ibv_qp base;
    struct vt_qp *next;
    struct ibv_qp_cap cap;
    struct ibv_qp_attr attr; /* as modified so far */
    vt_wr *sq, *rq;
    uint64_t sq_retired, sq_done, sq_tail; /* requests; the slots of those below retired are free */
    uint64_t sq_told;                      /* those below have a completion, or are proved by one */
    uint64_t rq_done, rq_tail;
    int kicked, stalled, running, tries;
    uint32_t told;
    struct vt_cm_id *cm; /* of its connection on iWARP */
    int asked, heard;    /* the peer wanted the connection; something came in */
    struct vt_late *late; /* iWARP: written and told of, not in place yet */
} vt_qp;

typedef struct vt_cm_id vt_cm_id;

/* control.c */
int vt_fails(int call); /* the errno with which this call shall fail, or 0 */
void vt_breach(const char *what, ...) __attribute__((format(printf, 1, 2)));

/* cm.c: the connection of a queue pair is gone */
void vt_cm_lost(vt_qp *qp);

/* events.c */
/* The next event, or -1 and errno. Takes the lock, and keeps it when there is one. */
int vt_next(vt_queue *q, vt_event *out);
int vt_queue_open(vt_queue *q);
void vt_queue_close(vt_queue *q);
void vt_raise(vt_queue *q, void *of, const struct ibv_async_event *async);
void vt_forget(vt_queue *q, const void *of);
/* Waits until all events taken are acknowledged, as the real one does. */
void vt_wait_acks(const char *what, const uint32_t *told, const uint32_t *acked);

/* device.c */
extern vt_ctx *vt_contexts;
int vt_lid(const struct ibv_context *ctx, int port);

/* mr.c */
/* What nvidia_peermem does where it is loaded: see test/cuda/lib/direct.c. NULL: it isn't. Under vt_mu. */
extern int (*vt_peermem)(uint64_t addr, uint64_t size);
/* The memory behind a key, or NULL: unknown, of another domain, out of bounds, or without all of `access`. */
void *vt_memory(const struct ibv_pd *pd, uint32_t key, int remote, uint64_t addr, uint64_t len, unsigned access);

/* cq.c */
/* solicited: the sender of what was received asked for an event. A failed completion causes one in any case. */
void vt_complete(vt_qp *qp, int sent, const struct ibv_wc *wc, uint64_t retires, int solicited);
void vt_remove(struct ibv_cq *cq, uint32_t qpn);
int vt_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc); /* without the lock, as the others of struct ibv_context_ops */
int vt_req_notify_cq(struct ibv_cq *cq, int solicited);

/* qp.c */
extern vt_qp *vt_qps;
vt_qp *vt_find(uint32_t qpn);

/* post.c */
int vt_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vt_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* exec.c */
void vt_kick(vt_qp *qp);  /* there is something to do; done at once unless it is the thread's */
void vt_run(vt_qp *qp);   /* executes what can be */
void vt_break(vt_qp *qp); /* to ERR; what is posted is flushed */
void vt_drop_late(vt_qp *qp);
int vt_thread_start(void); /* of the device; once, for good */

#endif
