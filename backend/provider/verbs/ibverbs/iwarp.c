/* Work requests on iWARP. An iWARP completion says that the local buffer is free, and nothing about the peer's memory.
 *
 * GR_WRITE and GR_WRITE_FLUSHED end with a READ of one byte that they wrote. The READ's answer is generated after all
 * earlier WRITEs of the connection are in place (RFC 5040, 5.5). Every request is signaled. On siw a WRITE without its
 * own completion may still read its source after a later SEND has completed. Completions come in any order.
 *
 * The side that requests the connection must send first (RFC 5044, 7.1.2). It sends an empty message, the hello. The
 * other side has posted a receive for the hello before all others. Nothing else is posted before the hello.
 *
 * C, because this runs per request and completion. Set-up and failure of a connection post under the rail's lock. Go
 * (verbs/connector.go) decides when. */
#include <errno.h>
#include <stdlib.h>

#include "verbs.h"

enum { HELLO_RECV = 1 };

static int room(const vb_qp *qp, uint32_t wrs)
{
    if (qp->failed)
        return -qp->failed;
    if (!qp->connected)
        return qp->connecting ? -EAGAIN : -ENOTCONN;
    if (qp->sq_used + wrs > qp->sq_size || qp->sent_tail - qp->sent_head >= VB_SEND_DEPTH)
        return -EAGAIN;
    return gr_ready_full(&qp->rail->ready) ? -EAGAIN : 0;
}

/* Maps the error of a driver that refuses a request. libsiw returns negative errnos. */
static int refusal(int rc) { return abs(rc) == ENOMEM ? -EAGAIN : rc == -1 ? -EIO : -abs(rc); }

/* ctx is NULL for the hello. */
static int post(vb_qp *qp, struct ibv_send_wr *wr, uint32_t n, gr_ctx *ctx)
{
    struct ibv_send_wr *bad = NULL;
    uint8_t broken = 0;
    int rc = ibv_post_send(qp->qp, wr, &bad);
    if (rc) {
        uint32_t taken = bad ? (uint32_t)(bad - wr) : 0;
        if (taken == 0)
            return refusal(rc);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        (void)qp->rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE);
        n = taken; /* the operation fails when the accepted requests have completed */
        broken = EIO;
    }
    qp->sent[qp->sent_tail++ % VB_SEND_DEPTH] = (vb_sent){ctx, (uint16_t)n, 1, broken};
    qp->sq_used += n;
    if (ctx)
        gr_ready_owe(&qp->rail->ready);
    return 0;
}

static int rma(gr_rail *base, void *opaque, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    struct ibv_send_wr wr[GR_MAX_IOV + 1];
    struct ibv_sge sge[GR_MAX_IOV + 1];
    if (n == 0 || n > base->limit.iov_limit)
        return -EINVAL;
    uint32_t asks = op == GR_WRITE || op == GR_WRITE_FLUSHED, all = n + asks;
    int rc = room(qp, all);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        int small = op != GR_READ && vb_inline(qp, seg[i].ldesc, seg[i].len);
        sge[i] = (struct ibv_sge){.addr = seg[i].laddr, .length = (uint32_t)seg[i].len, .lkey = vb_lkey(seg[i].ldesc)};
        wr[i] = (struct ibv_send_wr){
            .wr_id = vb_id(qp, qp->sent_tail, 0),
            .next = i + 1 < all ? &wr[i + 1] : NULL,
            .sg_list = &sge[i],
            .num_sge = op == GR_READ || seg[i].len != 0,
            .opcode = op == GR_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED | (small ? IBV_SEND_INLINE : 0),
            .wr.rdma = {.remote_addr = seg[i].raddr, .rkey = (uint32_t)seg[i].rkey},
        };
    }
    if (asks)
        wr[n] = vb_proof(qp, &sge[n], op, n, seg);
    return post(qp, wr, all, ctx);
}

static int send_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    (void)base;
    (void)wake; /* every message wakes the receiver */
    int rc = room(qp, 1);
    if (rc)
        return rc;
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)buf, .length = (uint32_t)len, .lkey = vb_lkey(desc)};
    struct ibv_send_wr wr = {.wr_id = vb_id(qp, qp->sent_tail, 0),
                             .sg_list = &sge,
                             .num_sge = len != 0,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED | (vb_inline(qp, desc, len) ? IBV_SEND_INLINE : 0)};
    return post(qp, &wr, 1, ctx);
}

static int post_recv(vb_qp *qp, void *buf, size_t len, const void *desc, gr_ctx *ctx)
{
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)buf, .length = (uint32_t)len, .lkey = vb_lkey(desc)};
    struct ibv_recv_wr wr = {.wr_id = vb_id(qp, qp->recv_tail, 1), .sg_list = &sge, .num_sge = 1}, *bad = NULL;
    int rc = ibv_post_recv(qp->qp, &wr, &bad);
    if (rc)
        return refusal(rc);
    qp->recv[qp->recv_tail++ % VB_RECV_DEPTH] = ctx;
    if (ctx)
        gr_ready_owe(&qp->rail->ready);
    return 0;
}

static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    (void)base;
    if (qp->recv_tail - qp->recv_head >= qp->rq_size - HELLO_RECV || gr_ready_full(&qp->rail->ready))
        return -EAGAIN;
    return post_recv(qp, buf, len, desc, ctx);
}

static void report(vb_rail *rail, gr_ctx *ctx, int err, int vendor_err, uint64_t len)
{
    if (ctx)
        vb_complete(rail, ctx, err, vendor_err, len);
}

static void send_completed(vb_qp *qp, uint32_t seq, const struct ibv_wc *wc)
{
    if ((int32_t)(seq - qp->sent_head) < 0 || (int32_t)(qp->sent_tail - seq) <= 0)
        return;
    vb_sent *s = &qp->sent[seq % VB_SEND_DEPTH];
    int err = vb_errno(wc->status);
    if (!s->wrs)
        return;
    qp->sq_used--;
    if (err && (!s->broken || s->broken == ECANCELED)) /* a flush error is a consequence, so another error replaces it */
        s->broken = (uint8_t)err;
    if (--s->wrs == 0) {
        report(qp->rail, s->ctx, s->broken, (int)wc->vendor_err, 0);
        s->ctx = NULL;
    }
    while (qp->sent_head != qp->sent_tail && !qp->sent[qp->sent_head % VB_SEND_DEPTH].wrs)
        qp->sent_head++;
}

void vb_iw_handle_wc(vb_qp *qp, const struct ibv_wc *wc, uint32_t seq)
{
    if (!(wc->wr_id & 1)) {
        send_completed(qp, seq, wc);
        return;
    }
    if (seq != qp->recv_head)
        return;
    int err = vb_errno(wc->status);
    gr_ctx *ctx = qp->recv[qp->recv_head++ % VB_RECV_DEPTH];
    if (!ctx && !err)
        qp->connected = 1;
    report(qp->rail, ctx, err, (int)wc->vendor_err, err ? 0 : wc->byte_len);
}

void vb_iw_cancel_posted(vb_qp *qp)
{
    for (; qp->sent_head != qp->sent_tail; qp->sent_head++) {
        vb_sent *s = &qp->sent[qp->sent_head % VB_SEND_DEPTH];
        if (s->wrs)
            report(qp->rail, s->ctx, ECANCELED, 0, 0);
    }
    for (; qp->recv_head != qp->recv_tail; qp->recv_head++)
        report(qp->rail, qp->recv[qp->recv_head % VB_RECV_DEPTH], ECANCELED, 0, 0);
}

int vb_iw_begin(vb_qp *qp, int asked)
{
    int rc = 0;
    gr_rail_lock(&qp->rail->base);
    if (asked)
        rc = qp->recv_tail == 0 ? post_recv(qp, qp->rail->sink, sizeof(qp->rail->sink), qp->rail->sink_mr, NULL) : -EBUSY;
    if (!rc)
        qp->connecting = 1;
    gr_rail_unlock(&qp->rail->base);
    return rc;
}

int vb_iw_up(vb_qp *qp)
{
    struct ibv_send_wr wr = {.wr_id = vb_id(qp, qp->sent_tail, 0), .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    gr_rail_lock(&qp->rail->base);
    int rc = post(qp, &wr, 1, NULL);
    if (!rc)
        qp->connected = 1; /* the completion of the hello wakes a waiting poster */
    gr_rail_unlock(&qp->rail->base);
    return rc;
}

int vb_iw_connected(vb_qp *qp)
{
    gr_rail_lock(&qp->rail->base);
    int is = qp->connected;
    gr_rail_unlock(&qp->rail->base);
    return is;
}

/* The posted requests are flushed. Their completions inform the core. */
void vb_iw_fail(vb_qp *qp, int err)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    gr_rail_lock(&qp->rail->base);
    if (!qp->failed)
        qp->failed = err;
    (void)qp->rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE);
    gr_rail_unlock(&qp->rail->base);
}

const gr_rail_ops vb_iw_ops = {
    .rma = rma,
    .send = send_msg,
    .recv = recv_msg,
    .poll = vb_poll,
    .arm = vb_arm,
    .reg = vb_own_reg,
    .unreg = vb_own_unreg,
};
