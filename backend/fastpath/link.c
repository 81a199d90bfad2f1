/* Links: a session's share of one rail. Posting within credits and window, completions, failure and rebirth. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void part_list(gr_link *link, part *p, int which)
{
    p->listed = (uint8_t)which;
    p->next = p->prev = NULL;
    if (which == LIST_WAITING) {
        p->next = link->waiting;
        if (p->next)
            p->next->prev = p;
        link->waiting = p;
    } else if (link->todo) {
        p->prev = link->todo_tail;
        link->todo_tail->next = p;
        link->todo_tail = p;
    } else {
        link->todo = link->todo_tail = p;
    }
}

void part_unlist(part *p)
{
    gr_link *link = p->link;
    if (!p->listed)
        return;
    if (p->next)
        p->next->prev = p->prev;
    else if (p->listed == LIST_TODO)
        link->todo_tail = p->prev;
    if (p->prev)
        p->prev->next = p->next;
    else if (p->listed == LIST_TODO)
        link->todo = p->next;
    else
        link->waiting = p->next;
    p->listed = 0;
}

void part_end(part *p)
{
    part_unlist(p);
    xfer_part_end(p); /* p may be gone now */
}

/* A WRITE of nothing whose completion proves the weak ones before it. */
static int post_proof(gr_link *link, part *p)
{
    rail_st *rail = link->rail;
    ctx *c;
    if (link->state != LINK_UP || link->inflight_ops >= rail->dev->tx_depth || !(c = rail_ctx(rail, link, CTX_RMA)))
        return -EAGAIN;
    c->part = p;
    c->bytes = p->weak_bytes;
    int rc = rail->dev->ops->rma(rail->dev, link->ep, GR_WRITE, 1, &p->weak_end, &c->base);
    if (rc != 0) {
        rail_ctx_done(rail, c);
        if (rc == -EAGAIN)
            rail->starved = 1;
        else
            link_error(link, -rc, 0);
        return rc;
    }
    p->weak_bytes = 0;
    p->inflight++;
    link->inflight_ops++;
    return 0;
}

/* Gives up what is not posted; the part ends here or with its last completion. Not 0: what is posted can't be proved now;
 * it is tried again with the next turn, or the link has failed and reap ends the part. */
int part_drop(part *p)
{
    if (p->weak_bytes && post_proof(p->link, p) != 0)
        return 1;
    p->posted = p->count;
    if (p->inflight == 0) {
        part_end(p);
    } else if (p->listed == LIST_TODO) {
        part_unlist(p);
        part_list(p->link, p, LIST_WAITING);
    }
    return 0;
}

void link_add_part(gr_link *link, part *p)
{
    if (link->state == LINK_DEAD)
        xfer_fail(p->x, link->dead_err, 0);
    part_list(link, p, LIST_TODO);
    if (p->count == 0 || atomic_load(&p->x->pub.err))
        part_drop(p);
}

/* Fills seg with the next operations of the part that fit one work request. Returns their number, or a negative
 * errno when a region is gone. */
static int build(gr_link *link, part *p, gr_seg *seg, uint64_t *bytes)
{
    gr_core *core = link->rail->core;
    gr_rail *dev = link->rail->dev;
    const gr_op *op = p->x->pub.ops + p->first + p->posted;
    uint64_t left = p->count - p->posted, sum = 0;
    int n = 0;
    for (; n < (int)dev->iov_limit && (uint64_t)n < left; n++, op++) {
        if (n && (sum + op->len > COMBINE || sum + op->len > dev->max_msg))
            break;
        gr_region *l = gr_region_at(core, op->lregion), *r = gr_region_at(core, op->rregion);
        gr_rkey *lk = &l->rail[link->rail->index], *rk = &r->rail[link->peer_rail];
        if (!atomic_load(&l->live) || !atomic_load(&r->live) || !lk->ok || !rk->ok)
            return -ESTALE;
        seg[n] = (gr_seg){op->local, op->remote - r->addr + rk->base, op->len, lk->desc, rk->key};
        sum += op->len;
    }
    *bytes = sum;
    return n;
}

/* An acknowledgement costs both sides a system call and a wake-up. 10,000 x 8 KiB over tcp are 2,500 work requests: with one
 * for each 2.2 GB/s, with one for 512 KiB 2.6, side by side. */
static int weak_enough(const gr_link *link, const part *p, uint64_t n, uint64_t bytes)
{
    uint64_t most = link->window / 4 < CHAIN ? link->window / 4 : CHAIN;
    return link->rail->dev->chained && p->x->op == GR_WRITE && p->posted + n < p->count && p->weak_bytes + bytes < most;
}

/* Posts one work request of the part. 0 posted, 1 no room now, 2 the part cannot go on. */
static int post_one(gr_link *link, part *p, uint64_t *bytes)
{
    rail_st *rail = link->rail;
    gr_seg seg[GR_MAX_IOV];
    if (link->inflight_ops + TX_RESERVE >= rail->dev->tx_depth)
        return 1;
    int n = build(link, p, seg, bytes);
    if (n < 0) {
        xfer_fail(p->x, ST_BACKEND, -n);
        return 2;
    }
    if (link->inflight_ops && link->inflight_bytes + *bytes > link->window) {
        link->limited = 1;
        return 1;
    }
    int weak = weak_enough(link, p, (uint64_t)n, *bytes);
    ctx *c = rail_ctx(rail, link, CTX_RMA);
    if (!c)
        return 1;
    c->part = p;
    c->bytes = weak ? 0 : p->weak_bytes + *bytes;
    int rc = rail->dev->ops->rma(rail->dev, link->ep, weak ? GR_WRITE_WEAK : p->x->op, (uint32_t)n, seg, &c->base);
    if (rc != 0) {
        rail_ctx_done(rail, c);
        if (rc == -EAGAIN) {
            rail->starved = 1;
            link->eagain++;
            COUNT(rail->core, GR_C_EAGAIN, 1);
        } else {
            p->failed = 1;
            p->blamed = link->state == LINK_UP;
            atomic_store(&p->x->pub.wire_err, -rc);
            link_error(link, -rc, 0);
        }
        return 1;
    }
    link->inflight_ops++;
    link->inflight_bytes += *bytes;
    p->weak_bytes = weak ? p->weak_bytes + *bytes : 0;
    p->weak_end = seg[n - 1];
    p->weak_end.len = 0;
    link->wrs++;
    p->inflight++;
    p->posted += (uint64_t)n;
    COUNT(rail->core, GR_C_WRS, 1);
    return 0;
}

/* Posts messages, then parts in turn, until credits, window or budget end. */
void link_pump(gr_link *link, uint64_t budget)
{
    msg_pump(link);
    while (link->state == LINK_UP && link->todo && budget) {
        part *p = link->todo;
        uint64_t turn = 0, bytes = 0;
        int rc = 0;
        if (atomic_load(&p->x->pub.err)) {
            if (part_drop(p) != 0)
                break;
            continue;
        }
        while (p->posted < p->count && turn < QUANTUM && (rc = post_one(link, p, &bytes)) == 0)
            turn += bytes < WR_COST ? WR_COST : bytes;
        budget -= turn < budget ? turn : budget;
        if (rc == 2) {
            if (part_drop(p) != 0)
                break;
            continue;
        }
        if (p->posted == p->count) {
            part_unlist(p);
            part_list(link, p, LIST_WAITING);
            xfer_try_pipeline(p);
        } else if (turn >= QUANTUM && p->next) { /* the next part's turn */
            part_unlist(p);
            part_list(link, p, LIST_TODO);
        }
        if (rc == 1)
            break;
    }
    if (link->cur)
        msg_pump(link);
}

/* First failure: no more posts, and Go is asked what to do. */
void link_error(gr_link *link, int err, int prov_err)
{
    (void)prov_err;
    if (link->state == LINK_UP)
        link->state = LINK_STOPPED;
    if (link->reported)
        return;
    link->reported = 1;
    gr_event ev = {.kind = GR_EV_LINK, .code = err, .id = link->id, .seq = link->rebinds};
    core_event(link->rail->core, &ev, NULL);
}

/* The window follows the rate while it is what limits the link: rate x window_ns, at most doubled a step. A probe on
 * loopback settles near 16 MiB, a 1 Gbit/s link near 480 KiB. */
static void measure(gr_link *link, uint64_t bytes)
{
    const gr_core_cfg *cfg = &link->rail->core->cfg;
    uint64_t now = link->rail->now;
    if (link->meas_ns == 0) { /* idle before: a new measurement */
        link->meas_ns = now;
        link->meas_bytes = 0;
        return;
    }
    link->meas_bytes += bytes;
    uint64_t dt = now - link->meas_ns;
    if (dt < 2000000) {
        if (link->inflight_ops == 0)
            link->meas_ns = 0;
        return;
    }
    uint64_t rate = (uint64_t)((double)link->meas_bytes * 1e9 / (double)dt);
    link->rate = link->rate ? (link->rate * 3 + rate) / 4 : rate;
    if (link->limited) {
        uint64_t w = (uint64_t)((double)link->rate * (double)cfg->window_ns / 1e9);
        if (w > link->window * 2)
            w = link->window * 2;
        link->window = w < cfg->window_min ? cfg->window_min : w > cfg->window_max ? cfg->window_max : w;
    }
    link->limited = 0;
    link->meas_ns = link->inflight_ops ? now : 0;
    link->meas_bytes = 0;
}

void link_rma_done(ctx *c, int err)
{
    gr_link *link = c->link;
    part *p = c->part;
    xfer *x = p->x;
    link->inflight_ops--;
    link->inflight_bytes -= c->bytes;
    p->inflight--;
    if (err) {
        p->failed = 1;
        p->blamed |= c->first;
        atomic_store(&x->pub.wire_err, err);
    } else {
        link->tx_bytes += c->bytes;
        atomic_fetch_add_explicit(&x->pub.done, c->bytes, memory_order_relaxed);
        atomic_store_explicit(&x->pub.last_ns, link->rail->now, memory_order_relaxed);
        COUNT(link->rail->core, x->op == GR_WRITE ? GR_C_WRITE_BYTES : GR_C_READ_BYTES, c->bytes);
        if (c->bytes) /* a weak WRITE's completion tells nothing about the wire */
            measure(link, c->bytes);
    }
    if (p->inflight == 0 && p->posted == p->count && !p->weak_bytes && (!p->failed || atomic_load(&x->pub.err)))
        part_end(p);
}
