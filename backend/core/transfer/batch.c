/* Striping: the work queue of a transfer's operations, and the batches that links take from it. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int queue_has(xfer *x)
{
    pthread_mutex_lock(&x->queue.mu);
    int has = x->queue.returned || x->queue.next < x->pub.nops;
    pthread_mutex_unlock(&x->queue.mu);
    return has;
}

/* Number of operations of the next batch: all if no other link shares the transfer. */
static uint64_t batch_length(const xfer *x)
{
    const gr_op *op = x->pub.ops + x->queue.next;
    uint64_t left = x->pub.nops - x->queue.next, most = left < BATCH_OPS ? left : BATCH_OPS, n = 1;
    if (x->nsubs == 1 || x->bulk.rail)
        return left;
    for (uint64_t bytes = op->len; n < most && bytes + op[n].len <= x->core->cfg.batch_bytes; n++)
        bytes += op[n].len;
    return n;
}

static void batch_free(rail_st *rail, batch *r)
{
    r->next = rail->mem.free_batch;
    rail->mem.free_batch = r;
}

/* Frees the returned batches of a failed transfer: no link takes them any more. */
void queue_drop(xfer *x, rail_st *rail)
{
    for (batch *r; (r = x->queue.returned);) {
        x->queue.returned = r->next;
        batch_free(rail, r);
    }
}

/* The work queue is empty. Sub-transfers without posted operations, because their links have no room, give up their places
 * and need not wait for room. The caller's sub-transfer is active, so the transfer cannot end meanwhile. */
static void release_idle(subxfer *p)
{
    xfer *x = p->x;
    for (uint32_t i = 0; i < x->nsubs; i++) {
        subxfer *q = &x->subs[i];
        if (q == p || !atomic_load(&q->active) || !atomic_load(&q->idle) || atomic_exchange(&q->release_queued, 1))
            continue;
        atomic_fetch_add(&x->pub.subs_left, 1);
        rail_push(q->link->rail, &q->release);
        rail_wake(q->link->rail);
    }
}

/* Takes the next batch for the sub-transfer. NULL: none is left, the transfer has failed, or memory is short (*later is
 * then 1). */
batch *batch_take(subxfer *p, int *later)
{
    xfer *x = p->x;
    rail_st *rail = p->link->rail;
    batch *r = rail->mem.free_batch;
    if (atomic_load(&x->pub.err))
        return NULL;
    if (r)
        rail->mem.free_batch = r->next;
    else if (!(r = GR_ALLOC(core_batch, malloc(sizeof *r)))) {
        rail->starved = 1;
        *later = 1;
        return NULL;
    }
    batch *spare = r;
    pthread_mutex_lock(&x->queue.mu);
    if (x->queue.returned) {
        r = x->queue.returned;
        x->queue.returned = r->next;
    } else if (x->queue.next < x->pub.nops) {
        spare = NULL;
        memset(r, 0, sizeof *r);
        r->first = x->queue.next;
        r->count = batch_length(x);
        x->queue.next += r->count;
    } else {
        r = NULL;
    }
    int last = !x->queue.returned && x->queue.next >= x->pub.nops;
    pthread_mutex_unlock(&x->queue.mu);
    if (spare)
        batch_free(rail, spare);
    if (!r)
        return NULL;
    if (last)
        release_idle(p);
    r->sub = p;
    r->prev = NULL;
    r->next = p->batches;
    if (r->next)
        r->next->prev = r;
    p->batches = r;
    return r;
}

/* Whether the sub-transfer has no batch, or a single batch with nothing posted. */
int sub_unposted(const subxfer *p) { return !p->batches || (p->batches == p->cur && !p->cur->next && !p->cur->posted && !p->cur->off); }

static void batch_unlink(batch *r)
{
    subxfer *p = r->sub;
    if (r->prev)
        r->prev->next = r->next;
    else
        p->batches = r->next;
    if (r->next)
        r->next->prev = r->prev;
    if (p->cur == r)
        p->cur = NULL;
    atomic_store_explicit(&p->idle, sub_unposted(p), memory_order_relaxed);
}

/* Ends a batch: it has completed, or it was given up with nothing in flight. */
void batch_end(batch *r)
{
    rail_st *rail = r->sub->link->rail;
    batch_unlink(r);
    batch_free(rail, r);
}

/* Returns the batch to the work queue: any link may do it again from its first operation on. */
void batch_return(batch *r)
{
    xfer *x = r->sub->x;
    batch_unlink(r);
    r->posted = r->off = 0;
    r->inflight = r->wrs = 0;
    r->failed = r->at_fault = 0;
    pthread_mutex_lock(&x->queue.mu);
    r->next = x->queue.returned;
    x->queue.returned = r;
    pthread_mutex_unlock(&x->queue.mu);
}

/* Posts a WRITE of length 0, whose completion proves the unsignaled WRITEs before it. */
int batch_flush(batch *r)
{
    gr_link *link = r->sub->link;
    rail_st *rail = link->rail;
    ctx *c;
    if (link->state != LINK_UP || link->ep.ops >= rail->dev->limit.tx_depth || !(c = ctx_new(rail, link, CTX_RMA)))
        return -EAGAIN;
    c->batch = r;
    c->bytes = r->unflushed_bytes;
    int rc = rail->dev->ops->rma(rail->dev, link->ep.handle, GR_WRITE, 1, &r->unflushed_end, &c->base);
    if (rc != 0) {
        ctx_done(rail, c);
        link_refused(link, rc);
        return rc;
    }
    r->unflushed_bytes = 0;
    r->inflight++;
    r->wrs++;
    rail->rma_ops++;
    link_posted(link);
    link_count(link, GR_N_WRS, 1);
    return 0;
}
