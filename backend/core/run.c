/* The pool of a transfer's operations, and the runs that links take from it. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int pool_has(xfer *x)
{
    pthread_mutex_lock(&x->queue.mu);
    int has = x->queue.back || x->queue.next < x->pub.nops;
    pthread_mutex_unlock(&x->queue.mu);
    return has;
}

/* How many operations a run has: all when nobody shares the transfer. */
static uint64_t run_length(const xfer *x)
{
    const gr_op *op = x->pub.ops + x->queue.next;
    uint64_t left = x->pub.nops - x->queue.next, most = left < RUN_OPS ? left : RUN_OPS, n = 1;
    if (x->nparts == 1 || x->bulk.rail)
        return left;
    for (uint64_t bytes = op->len; n < most && bytes + op[n].len <= x->core->cfg.run_bytes; n++)
        bytes += op[n].len;
    return n;
}

static void run_free(rail_st *rail, run *r)
{
    r->next = rail->mem.free_run;
    rail->mem.free_run = r;
}

/* Of a transfer that failed: nobody takes what was given back any more. */
void pool_drop(xfer *x, rail_st *rail)
{
    for (run *r; (r = x->queue.back);) {
        x->queue.back = r->next;
        run_free(rail, r);
    }
}

/* The pool is empty: parts that have posted nothing, because their links have no room, need not wait for any. Whoever
 * calls is in itself, so that the transfer can't end meanwhile. */
static void nudge_others(part *p)
{
    xfer *x = p->x;
    for (uint32_t i = 0; i < x->nparts; i++) {
        part *q = &x->parts[i];
        if (q == p || !atomic_load(&q->in) || !atomic_load(&q->idle) || atomic_exchange(&q->nudged, 1))
            continue;
        atomic_fetch_add(&x->pub.parts_left, 1);
        rail_push(q->link->rail, &q->nudge);
        core_wake(q->link->rail->core);
    }
}

/* The next run for the part, or NULL: there is none, or the transfer has failed, or, with later set, memory is short. */
run *run_take(part *p, int *later)
{
    xfer *x = p->x;
    rail_st *rail = p->link->rail;
    run *r = rail->mem.free_run;
    if (atomic_load(&x->pub.err))
        return NULL;
    if (r)
        rail->mem.free_run = r->next;
    else if (!(r = malloc(sizeof *r))) {
        rail->starved = 1;
        *later = 1;
        return NULL;
    }
    run *spare = r;
    pthread_mutex_lock(&x->queue.mu);
    if (x->queue.back) {
        r = x->queue.back;
        x->queue.back = r->next;
    } else if (x->queue.next < x->pub.nops) {
        spare = NULL;
        memset(r, 0, sizeof *r);
        r->first = x->queue.next;
        r->count = run_length(x);
        x->queue.next += r->count;
    } else {
        r = NULL;
    }
    int last = !x->queue.back && x->queue.next >= x->pub.nops;
    pthread_mutex_unlock(&x->queue.mu);
    if (spare)
        run_free(rail, spare);
    if (!r)
        return NULL;
    if (last)
        nudge_others(p);
    r->part = p;
    r->prev = NULL;
    r->next = p->runs;
    if (r->next)
        r->next->prev = r;
    p->runs = r;
    return r;
}

/* The part has no run, or one that it could not post yet. */
int part_unposted(const part *p)
{
    return !p->runs || (p->runs == p->cur && !p->cur->next && !p->cur->posted && !p->cur->off);
}

static void run_unlink(run *r)
{
    part *p = r->part;
    if (r->prev)
        r->prev->next = r->next;
    else
        p->runs = r->next;
    if (r->next)
        r->next->prev = r->prev;
    if (p->cur == r)
        p->cur = NULL;
    atomic_store_explicit(&p->idle, part_unposted(p), memory_order_relaxed);
}

/* The run is proved, or given up with nothing of it in flight. */
void run_end(run *r)
{
    rail_st *rail = r->part->link->rail;
    run_unlink(r);
    run_free(rail, r);
}

/* Somebody else is to do it again, from its first operation on. */
void run_back(run *r)
{
    xfer *x = r->part->x;
    run_unlink(r);
    r->posted = r->off = 0;
    r->inflight = r->wrs = 0;
    r->failed = r->blamed = 0;
    pthread_mutex_lock(&x->queue.mu);
    r->next = x->queue.back;
    x->queue.back = r;
    pthread_mutex_unlock(&x->queue.mu);
}

/* A WRITE of nothing whose completion proves the weak ones before it. */
int run_proof(run *r)
{
    gr_link *link = r->part->link;
    rail_st *rail = link->rail;
    ctx *c;
    if (link->state != LINK_UP || link->ep.ops >= rail->dev->tx_depth || !(c = rail_ctx(rail, link, CTX_RMA)))
        return -EAGAIN;
    c->run = r;
    c->bytes = r->weak_bytes;
    int rc = rail->dev->ops->rma(rail->dev, link->ep.handle, GR_WRITE, 1, &r->weak_end, &c->base);
    if (rc != 0) {
        rail_ctx_done(rail, c);
        link_refused(link, rc);
        return rc;
    }
    r->weak_bytes = 0;
    r->inflight++;
    r->wrs++;
    rail->rma_ops++; /* whatever the limit: it is what ends others */
    link->ep.ops++;
    link_count(link, GR_N_WRS, 1);
    return 0;
}
