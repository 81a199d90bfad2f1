/* Completions. Of a failed completion only status, wr_id and qp_num are valid, so the wr_id encodes everything. C,
 * because this runs per completion and poll. */
#include <errno.h>

#include "verbs.h"

enum { TAKE = 32 };

static int errno_of(enum ibv_wc_status s)
{
    switch (s) {
    case IBV_WC_SUCCESS: return 0;
    case IBV_WC_WR_FLUSH_ERR: return ECANCELED;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return ETIMEDOUT;
    case IBV_WC_RNR_RETRY_EXC_ERR: return ENOBUFS;
    case IBV_WC_REM_ACCESS_ERR: return EACCES;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return EFAULT;
    case IBV_WC_LOC_LEN_ERR: return EMSGSIZE;
    case IBV_WC_REM_INV_REQ_ERR: return EREMOTEIO;
    default: return EIO;
    }
}

void vb_expect(vb_qp *qp)
{
    vb_cq *q = qp->cq;
    if ((q->armed == VB_SOLICITED || q->armed == VB_MAYBE) && ibv_req_notify_cq(q->cq, 0) == 0)
        q->armed = VB_ANY;
}

void vb_complete(vb_rail *rail, gr_ctx *ctx, int err, int vendor_err, uint64_t len)
{
    gr_ready_put(&rail->ready, (gr_comp){ctx, err, err ? vendor_err : 0, len});
}

/* Operations of a send queue complete in order. A completion of seq therefore completes all earlier operations with
 * success, until one fails. Some devices name another operation than the failed one (bnxt_re: the oldest). So once an
 * operation has failed, earlier operations end as ECANCELED, never as success. */
static void send_completed(vb_qp *qp, uint32_t seq, const struct ibv_wc *wc)
{
    int err = errno_of(wc->status), was = vb_tail(qp);
    if ((int32_t)(seq - qp->sent_head) < 0 || (int32_t)(qp->sent_tail - seq) <= 0)
        return; /* another request of a chain that has already failed */
    for (;; qp->sent_head++) {
        vb_sent *s = &qp->sent[qp->sent_head % VB_SEND_DEPTH];
        int last = qp->sent_head == seq;
        qp->sq_used -= s->wrs;
        qp->signaled -= s->signaled;
        vb_complete(qp->rail, s->ctx, s->broken ? EIO : last ? err : qp->send_failed ? ECANCELED : 0, (int)wc->vendor_err, 0);
        if (last)
            break;
    }
    qp->sent_head++;
    qp->send_failed |= err != 0;
    if (qp->sent_head == qp->sent_tail)
        qp->unsignaled = 0;
    qp->rail->tails += (uint32_t)vb_tail(qp) - (uint32_t)was;
}

static void handle_wc(vb_rail *rail, const struct ibv_wc *wc)
{
    uint32_t number = wc->wr_id >> 33 & 0xffff, generation = wc->wr_id >> 49 & 0x7fff, seq = (uint32_t)(wc->wr_id >> 1);
    if (number >= rail->slots || !rail->slot[number].qp || (rail->slot[number].generation & 0x7fff) != generation)
        return; /* the endpoint is gone */
    vb_qp *qp = rail->slot[number].qp;
    if (!(wc->wr_id & 1)) {
        send_completed(qp, seq, wc);
        return;
    }
    if (seq != qp->recv_head)
        return;
    int err = errno_of(wc->status);
    qp->recv_failed |= err != 0;
    vb_complete(rail, qp->recv[qp->recv_head++ % VB_RECV_DEPTH], err, (int)wc->vendor_err, err ? 0 : wc->byte_len);
}

void vb_cancel_posted(vb_qp *qp)
{
    qp->rail->tails -= (uint32_t)vb_tail(qp);
    for (; qp->sent_head != qp->sent_tail; qp->sent_head++)
        vb_complete(qp->rail, qp->sent[qp->sent_head % VB_SEND_DEPTH].ctx, ECANCELED, 0, 0);
    for (; qp->recv_head != qp->recv_tail; qp->recv_head++)
        vb_complete(qp->rail, qp->recv[qp->recv_head % VB_RECV_DEPTH], ECANCELED, 0, 0);
}

static int take(vb_rail *rail, vb_cq *q)
{
    struct ibv_wc wc[TAKE];
    int n = ibv_poll_cq(q->cq, TAKE, wc);
    for (int i = 0; i < n; i++)
        handle_wc(rail, &wc[i]);
    return n;
}

int vb_cq_take(vb_rail *rail, vb_cq *q) { return take(rail, q); }

/* Takes up to max completions from the queues in turn, rounded up to whole batches. The next call starts with the queue behind the last
 * one, so that none waits for another that is never empty. Returns their number, or the error of a queue: then the others are taken all
 * the same, and what they had is in rail->ready. */
static int drain(vb_rail *rail, int max)
{
    vb_cq *first = rail->turn, *q = first;
    int total = 0, err = 0;
    do {
        int n, got = 0;
        do {
            n = take(rail, q);
            if (n > 0) {
                got += n;
                if (q->armed != VB_NOT) /* their event may be lost, or none was due: arming again costs nothing */
                    q->armed = q->armed == VB_ANY ? VB_NOT : VB_MAYBE;
            }
        } while (n == TAKE && total + got < max);
        if (n < 0 && got == 0)
            err = n;
        total += got;
        q = q->next;
    } while (q != first && total < max);
    rail->turn = q;
    return err ? err : total;
}

int vb_poll(gr_rail *base, gr_comp *out, int max)
{
    vb_rail *rail = (vb_rail *)base;
    if (base->gathered) /* the device had no room for the gathered requests */
        vb_flush(base);
    if (gr_ready_empty(&rail->ready)) {
        int rc = drain(rail, max);
        if (rc < 0)
            return -EIO;
        for (uint32_t i = 0; rc == 0 && rail->tails && i < rail->slots; i++)
            if (rail->slot[i].qp)
                vb_close_tail(rail->slot[i].qp);
    }
    return gr_ready_take(&rail->ready, out, max);
}

/* While no operation is in flight, only solicited messages cause an event. A notification without the flag waits until
 * the application asks for it. */
static int wanted_events(const vb_rail *rail)
{
    for (uint32_t i = 0; i < rail->slots; i++)
        if (rail->slot[i].qp && rail->slot[i].qp->sent_head != rail->slot[i].qp->sent_tail)
            return VB_ANY;
    return VB_SOLICITED;
}

/* Implements ibv_req_notify_cq of each queue, then polls once for completions from before. Pending events are consumed when the next ones are
 * requested: each request causes one event, and a queue has few of them between two calls. */
int vb_arm(gr_rail *base)
{
    vb_rail *rail = (vb_rail *)base;
    struct ibv_cq *cq;
    void *of;
    if (rail->base.wait_fd < 0)
        return 0;
    uint32_t most = rail->cqs > 1 ? 8 * rail->cqs : 1; /* one queue: no call that finds nothing behind the event */
    for (uint32_t i = 0; i < most && rail->lib->get_cq_event(rail->channel, &cq, &of) == 0; i++) {
        rail->lib->ack_cq_events(cq, 1);
        ((vb_cq *)of)->armed = VB_NOT;
    }
    int want = wanted_events(rail);
    vb_cq *q = rail->cq;
    do {
        if (q->armed < want) {
            if (ibv_req_notify_cq(q->cq, want == VB_SOLICITED) != 0)
                return 1;
            q->armed = want;
        }
        q = q->next;
    } while (q != rail->cq);
    int n = drain(rail, 64);
    return n >= 64 || !gr_ready_empty(&rail->ready) || base->gathered;
}
