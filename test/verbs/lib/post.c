/* Posting of requests. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vt.h"

static int check(const vt_qp *qp, const struct ibv_send_wr *wr, uint64_t len)
{
    int in = wr->send_flags & IBV_SEND_INLINE;
    if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_READ && wr->opcode != IBV_WR_SEND)
        return EINVAL;
    if (wr->num_sge < 0 || wr->num_sge > (int)qp->cap.max_send_sge || len > 1U << 31)
        return EINVAL;
    if (in && (wr->opcode == IBV_WR_RDMA_READ || len > qp->cap.max_inline_data))
        return EINVAL;
    return qp->sq_tail - qp->sq_retired >= qp->cap.max_send_wr ? ENOMEM : 0;
}

static int take(vt_qp *qp, const struct ibv_send_wr *wr)
{
    uint64_t len = 0, at = 0;
    for (int i = 0; i < wr->num_sge && i < VT_SGE; i++)
        len += wr->sg_list[i].length;
    int rc = check(qp, wr, len);
    if (rc)
        return rc;
    vt_wr *w = &qp->sq[qp->sq_tail % qp->cap.max_send_wr];
    *w = (vt_wr){.id = wr->wr_id,
                 .op = wr->opcode,
                 .signaled = !!(wr->send_flags & IBV_SEND_SIGNALED),
                 .solicited = !!(wr->send_flags & IBV_SEND_SOLICITED),
                 .nsge = wr->num_sge,
                 .len = len,
                 .raddr = wr->wr.rdma.remote_addr,
                 .rkey = wr->wr.rdma.rkey,
                 .due = ((vt_cq *)qp->base.send_cq)->polls + (uint64_t)SW(delay)};
    for (int i = 0; i < wr->num_sge; i++)
        w->sge[i] = wr->sg_list[i];
    if (wr->send_flags & IBV_SEND_INLINE) {
        COUNT(inlined)++;
        for (int i = 0; i < wr->num_sge; i++)
            if (!vt_memory(qp->base.pd, wr->sg_list[i].lkey, 0, wr->sg_list[i].addr, wr->sg_list[i].length, 0))
                vt_breach("inline data of %u bytes is not registered: a provider that ignores IBV_SEND_INLINE could not read it",
                          wr->sg_list[i].length);
    }
    if ((wr->send_flags & IBV_SEND_INLINE) && !SW(ignore_inline)) {
        if (!(w->copy = malloc(len + 1)))
            return ENOMEM;
        for (int i = 0; i < wr->num_sge; at += wr->sg_list[i++].length)
            memcpy((char *)w->copy + at, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
    }
    qp->sq_tail++;
    COUNT(writes) += w->op == IBV_WR_RDMA_WRITE;
    COUNT(empty_writes) += w->op == IBV_WR_RDMA_WRITE && len == 0;
    COUNT(reads) += w->op == IBV_WR_RDMA_READ;
    COUNT(sends) += w->op == IBV_WR_SEND;
    COUNT(signaled) += w->signaled;
    return 0;
}

int vt_post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    vt_qp *qp = (vt_qp *)base;
    long taken = 0;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_post_send);
    if (!rc && base->state != IBV_QPS_RTS && base->state != IBV_QPS_ERR) {
        vt_breach("ibv_post_send in state %d", base->state);
        rc = EINVAL;
    }
    for (; !rc && wr; wr = rc ? wr : wr->next) {
        rc = native_hit(&SW(partial)) ? (int)SW(partial_err) : take(qp, wr);
        taken += !rc;
    }
    if (taken) {
        COUNT(chains)++;
        if (taken > COUNT(longest))
            COUNT(longest) = taken;
        vt_kick(qp);
    }
    if (rc) {
        *bad = wr;
        COUNT(refused)++;
    }
    pthread_mutex_unlock(&vt_mu);
    return rc;
}

static int take_recv(vt_qp *qp, const struct ibv_recv_wr *wr)
{
    if (wr->num_sge < 0 || wr->num_sge > (int)qp->cap.max_recv_sge)
        return EINVAL;
    if (qp->rq_tail - qp->rq_done >= qp->cap.max_recv_wr)
        return ENOMEM;
    vt_wr *w = &qp->rq[qp->rq_tail++ % qp->cap.max_recv_wr];
    *w = (vt_wr){.id = wr->wr_id, .nsge = wr->num_sge};
    for (int i = 0; i < wr->num_sge; i++) {
        w->sge[i] = wr->sg_list[i];
        w->len += wr->sg_list[i].length;
    }
    COUNT(recvs)++;
    return 0;
}

int vt_post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    vt_qp *qp = (vt_qp *)base;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_post_recv);
    if (!rc && base->state == IBV_QPS_RESET) {
        vt_breach("ibv_post_recv in state RESET");
        rc = EINVAL;
    }
    for (; !rc && wr; wr = rc ? wr : wr->next)
        rc = take_recv(qp, wr);
    if (rc)
        *bad = wr;
    if (base->state == IBV_QPS_ERR)
        vt_kick(qp);
    vt_qp *peer = vt_find(qp->attr.dest_qp_num); /* the peer may wait for a receive */
    if (peer && peer->stalled)
        vt_kick(peer);
    pthread_mutex_unlock(&vt_mu);
    return rc;
}
