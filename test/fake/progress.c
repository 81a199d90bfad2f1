/* Executes posted operations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

/* Takes op off the list. Its initiator gets a completion, if it still waits for one. */
void fake_finish(fake_fabric *fabric, fake_op *op, int err)
{
    if (op->prev)
        op->prev->next = op->next;
    else
        fabric->head = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        fabric->tail = op->prev;
    if (op->ep && op->ctx) {
        op->ep->tx_out--;
        if (!err)
            op->ep->rail->count.bytes += op->len;
        fake_complete(op->ep->rail, op->ctx, err, 0);
    }
    free(op->copy);
    free(op->regions);
    free(op);
}

/* Copies the local buffers, so that the initiator may reuse them. */
int fake_snapshot(fake_op *op)
{
    uint64_t at = 0;
    if (op->copy)
        return 0;
    op->copy = malloc(op->len ? op->len : 1);
    if (!op->copy)
        return -ENOMEM;
    for (uint32_t i = 0; i < op->n; i++) {
        memcpy(op->copy + at, (void *)(uintptr_t)op->seg[i].laddr, op->seg[i].len);
        at += op->seg[i].len;
    }
    return 0;
}

/* Returns the remote address of a segment; NULL if key, access or bounds are wrong. */
static unsigned char *remote(const fake_ep *target, const gr_seg *seg, int kind)
{
    const fake_mr *mr = fake_mr_for(target, seg->rkey, kind);
    if (!mr)
        return NULL;
    if (target->rail->config.virt_addr && seg->raddr < mr->addr)
        return NULL;
    uint64_t offset = target->rail->config.virt_addr ? seg->raddr - mr->addr : seg->raddr;
    if (offset > mr->len || seg->len > mr->len - offset)
        return NULL;
    return (unsigned char *)(uintptr_t)(mr->addr + offset);
}

/* Returns 0 or an errno. Nothing is copied unless all segments are valid. */
static int copy_rma(fake_op *op, const fake_ep *target)
{
    const unsigned char *from = op->copy;
    for (uint32_t i = 0; i < op->n; i++)
        if (!remote(target, &op->seg[i], op->kind))
            return EACCES;
    for (uint32_t i = 0; i < op->n; i++) {
        unsigned char *there = remote(target, &op->seg[i], op->kind), *here = (unsigned char *)(uintptr_t)op->seg[i].laddr;
        if (op->kind == GR_READ)
            memmove(here, there, op->seg[i].len);
        else
            memmove(there, from ? from : here, op->seg[i].len);
        if (from)
            from += op->seg[i].len;
    }
    return 0;
}

/* Returns -1 if the receiver has posted no buffer. */
static int deliver(fake_op *op, fake_ep *target)
{
    fake_recv *r = target->rx_head;
    if (!r)
        return -1;
    target->rx_head = r->next;
    if (!r->next)
        target->rx_tail = NULL;
    target->rx_out--;
    uint64_t n = op->len < r->len ? op->len : r->len;
    memcpy(r->buf, (void *)(uintptr_t)op->seg[0].laddr, n);
    fake_complete(target->rail, r->ctx, n < op->len ? EMSGSIZE : 0, n);
    free(r);
    return 0;
}

static void cancel(fake_op *list, const fake_ep *ep)
{
    for (fake_op *o = list; o; o = o->next)
        if (o->ep == ep) {
            o->err = ECANCELED;
            o->wait = 0;
        }
}

/* Cancels later operations of the same endpoint at the next poll. Operations that wait for flush are later ones: the
 * target may poll before they are flushed. */
static void cancel_behind(const fake_op *op)
{
    if (!op->ep)
        return;
    cancel(op->next, op->ep);
    cancel(op->ep->rail->waiting, op->ep);
}

static void break_endpoint(const fake_op *op)
{
    if (!op->ep)
        return;
    op->ep->broken = 1;
    cancel_behind(op);
}

/* An ordered endpoint executes nothing behind a lost operation. */
void fake_lost(const fake_op *op)
{
    if (op->ep && op->ep->rail->config.ordered)
        break_endpoint(op);
}

/* Executes one operation. 1: finished and freed; 0: waits for a later poll or a random number; -1: waits for another
 * rail. */
static int step(fake_rail *poller, fake_op *op, fake_ep *target)
{
    fake_fabric *fabric = poller->fabric;
    fake_rail *from = op->ep ? op->ep->rail : NULL;
    int err = op->err;

    if ((from && from->stalled) || (target && target->rail->stalled))
        return -1;
    if (op->wait) {
        op->wait--;
        return 0;
    }
    int down = from && from->down_errno ? from->down_errno : target ? target->rail->down_errno : 0;
    if (!err && down) {
        err = down;
        fake_lost(op);
    }
    if (!err && !target)
        err = ECANCELED;
    if (!err && from && from->config.secured) {
        int proved = fake_ep_proved(op->ep, target);
        if (!proved)
            return -1;
        if (proved < 0) {
            err = EPERM;
            break_endpoint(op);
        }
    }
    if (op->breaks)
        break_endpoint(op);
    if (!err && op->ep && op->ep->blocked == fabric->pass && from->config.ordered && !from->script.seed)
        return -1;
    if (!err && op->ep && op->ep->held == fabric->pass)
        return -1;
    if (!err && from && from->script.seed && fake_random(&from->rng) & 1)
        return 0;
    if (op->kind == FAKE_SEND && (!err || (op->lands && err == op->err && target)) && deliver(op, target) < 0)
        return -1;
    if (!err && op->kind != FAKE_SEND) {
        err = op->bulk ? fake_copy_bulk(op, target, op->bulk_ops) : copy_rma(op, target);
        if (err && from && op->unsignaled)
            op->ep->broken = 1;
        if (err && from && (from->script.bad_key_cancels || op->unsignaled))
            cancel_behind(op);
    }
    if (op->half && target)
        (void)fake_copy_bulk(op, target, op->half);
    fake_finish(fabric, op, err);
    return 1;
}

int fake_progress(fake_rail *rail)
{
    fake_fabric *fabric = rail->fabric;
    uint32_t done = 0;
    int more = 0;

    fabric->pass++;
    for (fake_op *op = fabric->head, *next; op; op = next) {
        fake_ep *target = fake_ep_find(fabric, op->target), *ep = op->ep;
        next = op->next;
        if (!(ep && ep->rail == rail) && !(target && target->rail == rail))
            continue;
        /* Unsignaled, or without delivery-complete: the initiator's completion comes as soon as its buffers are free. */
        if (ep && op->ctx && op->kind == GR_WRITE && !op->bulk && !op->err && (op->unsignaled || !ep->rail->config.delivery) && !ep->rail->stalled &&
            fake_snapshot(op) == 0) {
            ep->tx_out--;
            ep->rail->count.bytes += op->len;
            fake_complete(ep->rail, op->ctx, 0, 0);
            op->ctx = NULL;
        }
        if (rail->script.per_poll && done >= rail->script.per_poll) {
            more = 1;
            break;
        }
        int unsignaled = op->unsignaled, state = step(rail, op, target);
        done += state > 0;
        more |= state == 0;
        if (state <= 0 && ep)
            ep->blocked = fabric->pass;
        if (state <= 0 && ep && unsignaled)
            ep->held = fabric->pass;
    }
    return more;
}
