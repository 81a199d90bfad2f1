/* rma and send gather work requests. One ibv_post_send posts them before the core releases the rail. Each
 * ibv_post_send rings the doorbell: a write over PCIe, or a system call on soft RoCE. C, because this runs per
 * request. */
#include <errno.h>

#include "verbs.h"

int vb_gather(vb_qp *qp, uint32_t n)
{
    vb_chain *c = &qp->rail->chain;
    if (qp->rail->base.gathered && (c->qp != qp || c->tail + n > VB_CHAIN))
        vb_flush(&qp->rail->base);
    if (!qp->rail->base.gathered) {
        c->qp = qp;
        c->head = c->tail = 0;
    }
    return c->qp != qp || c->tail + n > VB_CHAIN ? -EAGAIN : 0;
}

static void emptied(vb_rail *rail)
{
    rail->chain.head = rail->chain.tail = 0;
    rail->base.gathered = 0;
}

/* Counts the unsignaled requests at the end of the queue again. */
static void recount(vb_qp *qp)
{
    qp->unsignaled = 0;
    for (uint32_t i = qp->sent_tail; i != qp->sent_head && !qp->sent[(i - 1) % VB_SEND_DEPTH].signaled; i--)
        qp->unsignaled += qp->sent[(i - 1) % VB_SEND_DEPTH].wrs;
}

/* The gathered operations are the last in the queue. An operation that the device has in part fails with the
 * connection. The signaled request of vb_close_tail then reports its end. */
void vb_unpost(vb_qp *qp, int err)
{
    vb_rail *rail = qp->rail;
    vb_chain *c = &rail->chain;
    if (!rail->base.gathered || c->qp != qp)
        return;
    int was = vb_tail(qp);
    uint32_t left = c->tail - c->head;
    while (left) {
        vb_sent *s = &qp->sent[(qp->sent_tail - 1) % VB_SEND_DEPTH];
        uint32_t wrs = s->wrs < left ? s->wrs : left;
        left -= wrs;
        qp->sq_used -= wrs;
        qp->signaled -= s->signaled;
        s->signaled = 0;
        s->wrs = (uint16_t)(s->wrs - wrs);
        if (s->wrs) {
            s->broken = 1;
            break;
        }
        qp->sent_tail--;
        vb_complete(rail, s->ctx, err, 0, 0);
    }
    emptied(rail);
    recount(qp);
    rail->tails += (uint32_t)vb_tail(qp) - (uint32_t)was;
}

void vb_flush(gr_rail *base)
{
    vb_rail *rail = (vb_rail *)base;
    vb_chain *c = &rail->chain;
    struct ibv_send_wr *bad = NULL, *first = &c->wr[c->head];
    if (!base->gathered)
        return;
    for (uint32_t i = c->head; i < c->tail; i++)
        c->wr[i].next = i + 1 < c->tail ? &c->wr[i + 1] : NULL;
    int rc = ibv_post_send(c->qp->qp, first, &bad);
    if (rc == 0) {
        emptied(rail);
        return;
    }
    if (bad >= first && bad < &c->wr[c->tail])
        c->head = (uint32_t)(bad - c->wr);
    if (rc == ENOMEM)
        return; /* the send queue is full: the next poll or the next post tries again */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    (void)rail->lib->modify_qp(c->qp->qp, &attr, IBV_QP_STATE);
    vb_unpost(c->qp, rc > 0 ? rc : EIO);
}
