/* Execution of requests: in order, one at a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vt.h"

enum { UNREACHED = -1, NO_RECV = -2 }; /* else an enum ibv_wc_status */

static pthread_cond_t work = PTHREAD_COND_INITIALIZER;

static int same(const union ibv_gid *a, const union ibv_gid *b) { return !memcmp(a, b, sizeof(*a)); }

/* Whether packets pass between two queue pairs: both hosts have the addresses, and each end expects the other's. */
static int addressed(const vt_qp *qp, const vt_qp *p)
{
    return vt_has_gid(qp->base.context, &qp->source) && vt_has_gid(p->base.context, &p->source) && same(&qp->attr.ah_attr.grh.dgid, &p->source) &&
           same(&p->attr.ah_attr.grh.dgid, &qp->source);
}

/* The queue pair at the other end, or NULL if the attributes of both ends do not match. */
static vt_qp *peer_of(const vt_qp *qp)
{
    vt_qp *p = vt_find(qp->attr.dest_qp_num);
    if (p && SW(apart) && (vt_ctx_of(p->base.context)->device == vt_ctx_of(qp->base.context)->device) != (SW(apart) == 1))
        return NULL;
    if (!p || p == qp || (p->base.state != IBV_QPS_RTR && p->base.state != IBV_QPS_RTS) || p->attr.dest_qp_num != qp->base.qp_num ||
        p->attr.rq_psn != qp->attr.sq_psn || p->attr.path_mtu != qp->attr.path_mtu)
        return NULL;
    if (!SW(ethernet) && vt_lid(p->base.context, p->attr.port_num) != qp->attr.ah_attr.dlid)
        return NULL;
    if (vt_gid_tables && !addressed(qp, p))
        return NULL;
    return p;
}

/* Copies between the request's scatter/gather list and the buffer flat. len is at most the list's length. Returns 0 if a key is bad. */
static int copy(const vt_qp *qp, const vt_wr *w, char *flat, uint64_t len, int into)
{
    uint64_t at = 0;
    if (w->copy) {
        memcpy(flat, w->copy, len);
        return 1;
    }
    for (int i = 0; i < w->nsge && at < len; i++) {
        uint64_t n = w->sge[i].length < len - at ? w->sge[i].length : len - at;
        unsigned write = IBV_ACCESS_LOCAL_WRITE;
        char *p = vt_memory(qp->base.pd, w->sge[i].lkey, 0, w->sge[i].addr, n, into ? write : 0);
        if (!p)
            return 0;
        memmove(into ? p : flat + at, into ? flat + at : p, n);
        at += n;
    }
    return 1;
}

static void access_error(vt_qp *peer)
{
    struct ibv_async_event ev = {.element.qp = &peer->base, .event_type = IBV_EVENT_QP_ACCESS_ERR};
    vt_raise(&vt_ctx_of(peer->base.context)->events, peer, &ev);
    vt_break(peer);
}

static int rdma(vt_qp *qp, vt_qp *peer, const vt_wr *w)
{
    unsigned want = w->op == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if (w->op == IBV_WR_RDMA_READ && (!qp->attr.max_rd_atomic || qp->attr.max_rd_atomic > peer->attr.max_dest_rd_atomic))
        return IBV_WC_REM_INV_REQ_ERR;
    if (!w->len)
        return IBV_WC_SUCCESS;
    char *far = vt_memory(peer->base.pd, w->rkey, 1, w->raddr, w->len, want);
    if (!far || (peer->attr.qp_access_flags & want) != want) {
        access_error(peer);
        return IBV_WC_REM_ACCESS_ERR;
    }
    return copy(qp, w, far, w->len, w->op == IBV_WR_RDMA_READ) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}

static int send_to(vt_qp *qp, vt_qp *peer, const vt_wr *w)
{
    if (peer->rq_done == peer->rq_tail)
        return NO_RECV;
    vt_wr *r = &peer->rq[peer->rq_done % peer->cap.max_recv_wr];
    struct ibv_wc wc = {.wr_id = r->id, .opcode = IBV_WC_RECV, .byte_len = (uint32_t)w->len};
    char *data = malloc(w->len + 1);
    int status = IBV_WC_SUCCESS;
    if (!data)
        abort();
    if (!copy(qp, w, data, w->len, 0)) {
        free(data);
        return IBV_WC_LOC_PROT_ERR;
    }
    if (w->len > r->len) {
        wc.status = IBV_WC_LOC_LEN_ERR;
        status = IBV_WC_REM_INV_REQ_ERR;
    } else if (!copy(peer, r, data, w->len, 1)) {
        wc.status = IBV_WC_LOC_PROT_ERR;
        status = IBV_WC_REM_OP_ERR;
    }
    free(data);
    peer->rq_done++;
    vt_complete(peer, 0, &wc, 0, w->solicited);
    if (status != IBV_WC_SUCCESS)
        vt_break(peer);
    return status;
}

static int execute(vt_qp *qp, const vt_wr *w)
{
    vt_qp *peer = peer_of(qp);
    if (!peer)
        return UNREACHED;
    if (native_hit(&SW(break_wr)))
        return IBV_WC_REM_OP_ERR;
    return w->op == IBV_WR_SEND ? send_to(qp, peer, w) : rdma(qp, peer, w);
}

static int due(const vt_qp *qp)
{
    return qp->sq_done != qp->sq_tail && ((vt_cq *)qp->base.send_cq)->polls >= qp->sq[qp->sq_done % qp->cap.max_send_wr].due;
}

static void finish(vt_qp *qp, vt_wr *w, int status)
{
    struct ibv_wc wc = {.wr_id = w->id,
                        .status = (enum ibv_wc_status)status,
                        .byte_len = (uint32_t)w->len,
                        .opcode = w->op == IBV_WR_SEND        ? IBV_WC_SEND
                                  : w->op == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ
                                                              : IBV_WC_RDMA_WRITE};
    int report = w->signaled || status != IBV_WC_SUCCESS;
    free(w->copy);
    w->copy = NULL;
    if (SW(oldest) && status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR)
        for (; qp->sq_reported != qp->sq_done; wc.status = IBV_WC_WR_FLUSH_ERR) {
            wc.wr_id = qp->sq[qp->sq_reported % qp->cap.max_send_wr].id;
            qp->sq_reported++;
            if (SW(oldest) == 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
                vt_complete(qp, 1, &wc, qp->sq_reported, 0);
            report = SW(oldest) == 1;
        }
    wc.wr_id = w->id;
    qp->sq_done++;
    qp->tries = 0;
    if (!report)
        return;
    qp->sq_reported = qp->sq_done;
    vt_complete(qp, 1, &wc, qp->sq_done, 0);
}

static void flush(vt_qp *qp)
{
    while (SW(delay) ? due(qp) : qp->sq_done != qp->sq_tail)
        finish(qp, &qp->sq[qp->sq_done % qp->cap.max_send_wr], IBV_WC_WR_FLUSH_ERR);
    for (; qp->rq_done != qp->rq_tail; qp->rq_done++) {
        struct ibv_wc wc = {.wr_id = qp->rq[qp->rq_done % qp->cap.max_recv_wr].id, .status = IBV_WC_WR_FLUSH_ERR};
        vt_complete(qp, 0, &wc, 0, 0);
    }
}

/* Whether to retry. rnr_retry 7 means without end. */
static int again(const vt_qp *qp, int status)
{
    return status == NO_RECV ? qp->attr.rnr_retry == 7 || qp->tries < qp->attr.rnr_retry : qp->tries < qp->attr.retry_cnt;
}

void vt_run(vt_qp *qp)
{
    if (qp->running) /* a nested call: the outer call continues with the new requests */
        return;
    qp->running = 1;
    qp->stalled = 0;
    while (qp->base.state == IBV_QPS_RTS && due(qp)) {
        vt_wr *w = &qp->sq[qp->sq_done % qp->cap.max_send_wr];
        int status = execute(qp, w);
        if (status < 0 && again(qp, status)) {
            qp->stalled = 1;
            qp->running = 0;
            pthread_cond_signal(&work);
            return;
        }
        if (status < 0)
            status = status == NO_RECV ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
        finish(qp, w, status);
        if (status != IBV_WC_SUCCESS)
            qp->base.state = IBV_QPS_ERR;
    }
    qp->running = 0;
    if (qp->base.state == IBV_QPS_ERR)
        flush(qp);
}

void vt_kick(vt_qp *qp)
{
    if (!SW(async)) {
        vt_run(qp);
        return;
    }
    qp->kicked = 1;
    pthread_cond_signal(&work);
}

void vt_break(vt_qp *qp)
{
    qp->base.state = IBV_QPS_ERR;
    vt_kick(qp);
}

/* Runs kicked queue pairs until none is left, because a run may kick another queue pair. Returns whether one waits for a retry. */
static int run_kicked(void)
{
    int stalled = 0, ran = 1;
    while (ran) {
        ran = stalled = 0;
        for (vt_qp *qp = vt_qps; qp; qp = qp->next) {
            if (qp->kicked) {
                qp->kicked = 0;
                vt_run(qp);
                ran = 1;
            }
            stalled |= qp->stalled;
        }
    }
    return stalled;
}

/* The device thread. Runs kicked queue pairs at once, and queue pairs that wait for a retry every millisecond. */
static void *device(void *unused)
{
    pthread_mutex_lock(&vt_mu);
    for (;;) {
        if (!run_kicked()) {
            pthread_cond_wait(&work, &vt_mu);
            continue;
        }
        pthread_mutex_unlock(&vt_mu);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&vt_mu);
        for (vt_qp *qp = vt_qps; qp; qp = qp->next)
            if (qp->stalled) {
                qp->tries++;
                vt_run(qp);
            }
    }
    return unused;
}

int vt_thread_start(void)
{
    static pthread_t thread;
    return thread ? 0 : pthread_create(&thread, NULL, device, NULL);
}
