/* Queue pairs and their states. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vt.h"

vt_qp *vt_qps;
static uint32_t next_qpn = 0x11;

vt_qp *vt_find(uint32_t qpn)
{
    vt_qp *qp = vt_qps;
    while (qp && qp->base.qp_num != qpn)
        qp = qp->next;
    return qp;
}

static void free_queues(vt_qp *qp)
{
    for (uint64_t i = qp->sq_done; i != qp->sq_tail; i++)
        free(qp->sq[i % qp->cap.max_send_wr].copy);
    free(qp->sq);
    free(qp->rq);
    free(qp);
}

static int check_caps(const struct ibv_qp_cap *c)
{
    return c->max_send_wr < 1 || c->max_send_wr > SW(max_qp_wr) || c->max_recv_wr < 1 || c->max_recv_wr > SW(max_qp_wr) || c->max_send_sge > VT_SGE ||
           c->max_recv_sge > VT_SGE || c->max_inline_data > SW(max_inline);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    vt_qp *qp = calloc(1, sizeof(*qp));
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_create_qp);
    if (!rc && init->qp_type != IBV_QPT_RC)
        rc = EOPNOTSUPP;
    if (!rc && (init->sq_sig_all || init->srq || check_caps(&init->cap)))
        rc = EINVAL;
    if (!rc && (!(qp->sq = calloc(init->cap.max_send_wr, sizeof(*qp->sq))) || !(qp->rq = calloc(init->cap.max_recv_wr, sizeof(*qp->rq)))))
        rc = ENOMEM;
    if (!rc) {
        long reported = SW(report_inline);
        qp->cap = init->cap;
        if (reported >= 0) {
            init->cap.max_inline_data = (uint32_t)reported;
            if (reported <= SW(max_inline)) /* else the reported value is garbage */
                qp->cap.max_inline_data = (uint32_t)reported;
        }
        qp->base = (struct ibv_qp){.context = pd->context,
                                   .pd = pd,
                                   .send_cq = init->send_cq,
                                   .recv_cq = init->recv_cq,
                                   .qp_num = next_qpn++,
                                   .state = IBV_QPS_RESET,
                                   .qp_type = init->qp_type};
        qp->next = vt_qps;
        vt_qps = qp;
        ((vt_pd *)pd)->users++;
        ((vt_cq *)init->send_cq)->users++;
        ((vt_cq *)init->recv_cq)->users++;
        COUNT(qps)++;
    }
    pthread_mutex_unlock(&vt_mu);
    if (rc) {
        free_queues(qp);
        errno = rc;
        return NULL;
    }
    return &qp->base;
}

enum {
    TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
    TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static int zero(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const char *)p)[i])
            return 0;
    return 1;
}

static int to_init(vt_qp *qp, const struct ibv_qp_attr *a, int mask)
{
    if (qp->base.state != IBV_QPS_RESET || mask != TO_INIT || a->port_num < 1 || a->port_num > SW(ports) || a->pkey_index > 0)
        return EINVAL;
    qp->attr.port_num = a->port_num;
    qp->attr.qp_access_flags = a->qp_access_flags;
    return 0;
}

static int to_rtr(vt_qp *qp, const struct ibv_qp_attr *a, int mask)
{
    const struct ibv_ah_attr *ah = &a->ah_attr;
    if (qp->base.state != IBV_QPS_INIT || mask != TO_RTR || a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096 || a->dest_qp_num >> 24 ||
        a->rq_psn >> 24 || a->max_dest_rd_atomic > SW(rd_atomic) || a->min_rnr_timer > 31)
        return EINVAL;
    if (ah->port_num != qp->attr.port_num || (SW(ethernet) && !ah->is_global) || (!SW(ethernet) && !ah->dlid))
        return EINVAL;
    if (ah->is_global && (ah->grh.sgid_index >= SW(gids) || SW(gid_holes) >> ah->grh.sgid_index & 1 || !ah->grh.hop_limit ||
                          zero(&ah->grh.dgid, sizeof(ah->grh.dgid))))
        return EINVAL;
    if (ah->is_global && vt_gid_tables) {
        qp->source = vt_gids[vt_ctx_of(qp->base.context)->device][ah->grh.sgid_index % VT_GIDS];
        if (zero(&qp->source, sizeof(qp->source)))
            return EINVAL;
    }
    qp->attr.ah_attr = *ah;
    qp->attr.path_mtu = a->path_mtu;
    qp->attr.dest_qp_num = a->dest_qp_num;
    qp->attr.rq_psn = a->rq_psn;
    qp->attr.max_dest_rd_atomic = a->max_dest_rd_atomic;
    return 0;
}

static int to_rts(vt_qp *qp, const struct ibv_qp_attr *a, int mask)
{
    if (qp->base.state != IBV_QPS_RTR || mask != TO_RTS || a->timeout > 31 || a->retry_cnt > 7 || a->rnr_retry > 7 || a->sq_psn >> 24 ||
        a->max_rd_atomic > SW(rd_atomic))
        return EINVAL;
    qp->attr.retry_cnt = a->retry_cnt;
    qp->attr.rnr_retry = a->rnr_retry;
    qp->attr.sq_psn = a->sq_psn;
    qp->attr.max_rd_atomic = a->max_rd_atomic;
    return 0;
}

static int modify(vt_qp *qp, const struct ibv_qp_attr *a, int mask)
{
    int rc;
    if (!(mask & IBV_QP_STATE))
        return EINVAL;
    switch (a->qp_state) {
    case IBV_QPS_INIT:
        rc = vt_fails(CALL_modify_init);
        rc = rc ? rc : to_init(qp, a, mask);
        break;
    case IBV_QPS_RTR:
        rc = vt_fails(CALL_modify_rtr);
        rc = rc ? rc : to_rtr(qp, a, mask);
        break;
    case IBV_QPS_RTS:
        rc = vt_fails(CALL_modify_rts);
        rc = rc ? rc : to_rts(qp, a, mask);
        break;
    case IBV_QPS_ERR:
        rc = vt_fails(CALL_modify_err);
        if (!rc)
            vt_break(qp);
        return rc;
    default: return EOPNOTSUPP;
    }
    if (!rc)
        qp->base.state = a->qp_state;
    return rc;
}

/* Waits until the bits of a switch are 0 again, without vt_mu. */
static void vt_hold(const int64_t *sw, int64_t bits)
{
    COUNT(held)++;
    while (*sw & bits) {
        pthread_mutex_unlock(&vt_mu);
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        pthread_mutex_lock(&vt_mu);
    }
    COUNT(held)--;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    pthread_mutex_lock(&vt_mu);
    if (attr->qp_state == IBV_QPS_RTR)
        vt_hold(&SW(hold_rtr), 1 << vt_ctx_of(qp->context)->device);
    int rc = modify((vt_qp *)qp, attr, mask);
    pthread_mutex_unlock(&vt_mu);
    return rc;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    vt_qp *qp = (vt_qp *)base, **at = &vt_qps;
    pthread_mutex_lock(&vt_mu);
    vt_hold(&SW(hold_destroy), 1);
    int rc = vt_fails(CALL_destroy_qp);
    if (!rc) {
        vt_forget(&vt_ctx_of(base->context)->events, qp);
        vt_wait_acks("ibv_destroy_qp", &qp->taken, &base->events_completed);
        while (*at != qp)
            at = &(*at)->next;
        *at = qp->next;
        if (SW(remove)) {
            vt_remove(base->send_cq, base->qp_num);
            vt_remove(base->recv_cq, base->qp_num);
        }
        ((vt_pd *)base->pd)->users--;
        ((vt_cq *)base->send_cq)->users--;
        ((vt_cq *)base->recv_cq)->users--;
        COUNT(qps)--;
    }
    pthread_mutex_unlock(&vt_mu);
    if (!rc)
        free_queues(qp);
    return rc;
}
