/* Work requests: building, posting, completion; and what a link posts in turn. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One work request: its segments, and the batch's position when it is posted. */
typedef struct request {
    gr_seg seg[GR_MAX_IOV];
    int n;
    uint64_t bytes, ops, off;
} request;

/* Fills a work request with the next operations of the batch that fit. Of an operation above `most` bytes it takes a piece.
 * 0, or a negative errno when a region is gone. */
static int wr_build(gr_link *link, const batch *r, uint64_t most, request *q)
{
    gr_core *core = link->rail->core;
    gr_rail *dev = link->rail->dev;
    const gr_op *op = r->sub->x->pub.ops + r->first + r->posted;
    uint64_t left = r->count - r->posted;
    *q = (request){.off = r->off};
    for (; q->n < (int)dev->limit.iov_limit && q->ops < left; op++) {
        uint64_t len = op->len - q->off;
        if (q->n && (q->bytes + len > COMBINE || q->bytes + len > dev->limit.max_msg))
            break;
        gr_region *lr = gr_region_at(core, op->lregion), *rr = gr_region_at(core, op->rregion);
        gr_rail_key *lk = &lr->rail[link->rail->index], *rk = &rr->rail[link->peer_rail];
        if (!atomic_load(&lr->live) || !atomic_load(&rr->live) || !lk->ok || !rk->ok)
            return -ESTALE;
        uint64_t take = len < most ? len : most;
        q->seg[q->n++] = (gr_seg){op->local + q->off, op->remote + q->off - rr->addr + rk->base, take, lk->desc, rk->key};
        q->bytes += take;
        if (take < len) {
            q->off += take;
            break;
        }
        q->ops++;
        q->off = 0;
    }
    return 0;
}

/* Whether the WRITE may be unsignaled. An acknowledgement costs both sides a system call and a wake-up. 10,000 x 8 KiB over
 * tcp: 2.2 GB/s with one acknowledgement for each of the 2,500 work requests, 2.6 GB/s with one for 512 KiB. */
static int may_be_unsignaled(const gr_link *link, const batch *r, const request *q)
{
    uint64_t most = link->win.size / 4 < CHAIN ? link->win.size / 4 : CHAIN;
    return link->rail->dev->is.chained && r->sub->x->op == GR_WRITE && r->posted + q->ops < r->count && r->unflushed_bytes + q->bytes < most;
}

static int link_no_post(gr_link *link, batch *r, int rc)
{
    if (rc == -EAGAIN) {
        link_refused(link, rc);
        if (r->posted == 0 && r->off == 0 && r->sub->x->nsubs > 1) { /* a slow link must not hold the batch back: other links may take it */
            subxfer *p = r->sub;
            xfer_not_exclusive(p, 0);
            batch_return(r);
            (void)sub_activate_others(p);
        }
    } else {
        r->failed = 1;
        r->at_fault = link->state == LINK_UP;
        note_wire_err(&r->sub->x->pub, -rc);
        link_refused(link, rc);
    }
    return NO_ROOM;
}

/* Chooses the operation for a signaled work request. If the notification goes out over another link than the data, its
 * arrival says nothing about the data. Each link's WRITEs are then flushed. */
static int write_kind(subxfer *p, const batch *r, const request *q)
{
    xfer *x = p->x;
    if (x->op == GR_WRITE && x->prove && q->bytes + r->unflushed_bytes)
        return GR_WRITE_FLUSHED;
    return x->op == GR_WRITE && x->has_notif && q->bytes + r->unflushed_bytes && !xfer_exclusive(p) ? GR_WRITE_FLUSHED : x->op;
}

/* Posts one work request of the sub-transfer. */
int wr_post(gr_link *link, subxfer *p, uint64_t *bytes)
{
    rail_st *rail = link->rail;
    request q;
    if (link->ep.ops + TX_RESERVE >= rail->dev->limit.tx_depth)
        return NO_ROOM;
    int several = p->x->nsubs > 1;
    if (!p->cur && xfer_yields(p->x, link) && queue_has(p->x))
        return YIELDS;
    uint64_t most = link_most(link, p->x->pub.bytes, several);
    if (!p->cur && link->ep.ops && link->win.inflight >= most) {
        link->win.limited = 1;
        return NO_ROOM;
    }
    int later = 0;
    batch *r = p->cur ? p->cur : (p->cur = batch_take(p, &later));
    if (!r)
        return later ? NO_ROOM : NOTHING;
    int rc = wr_build(link, r, p->x->pub.bytes > SMALL && link_smalls(link) ? link_small_window(link, several) / 2 : UINT64_MAX, &q);
    if (rc < 0) {
        xfer_fail(p->x, GR_ERR_BACKEND, -rc);
        return REGION_GONE;
    }
    if (link->ep.ops && link->win.inflight && link->win.inflight + q.bytes > most) { /* a completion comes, and makes room */
        link->win.limited = 1;
        return NO_ROOM;
    }
    int unsignaled = may_be_unsignaled(link, r, &q);
    if (!unsignaled && !q.bytes && r->unflushed_bytes) { /* operations of length 0, which must still prove the WRITEs before them */
        q.seg[0] = r->unflushed_end;
        q.n = 1;
    }
    ctx *c = ctx_new(rail, link, CTX_RMA);
    if (!c)
        return NO_ROOM;
    c->batch = r;
    c->bytes = unsignaled ? 0 : r->unflushed_bytes + q.bytes;
    int op = unsignaled ? GR_WRITE_UNSIGNALED : p->x->has_notif || p->x->prove ? write_kind(p, r, &q) : p->x->op;
    rc = rail->dev->ops->rma(rail->dev, link->ep.handle, op, (uint32_t)q.n, q.seg, &c->base);
    if (rc != 0) {
        ctx_done(rail, c);
        return link_no_post(link, r, rc);
    }
    rail->rma_ops++;
    link_posted(link);
    link_inflight(link, q.bytes, 0);
    r->unflushed_bytes = unsignaled ? r->unflushed_bytes + q.bytes : 0;
    for (int i = 0; i < q.n; i++)
        if (q.seg[i].len)
            r->unflushed_end = q.seg[i];
    r->unflushed_end.len = 0;
    link_count(link, GR_N_WRS, 1);
    r->inflight++;
    r->wrs++;
    r->posted += q.ops;
    r->off = q.off;
    atomic_store_explicit(&p->idle, 0, memory_order_relaxed);
    if (r->posted == r->count)
        p->cur = NULL;
    *bytes = q.bytes;
    return POSTED;
}

/* Looks up the registrations and keys of the transfer's regions on this link. -ESTALE when a region is gone, -EREMCHG if the rail has it no more. */
static int bulk_lookup(const gr_link *link, xfer *x)
{
    for (uint32_t i = 0; i < x->bulk.nlocal + x->bulk.nremote; i++) {
        gr_bulk_region *b = &x->bulk.regions[i];
        gr_region *g = gr_region_at(x->core, b->index);
        gr_rail_key *k = &g->rail[i < x->bulk.nlocal ? link->rail->index : link->peer_rail];
        if (!atomic_load(&g->live))
            return -ESTALE;
        if (!k->ok) /* the memory was unmapped, or other memory is there that this rail does not take */
            return -EREMCHG;
        b->addr = g->addr;
        b->len = g->len;
        b->desc = k->desc;
        b->key = k->key;
        b->base = k->base;
    }
    return 0;
}

/* Posts the whole transfer as one bulk. */
int wr_post_bulk(gr_link *link, subxfer *p)
{
    rail_st *rail = link->rail;
    xfer *x = p->x;
    int later = 0;
    if (link->ep.ops + TX_RESERVE >= rail->dev->limit.tx_depth)
        return NO_ROOM;
    batch *r = p->cur ? p->cur : (p->cur = batch_take(p, &later));
    if (!r)
        return later ? NO_ROOM : NOTHING;
    int rc = bulk_lookup(link, x);
    if (!rc)
        bulk_ranges(x);
    ctx *c = rc ? NULL : ctx_new(rail, link, CTX_RMA);
    if (rc) {
        xfer_fail(x, rc == -EREMCHG ? GR_ERR_NOT_SUPPORTED : GR_ERR_BACKEND, -rc);
        return REGION_GONE;
    }
    if (!c)
        return NO_ROOM;
    c->batch = r;
    c->bytes = x->pub.bytes;
    c->bulk = 1;
    gr_bulk b = {.ops = x->pub.ops,
                 .nops = x->pub.nops,
                 .bytes = x->pub.bytes,
                 .local = x->bulk.regions,
                 .remote = x->bulk.regions + x->bulk.nlocal,
                 .nlocal = x->bulk.nlocal,
                 .nremote = x->bulk.nremote};
    rc = rail->dev->bulk->post(rail->dev, link->ep.handle, x->op, &b, &c->base);
    if (rc) {
        ctx_done(rail, c);
        if (rc != -ENOTSUP && rc != -EREMCHG)
            return link_no_post(link, r, rc);
        xfer_fail(x, GR_ERR_NOT_SUPPORTED, -rc);
        return REGION_GONE;
    }
    rail->rma_ops++;
    link_posted(link);
    link_count(link, GR_N_WRS, 1);
    r->inflight++;
    r->wrs++;
    r->posted = r->count;
    atomic_store_explicit(&p->idle, 0, memory_order_relaxed);
    p->cur = NULL;
    return POSTED;
}

void wr_done(ctx *c, int err)
{
    gr_link *link = c->link;
    batch *r = c->batch;
    subxfer *p = r->sub;
    xfer *x = p->x;
    if (link->rail->coarse_clock)
        atomic_store_explicit(&x->pub.coarse, 1, memory_order_relaxed);
    if (--link->rail->rma_ops == 0)
        link->rail->coarse_clock = 0;
    link->ep.ops--;
    if (!c->bulk)
        link_inflight(link, 0, c->bytes);
    r->inflight--;
    if (err && c->stopped) { /* the rail has ended the operation: no bytes land any more */
        note_wire_err(&x->pub, err);
    } else if (c->bulk && (err == ENOTSUP || err == EREMCHG)) { /* it cannot be done this way; the link is well */
        xfer_fail(x, GR_ERR_NOT_SUPPORTED, err);
    } else if (err) {
        r->failed = 1;
        r->at_fault |= c->first;
        note_wire_err(&x->pub, err);
    } else {
        link_count(link, x->op == GR_WRITE ? GR_N_WRITE_BYTES : GR_N_READ_BYTES, c->bytes);
        atomic_fetch_add_explicit(&p->bytes, c->bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&x->pub.done, c->bytes, memory_order_relaxed);
        atomic_store_explicit(&x->pub.last_ns, rail_now(link->rail), memory_order_relaxed);
        if (c->bytes && !c->bulk) /* the completion of an unsignaled WRITE says nothing about the wire's rate */
            link_measure(link, c->bytes);
    }
    if (r->inflight || r->posted < r->count || r->unflushed_bytes || r->failed)
        return;
    batch_end(r);
    if (!p->batches && p->listed == LIST_WAITING)
        sub_leave(p);
}

/* ---- Posting on a link: messages, then sub-transfers in turn. */

/* Posts messages, then sub-transfers in turn, until credits, window or budget are used up. */
void link_pump(gr_link *link, uint64_t budget)
{
    if (msg_due(link))
        msg_pump(link);
    if (link->work.yielding && link->state == LINK_UP)
        sub_look(link);
    while (link->state == LINK_UP && link->work.todo && budget) {
        subxfer *p = link->work.todo;
        uint64_t turn = 0, bytes = 0;
        int rc = POSTED;
        if (atomic_load(&p->x->pub.err)) {
            if (sub_drop(p) != 0)
                break;
            continue;
        }
        if (p->x->bulk.rail && (rc = wr_post_bulk(link, p)) == POSTED)
            turn = WR_COST;
        while (!p->x->bulk.rail && turn < QUANTUM && (rc = wr_post(link, p, &bytes)) == POSTED)
            turn += bytes < WR_COST ? WR_COST : bytes;
        budget -= turn < budget ? turn : budget;
        if (rc == REGION_GONE) {
            if (sub_drop(p) != 0)
                break;
        } else if (rc == NOTHING) {
            sub_deactivate(p);
        } else if (rc == YIELDS) {
            (void)sub_yield(p); /* 0: the next turn posts */
        } else if (rc == NO_ROOM) {
            break;
        } else if (p->next) { /* the next sub-transfer's turn */
            sub_unlist(p);
            sub_list(p, LIST_TODO);
        }
    }
    link->rail->work_left |= link->work.todo != NULL;
    if (link->work.yielding && !link->rail->starved)
        link->rail->starved = LOOKS;
    if (link->out.cur)
        msg_pump(link);
}

void sub_start(rail_st *rail, cmd *self)
{
    /* Bytes posted inside the caller's postXfer: 1 MiB, and one more turn for the notification behind the data. The rest
     * goes out as completions come in. */
    enum { IN_POST = (1 << 20) + WR_COST };
    subxfer *p = (subxfer *)(void *)((char *)self - offsetof(subxfer, start));
    gr_link *link = p->link;
    xfer *x = p->x;
    (void)rail;
    if (link->state == LINK_DEAD)
        xfer_fail(x, link->dead_err, 0);
    if (link->rail->rma_ops)
        link->rail->coarse_clock = 1;
    if (x->pub.bytes <= SMALL)
        link_small_posted(link, atomic_load_explicit(&x->pub.posted_ns, memory_order_relaxed));
    sub_list(p, LIST_TODO);
    if (atomic_load(&x->pub.err))
        sub_drop(p);
    else if (link->state != LINK_UP && x->nsubs > 1)
        sub_evict(p);
    else if (x->nsubs > 1 && !queue_has(x)) /* other links took all operations first */
        sub_leave(p);
    link_pump(link, IN_POST);
}
