/* Posting: the ops table. The core holds the rail's lock round every call here. */
#include <errno.h>

#include "verbs.h"

/* The fewer completions, the less the device and poll have to do; a chain too long makes its requests wait for room. */
enum { SIGNAL_EVERY = 32 };

/* One operation more, of which `wrs` requests are in the queue. */
static void note(vb_qp *qp, gr_ctx *ctx, uint32_t wrs, int signalled)
{
    int was = vb_tail(qp);
    qp->sent[qp->sent_tail++ % VB_SEND_DEPTH] = (vb_sent){ ctx, (uint16_t)wrs, (uint8_t)signalled, 0 };
    qp->sq_used += wrs;
    qp->rail->owed++;
    if (signalled) {
        qp->signalled++;
        qp->unsignalled = 0;
    } else {
        qp->unsignalled += wrs;
    }
    qp->rail->tails += (uint32_t)vb_tail(qp) - (uint32_t)was;
}

/* Posts a chain that is one operation. When only its beginning was taken, the operation fails with the connection. */
static int post(vb_qp *qp, struct ibv_send_wr *wr, uint32_t n, int signalled, gr_ctx *ctx)
{
    struct ibv_send_wr *bad = NULL;
    wr[n - 1].send_flags |= signalled ? IBV_SEND_SIGNALED : 0;
    int rc = ibv_post_send(qp->qp, wr, &bad);
    if (rc == 0) {
        note(qp, ctx, n, signalled);
        return 0;
    }
    uint32_t taken = bad ? (uint32_t)(bad - wr) : 0;
    if (taken == 0)
        return rc == ENOMEM ? -EAGAIN : rc > 0 ? -rc : -EIO;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    (void)qp->rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE);
    /* What the device has executed by now is not reported, nor told of by a flush: vb_close_tail's request is. */
    note(qp, ctx, taken, 0);
    qp->sent[(qp->sent_tail - 1) % VB_SEND_DEPTH].broken = 1;
    return 0;
}

/* One request is kept for vb_close_tail. */
static int room(const vb_qp *qp, uint32_t wrs)
{
    if (!qp->connected)
        return -ENOTCONN;
    if (qp->sq_used + wrs + 1 > qp->sq_size || qp->sent_tail - qp->sent_head >= VB_SEND_DEPTH)
        return -EAGAIN;
    return qp->rail->owed >= qp->rail->ready_size ? -EAGAIN : 0;
}

/* A chain of IBV_WR_RDMA_WRITE or IBV_WR_RDMA_READ, one a segment, of which the last tells of all. Weak ones say nothing
 * unless they are many. */
static int rma(gr_rail *base, void *opaque, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    struct ibv_send_wr wr[VB_CHAIN];
    struct ibv_sge sge[VB_CHAIN];
    if (n == 0 || n > base->iov_limit)
        return -EINVAL;
    int rc = room(qp, n);
    if (rc)
        return rc;
    uint64_t id = vb_id(qp, qp->sent_tail, 0);
    for (uint32_t i = 0; i < n; i++) {
        int small = op != GR_READ && seg[i].len <= qp->inline_max;
        sge[i] = (struct ibv_sge){ .addr = seg[i].laddr, .length = (uint32_t)seg[i].len, .lkey = vb_lkey(seg[i].ldesc) };
        wr[i] = (struct ibv_send_wr){
            .wr_id = id, .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &sge[i], .num_sge = seg[i].len != 0,
            .opcode = op == GR_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, .send_flags = small ? IBV_SEND_INLINE : 0,
            .wr.rdma = { .remote_addr = seg[i].raddr, .rkey = (uint32_t)seg[i].rkey },
        };
    }
    return post(qp, wr, n, op != GR_WRITE_WEAK || qp->unsignalled + n >= SIGNAL_EVERY, ctx);
}

static int send_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    (void)base;
    int rc = room(qp, 1);
    if (rc)
        return rc;
    struct ibv_sge sge = { .addr = (uint64_t)(uintptr_t)buf, .length = (uint32_t)len, .lkey = vb_lkey(desc) };
    struct ibv_send_wr wr = {
        .wr_id = vb_id(qp, qp->sent_tail, 0), .sg_list = &sge, .num_sge = len != 0, .opcode = IBV_WR_SEND,
        .send_flags = len <= qp->inline_max ? IBV_SEND_INLINE : 0,
    };
    return post(qp, &wr, 1, 1, ctx);
}

static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    struct ibv_sge sge = { .addr = (uint64_t)(uintptr_t)buf, .length = (uint32_t)len, .lkey = vb_lkey(desc) };
    struct ibv_recv_wr wr = { .wr_id = vb_id(qp, qp->recv_tail, 1), .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
    (void)base;
    if (qp->recv_tail - qp->recv_head >= qp->rq_size || qp->rail->owed >= qp->rail->ready_size)
        return -EAGAIN;
    int rc = ibv_post_recv(qp->qp, &wr, &bad);
    if (rc)
        return rc == ENOMEM ? -EAGAIN : rc > 0 ? -rc : -EIO;
    qp->recv[qp->recv_tail++ % VB_RECV_DEPTH] = ctx;
    qp->rail->owed++;
    return 0;
}

/* A WRITE of nothing reads and touches nothing at the peer; no key is looked at. It belongs to the operation before it. */
void vb_close_tail(vb_qp *qp)
{
    struct ibv_send_wr *bad, wr = {
        .wr_id = vb_id(qp, qp->sent_tail - 1, 0), .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
    };
    if (!vb_tail(qp) || ibv_post_send(qp->qp, &wr, &bad) != 0)
        return;
    vb_sent *last = &qp->sent[(qp->sent_tail - 1) % VB_SEND_DEPTH];
    last->wrs++;
    last->signalled = 1;
    qp->sq_used++;
    qp->signalled++;
    qp->unsignalled = 0;
    qp->rail->tails--;
}

const gr_rail_ops vb_ops = {
    .rma = rma, .send = send_msg, .recv = recv_msg, .poll = vb_poll, .arm = vb_arm, .reg = vb_own_reg, .unreg = vb_own_unreg,
};
