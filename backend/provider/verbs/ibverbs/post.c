/* Work requests: the ops table. The core holds the rail's lock around every call here. C, because this runs per
 * request. */
#include <errno.h>

#include "verbs.h"

/* Fewer completions mean less work for device and poll. A chain that is too long delays the release of send queue
 * entries. */
enum { SIGNAL_EVERY = 32 };

/* Adds an operation of `wrs` work requests to the queue. */
static void record(vb_qp *qp, gr_ctx *ctx, uint32_t wrs, int signaled)
{
    int was = vb_tail(qp);
    qp->sent[qp->sent_tail++ % VB_SEND_DEPTH] = (vb_sent){ctx, (uint16_t)wrs, (uint8_t)signaled, 0};
    qp->sq_used += wrs;
    gr_ready_owe(&qp->rail->ready);
    vb_expect(qp);
    if (signaled) {
        qp->signaled++;
        qp->unsignaled = 0;
    } else {
        qp->unsignaled += wrs;
    }
    qp->rail->tails += (uint32_t)vb_tail(qp) - (uint32_t)was;
}

/* Turns the last n requests of the chain into one operation. The last request of the chain may be signaled. A WRITE
 * and the message behind it end together: only the message is signaled. */
static void add(vb_qp *qp, uint32_t n, int signaled, gr_ctx *ctx)
{
    vb_chain *c = &qp->rail->chain;
    struct ibv_send_wr *wr = &c->wr[c->tail];
    vb_sent *before = &qp->sent[(qp->sent_tail - 1) % VB_SEND_DEPTH];
    if (wr->opcode == IBV_WR_SEND && c->tail > c->head && wr[-1].opcode == IBV_WR_RDMA_WRITE && before->signaled) {
        wr[-1].send_flags &= ~(unsigned)IBV_SEND_SIGNALED;
        before->signaled = 0;
        qp->signaled--;
    }
    wr[n - 1].send_flags |= signaled ? IBV_SEND_SIGNALED : 0;
    c->tail += n;
    qp->rail->base.gathered = 1;
    record(qp, ctx, n, signaled);
}

/* One entry stays reserved for vb_close_tail. */
static int sq_room(vb_qp *qp, uint32_t wrs)
{
    if (!qp->connected)
        return -ENOTCONN;
    if (qp->sq_used + wrs + 1 > qp->sq_size || qp->sent_tail - qp->sent_head >= VB_SEND_DEPTH)
        return -EAGAIN;
    return gr_ready_full(&qp->rail->ready) ? -EAGAIN : vb_gather(qp, wrs);
}

/* Reads a byte that the last non-empty WRITE wrote. At the peer this READ pushes all earlier writes into memory, past
 * any bridge or cache. If all WRITEs are empty, only the answer matters: the READ has length 0, except for
 * GR_WRITE_FLUSHED, whose caller guarantees a readable address. */
static struct ibv_send_wr proof(const vb_qp *qp, struct ibv_sge *sge, int op, uint32_t n, const gr_seg *seg)
{
    const vb_rail *rail = qp->rail;
    const gr_seg *last = &seg[n - 1];
    for (uint32_t i = 0; i < n; i++)
        if (seg[i].len)
            last = &seg[i];
    *sge = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)rail->sink, .length = last->len || op == GR_WRITE_FLUSHED, .lkey = rail->sink_mr->lkey};
    return (struct ibv_send_wr){
        .wr_id = vb_id(qp, qp->sent_tail, 0),
        .sg_list = sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_READ,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = last->raddr, .rkey = (uint32_t)last->rkey},
    };
}

/* Posts a chain of IBV_WR_RDMA_WRITE or IBV_WR_RDMA_READ, one per segment. Only the last request is signaled. An
 * unsignaled WRITE is signaled only after SIGNAL_EVERY unsignaled requests. */
static int rma(gr_rail *base, void *opaque, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    vb_chain *c = &qp->rail->chain;
    if (n == 0 || n > base->limit.iov_limit)
        return -EINVAL;
    uint32_t all = n + (op == GR_WRITE_FLUSHED);
    int rc = sq_room(qp, all);
    if (rc)
        return rc;
    struct ibv_send_wr *wr = &c->wr[c->tail];
    struct ibv_sge *sge = &c->sge[c->tail];
    uint64_t id = vb_id(qp, qp->sent_tail, 0);
    for (uint32_t i = 0; i < n; i++) {
        int small = op != GR_READ && vb_inline(qp, seg[i].ldesc, seg[i].len);
        sge[i] = (struct ibv_sge){.addr = seg[i].laddr, .length = (uint32_t)seg[i].len, .lkey = vb_lkey(seg[i].ldesc)};
        wr[i] = (struct ibv_send_wr){
            .wr_id = id,
            .sg_list = &sge[i],
            .num_sge = seg[i].len != 0,
            .opcode = op == GR_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
            .send_flags = small ? IBV_SEND_INLINE : 0,
            .wr.rdma = {.remote_addr = seg[i].raddr, .rkey = (uint32_t)seg[i].rkey},
        };
    }
    if (all > n)
        wr[n] = proof(qp, &sge[n], op, n, seg);
    add(qp, all, op != GR_WRITE_UNSIGNALED || qp->unsignaled + n >= SIGNAL_EVERY, ctx);
    return 0;
}

static int send_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    (void)base;
    int rc = sq_room(qp, 1);
    if (rc)
        return rc;
    vb_chain *c = &qp->rail->chain;
    struct ibv_sge *sge = &c->sge[c->tail];
    *sge = (struct ibv_sge){.addr = (uint64_t)(uintptr_t)buf, .length = (uint32_t)len, .lkey = vb_lkey(desc)};
    c->wr[c->tail] = (struct ibv_send_wr){
        .wr_id = vb_id(qp, qp->sent_tail, 0),
        .sg_list = sge,
        .num_sge = len != 0,
        .opcode = IBV_WR_SEND,
        .send_flags = (vb_inline(qp, desc, len) ? IBV_SEND_INLINE : 0) | (wake ? IBV_SEND_SOLICITED : 0),
    };
    add(qp, 1, 1, ctx);
    return 0;
}

static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    vb_qp *qp = opaque;
    struct ibv_sge sge = {.addr = (uint64_t)(uintptr_t)buf, .length = (uint32_t)len, .lkey = vb_lkey(desc)};
    struct ibv_recv_wr wr = {.wr_id = vb_id(qp, qp->recv_tail, 1), .sg_list = &sge, .num_sge = 1}, *bad = NULL;
    (void)base;
    if (qp->recv_tail - qp->recv_head >= qp->rq_size || gr_ready_full(&qp->rail->ready))
        return -EAGAIN;
    int rc = ibv_post_recv(qp->qp, &wr, &bad);
    if (rc)
        return rc == ENOMEM ? -EAGAIN : rc > 0 ? -rc : -EIO;
    qp->recv[qp->recv_tail++ % VB_RECV_DEPTH] = ctx;
    gr_ready_owe(&qp->rail->ready);
    return 0;
}

/* An empty WRITE touches nothing at the peer, and its key is not checked. The request belongs to the operation before
 * it. */
void vb_close_tail(vb_qp *qp)
{
    if (qp->rail->base.gathered)
        vb_flush(&qp->rail->base);
    if (!vb_tail(qp) || qp->rail->base.gathered)
        return;
    struct ibv_send_wr *bad, wr = {
                                 .wr_id = vb_id(qp, qp->sent_tail - 1, 0),
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                             };
    if (ibv_post_send(qp->qp, &wr, &bad) != 0)
        return;
    vb_sent *last = &qp->sent[(qp->sent_tail - 1) % VB_SEND_DEPTH];
    last->wrs++;
    last->signaled = 1;
    qp->sq_used++;
    qp->signaled++;
    qp->unsignaled = 0;
    qp->rail->tails--;
}

const gr_rail_ops vb_ops = {
    .rma = rma,
    .send = send_msg,
    .recv = recv_msg,
    .poll = vb_poll,
    .arm = vb_arm,
    .reg = vb_own_reg,
    .unreg = vb_own_unreg,
    .flush = vb_flush,
};
