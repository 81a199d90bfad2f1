/* Links: a session's share of one rail. Posting within credits and window, completions, failure and rebirth. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One work request: what it has and where the run stands when it is posted. */
typedef struct request {
    gr_seg seg[GR_MAX_IOV];
    int n;
    uint64_t bytes, ops, off;
} request;

/* Takes the next operations of the run that fit one work request; of one above `most` bytes, a piece. 0, or a negative
 * errno when a region is gone. */
static int build(gr_link *link, const run *r, uint64_t most, request *q)
{
    gr_core *core = link->rail->core;
    gr_rail *dev = link->rail->dev;
    const gr_op *op = r->part->x->pub.ops + r->first + r->posted;
    uint64_t left = r->count - r->posted;
    *q = (request){.off = r->off};
    for (; q->n < (int)dev->iov_limit && q->ops < left; op++) {
        uint64_t len = op->len - q->off;
        if (q->n && (q->bytes + len > COMBINE || q->bytes + len > dev->max_msg))
            break;
        gr_region *lr = gr_region_at(core, op->lregion), *rr = gr_region_at(core, op->rregion);
        gr_rkey *lk = &lr->rail[link->rail->index], *rk = &rr->rail[link->peer_rail];
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

/* An acknowledgement costs both sides a system call and a wake-up. 10,000 x 8 KiB over tcp are 2,500 work requests: with one
 * for each 2.2 GB/s, with one for 512 KiB 2.6, side by side. */
static int weak_enough(const gr_link *link, const run *r, const request *q)
{
    uint64_t most = link->window / 4 < CHAIN ? link->window / 4 : CHAIN;
    return link->rail->dev->chained && r->part->x->op == GR_WRITE && r->posted + q->ops < r->count &&
           r->weak_bytes + q->bytes < most;
}

/* While small transfers come, larger ones keep little in flight, in pieces: behind 4 x 1 MiB a write of 4 KiB took 3.5 ms,
 * behind 2 x 128 KiB 0.2 (alone 0.08). */
enum { CALM_NS = 10000000, HURRY = 256 << 10 };
static uint64_t window(gr_link *link, const xfer *x)
{
    if (!link->small_ns || x->pub.bytes <= SMALL || link->window <= HURRY)
        return link->window;
    if ((int64_t)(core_tick(link->rail->core) - link->small_ns) > CALM_NS) { /* the tick may be older */
        link->small_ns = 0;
        return link->window;
    }
    return HURRY;
}

/* The provider took no post: later, or never again on this endpoint. */
void link_refused(gr_link *link, int rc)
{
    if (rc != -EAGAIN) {
        link_count(link, GR_N_REFUSED, 1);
        link_error(link, -rc);
        return;
    }
    link->rail->starved = 1;
    link_count(link, GR_N_EAGAIN, 1);
}

int link_no_post(gr_link *link, run *r, int rc)
{
    if (rc == -EAGAIN) {
        link_refused(link, rc);
        if (r->posted == 0 && r->off == 0 && r->part->x->nparts > 1) { /* a link that is slow to begin holds nothing back */
            part *p = r->part;
            xfer_not_sole(p, 0);
            run_back(r);
            (void)part_call(p);
        }
    } else {
        r->failed = 1;
        r->blamed = link->state == LINK_UP;
        atomic_store(&r->part->x->pub.wire_err, -rc);
        link_refused(link, rc);
    }
    return NO_ROOM;
}

/* What posts the last WRITE of several. A notification that goes out over another link than the data says nothing about the
 * data's order: then each link's must be proved by itself. */
static int strong(part *p, const run *r, const request *q)
{
    xfer *x = p->x;
    if (x->op == GR_WRITE && x->prove && q->bytes + r->weak_bytes)
        return GR_WRITE_PROVEN;
    return x->op == GR_WRITE && x->has_notif && q->bytes + r->weak_bytes && !xfer_sole(p) ? GR_WRITE_PROVEN : x->op;
}

/* Posts one work request of the part. */
static int post_one(gr_link *link, part *p, uint64_t *bytes)
{
    rail_st *rail = link->rail;
    request q;
    if (link->inflight_ops + TX_RESERVE >= rail->dev->tx_depth || rail_full(rail))
        return NO_ROOM;
    uint64_t most = window(link, p->x);
    if (!p->cur && link->inflight_ops && link->inflight_bytes >= most) {
        link->limited = 1;
        return NO_ROOM;
    }
    int later = 0;
    run *r = p->cur ? p->cur : (p->cur = run_take(p, &later));
    if (!r)
        return later ? NO_ROOM : NOTHING;
    int rc = build(link, r, most < link->window ? HURRY / 2 : UINT64_MAX, &q);
    if (rc < 0) {
        xfer_fail(p->x, GR_ERR_BACKEND, -rc);
        return REGION_GONE;
    }
    if (link->inflight_ops && link->inflight_bytes + q.bytes > most) {
        link->limited = 1;
        return NO_ROOM;
    }
    int weak = weak_enough(link, r, &q);
    if (!weak && !q.bytes && r->weak_bytes) { /* operations of nothing, which still have to prove those before them */
        q.seg[0] = r->weak_end;
        q.n = 1;
    }
    ctx *c = rail_ctx(rail, link, CTX_RMA);
    if (!c)
        return NO_ROOM;
    c->run = r;
    c->bytes = weak ? 0 : r->weak_bytes + q.bytes;
    rc = rail->dev->ops->rma(rail->dev, link->ep, weak ? GR_WRITE_WEAK : strong(p, r, &q), (uint32_t)q.n, q.seg, &c->base);
    if (rc != 0) {
        rail_ctx_done(rail, c);
        return link_no_post(link, r, rc);
    }
    rail->rma_ops++;
    link->inflight_ops++;
    link_flying(link, q.bytes, 0);
    r->weak_bytes = weak ? r->weak_bytes + q.bytes : 0;
    for (int i = 0; i < q.n; i++)
        if (q.seg[i].len)
            r->weak_end = q.seg[i];
    r->weak_end.len = 0;
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

/* Posts messages, then parts in turn, until credits, window or budget end. */
void link_pump(gr_link *link, uint64_t budget)
{
    msg_pump(link);
    while (link->state == LINK_UP && link->todo && budget) {
        part *p = link->todo;
        uint64_t turn = 0, bytes = 0;
        int rc = POSTED;
        if (atomic_load(&p->x->pub.err)) {
            if (part_drop(p) != 0)
                break;
            continue;
        }
        if (p->x->bulk && (rc = bulk_post(link, p)) == POSTED)
            turn = WR_COST;
        while (!p->x->bulk && turn < QUANTUM && (rc = post_one(link, p, &bytes)) == POSTED)
            turn += bytes < WR_COST ? WR_COST : bytes;
        budget -= turn < budget ? turn : budget;
        if (rc == REGION_GONE) {
            if (part_drop(p) != 0)
                break;
        } else if (rc == NOTHING) {
            part_rest(p);
        } else if (rc == NO_ROOM) {
            break;
        } else if (p->next) { /* the next part's turn */
            part_unlist(p);
            part_list(p, LIST_TODO);
        }
    }
    link->rail->more |= link->todo != NULL;
    if (link->cur)
        msg_pump(link);
}

/* No more posts of any kind: its endpoint may be closed from here on. */
void link_halt(gr_link *link)
{
    if (link->state == LINK_UP || link->state == LINK_PROBING)
        link->state = LINK_STOPPED;
    link->reported = 1;
    link->halted(link);
}

/* First failure: no more posts, and Go is asked what to do. */
void link_error(gr_link *link, int err)
{
    if (link->reported)
        return;
    link_halt(link);
    gr_event ev = {.kind = GR_EV_LINK, .code = err, .id = link->id, .seq = link->epoch};
    core_event(link->rail->core, &ev, NULL);
}

uint64_t link_window(const gr_link *link, uint64_t bytes)
{
    const gr_core_cfg *cfg = &link->rail->core->cfg;
    uint64_t least = link->rail->dev->window_min;
    if (least < cfg->window_min)
        least = cfg->window_min;
    if (bytes < least)
        bytes = least;
    return bytes < cfg->window_max ? bytes : cfg->window_max;
}

enum { MEASURE_NS = 2000000 };

/* The window follows the rate while it is what limits the link: rate x window_ns, at most doubled a step. A probe on
 * loopback settles near 16 MiB, a 1 Gbit/s link near 480 KiB. */
static void measure(gr_link *link, uint64_t bytes)
{
    const gr_core_cfg *cfg = &link->rail->core->cfg;
    uint64_t now = link->rail->now;
    int coarse = link->rail->stream;
    if (link->meas_ns == 0) { /* idle before: a new measurement */
        link->meas_ns = coarse ? gr_now_ns() : now;
        link->meas_bytes = 0;
        return;
    }
    link->meas_bytes += bytes;
    if (coarse && (int64_t)(now - link->meas_ns) >= MEASURE_NS)
        now = gr_now_ns();
    int64_t dt = (int64_t)(now - link->meas_ns);
    if (dt < MEASURE_NS) {
        if (link->inflight_ops == 0)
            link->meas_ns = 0;
        return;
    }
    uint64_t rate = (uint64_t)((double)link->meas_bytes * 1e9 / (double)dt);
    link->rate = link->rate ? (link->rate * 3 + rate) / 4 : rate;
    if (link->limited) { /* else the rate tells what was asked of the link, not what it can do */
        atomic_store_explicit(&link->rate_pub, link->rate, memory_order_relaxed);
        uint64_t w = (uint64_t)((double)link->rate * (double)cfg->window_ns / 1e9);
        if (w > link->window * 2)
            w = link->window * 2;
        link->window = link_window(link, w);
    }
    link->limited = 0;
    link->meas_ns = link->inflight_ops ? now : 0;
    link->meas_bytes = 0;
}

void link_rma_done(ctx *c, int err)
{
    gr_link *link = c->link;
    run *r = c->run;
    part *p = r->part;
    xfer *x = p->x;
    if (link->rail->stream)
        atomic_store_explicit(&x->pub.coarse, 1, memory_order_relaxed);
    if (--link->rail->rma_ops == 0)
        link->rail->stream = 0;
    link->inflight_ops--;
    if (!c->bulk)
        link_flying(link, 0, c->bytes);
    r->inflight--;
    if (err && c->stopped) { /* its rail has ended it: nothing of it lands any more */
        atomic_store(&x->pub.wire_err, err);
    } else if (err) {
        r->failed = 1;
        r->blamed |= c->first;
        atomic_store(&x->pub.wire_err, err);
    } else {
        link_count(link, x->op == GR_WRITE ? GR_N_WRITE_BYTES : GR_N_READ_BYTES, c->bytes);
        atomic_fetch_add_explicit(&p->bytes, c->bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&x->pub.done, c->bytes, memory_order_relaxed);
        atomic_store_explicit(&x->pub.last_ns, link->rail->now, memory_order_relaxed);
        if (c->bytes && !c->bulk) /* a weak WRITE's completion tells nothing about the wire */
            measure(link, c->bytes);
    }
    if (r->inflight || r->posted < r->count || r->weak_bytes || r->failed)
        return;
    run_end(r);
    if (!p->runs && p->listed == LIST_WAITING)
        part_rest(p);
}
