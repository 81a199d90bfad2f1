/* Completion queues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vt.h"

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int n, void *cq_ctx, struct ibv_comp_channel *ch, int vector)
{
    vt_cq *cq = calloc(1, sizeof(*cq));
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_create_cq);
    if (!rc && (n < 1 || n > SW(max_cqe) || vector != 0))
        rc = EINVAL;
    if (!rc && COUNT(cqs) >= SW(max_cq))
        rc = ENOMEM;
    if (!rc && !(cq->ring = calloc((size_t)n, sizeof(*cq->ring))))
        rc = ENOMEM;
    if (!rc) {
        cq->base.context = ctx;
        cq->base.channel = ch;
        cq->base.cq_context = cq_ctx;
        cq->base.cqe = n;
        if (ch)
            ch->refcnt++;
        COUNT(cqs)++;
    }
    pthread_mutex_unlock(&vt_mu);
    if (rc) {
        free(cq);
        errno = rc;
        return NULL;
    }
    return &cq->base;
}

int ibv_resize_cq(struct ibv_cq *base, int n)
{
    vt_cq *cq = (vt_cq *)base;
    vt_cqe *ring = NULL;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_resize_cq);
    if (!rc && (n < (int)cq->count || n < 1 || n > SW(max_cqe)))
        rc = EINVAL;
    int does = !rc && SW(resize);
    if (does && !(ring = calloc((size_t)n, sizeof(*ring))))
        rc = ENOMEM;
    if (does && !rc) {
        cq->armed = 0;
        for (uint32_t i = 0; i < cq->count; i++)
            ring[i] = cq->ring[(cq->head + i) % (uint32_t)base->cqe];
        free(cq->ring);
        cq->ring = ring;
        cq->head = 0;
        base->cqe = n;
    }
    pthread_mutex_unlock(&vt_mu);
    return rc;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
    vt_cq *cq = (vt_cq *)base;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_destroy_cq);
    if (!rc && cq->users)
        rc = EBUSY;
    if (!rc) {
        if (base->channel) {
            vt_forget(&((vt_channel *)base->channel)->events, cq);
            base->channel->refcnt--;
        }
        vt_forget(&vt_ctx_of(base->context)->events, cq);
        vt_wait_acks("ibv_destroy_cq", &cq->taken, &base->comp_events_completed);
        COUNT(cqs)--;
    }
    pthread_mutex_unlock(&vt_mu);
    if (!rc) {
        free(cq->ring);
        free(cq);
    }
    return rc;
}

enum { ANY = 1, SOLICITED }; /* vt_cq.armed: which completions cause an event */

static void overrun(vt_cq *cq)
{
    struct ibv_async_event ev = {.element.cq = &cq->base, .event_type = IBV_EVENT_CQ_ERR};
    if (!cq->overrun)
        vt_raise(&vt_ctx_of(cq->base.context)->events, cq, &ev);
    cq->overrun = 1;
    vt_breach("a completion queue of %d is overrun", cq->base.cqe);
    for (vt_qp *qp = vt_qps; qp; qp = qp->next)
        if (qp->base.send_cq == &cq->base || qp->base.recv_cq == &cq->base)
            qp->base.state = IBV_QPS_ERR;
}

void vt_complete(vt_qp *qp, int sent, const struct ibv_wc *wc, uint64_t retires, int solicited)
{
    vt_cq *cq = (vt_cq *)(sent ? qp->base.send_cq : qp->base.recv_cq);
    if (wc->status != IBV_WC_SUCCESS && native_hit(&SW(lose_cqe))) {
        COUNT(lost)++;
        return;
    }
    if (cq->overrun || cq->count == (uint32_t)cq->base.cqe) {
        overrun(cq);
        return;
    }
    vt_cqe *e = &cq->ring[(cq->head + cq->count++) % (uint32_t)cq->base.cqe];
    *e = (vt_cqe){.wc = *wc, .retires = retires, .sent = sent};
    e->wc.qp_num = qp->base.qp_num;
    if (wc->status != IBV_WC_SUCCESS) { /* the other fields are invalid */
        e->wc.opcode = (enum ibv_wc_opcode)0x55;
        e->wc.byte_len = 0xdeadbeef;
        e->wc.vendor_err = 0x89;
    }
    COUNT(cqes)++;
    COUNT(flushed) += wc->status == IBV_WC_WR_FLUSH_ERR;
    if (!cq->armed || !cq->base.channel)
        return;
    if (cq->armed == SOLICITED && !solicited && wc->status == IBV_WC_SUCCESS)
        return;
    cq->armed = 0;
    if (SW(mute) || native_hit(&SW(lose_event))) {
        COUNT(lost)++;
        return;
    }
    COUNT(events)++;
    vt_raise(&((vt_channel *)cq->base.channel)->events, cq, NULL);
}

void vt_remove(struct ibv_cq *base, uint32_t qpn)
{
    vt_cq *cq = (vt_cq *)base;
    uint32_t n = cq->count, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        vt_cqe *e = &cq->ring[(cq->head + i) % (uint32_t)base->cqe];
        if (e->wc.qp_num != qpn)
            cq->ring[(cq->head + kept++) % (uint32_t)base->cqe] = *e;
    }
    COUNT(removed) += n - kept;
    cq->count = kept;
}

int vt_poll_cq(struct ibv_cq *base, int n, struct ibv_wc *wc)
{
    vt_cq *cq = (vt_cq *)base;
    int got = 0;
    pthread_mutex_lock(&vt_mu);
    COUNT(polls)++;
    cq->polls++;
    if (vt_fails(CALL_poll_cq)) {
        pthread_mutex_unlock(&vt_mu);
        return -1;
    }
    for (vt_qp *qp = vt_qps; SW(delay) && qp; qp = qp->next)
        if (qp->base.send_cq == base && qp->sq_done != qp->sq_tail)
            vt_kick(qp);
    for (; got < n && cq->count; got++) {
        vt_cqe *e = &cq->ring[cq->head];
        vt_qp *qp = vt_find(e->wc.qp_num);
        if (qp && e->sent && e->retires > qp->sq_retired)
            qp->sq_retired = e->retires;
        wc[got] = e->wc;
        cq->head = (cq->head + 1) % (uint32_t)base->cqe;
        cq->count--;
    }
    pthread_mutex_unlock(&vt_mu);
    return got;
}

/* As in the specification, a completion that is already in the queue causes no event. */
int vt_req_notify_cq(struct ibv_cq *base, int solicited)
{
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_req_notify_cq);
    if (!rc) {
        COUNT(arms)++;
        if (!solicited || !((vt_cq *)base)->armed) /* an earlier request for every completion stays */
            ((vt_cq *)base)->armed = solicited ? SOLICITED : ANY;
    }
    pthread_mutex_unlock(&vt_mu);
    return rc;
}
