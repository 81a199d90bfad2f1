/* Copies that GPUs make: one job for a whole transfer, posted and polled with the rail locked. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "local.h"

/* A job of the driver's, with whom it is for while it is under way. */
struct lc_bulk {
    lc_bulk *next;
    lc_pair *pair;
    gr_gpu_job *job;
    lc_ep *ep;
    gr_ctx *ctx;
    uint32_t lane;
    int stopped;
    lc_import **on; /* what of the peer's it copies to or from */
    uint32_t n, room;
};

/* The stream of one of our GPUs towards another, and its jobs that nobody has. */
struct lc_pair {
    lc_task task;
    lc_pair *next;
    int device, peer;
    int asked, failed; /* failed: a gr_gpu_why */
    gr_gpu_lane *lane; /* the mapper's */
    lc_bulk *free;
};

void lc_pair_make(lc_rail *rail, lc_task *task)
{
    lc_pair *p = (lc_pair *)(void *)task;
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = { 0 };
    lc_bulk *b = calloc(1, sizeof(*b));
    int rc = b ? 0 : -GR_GPU_NO_MEMORY;
    if (!rc && !p->lane)
        rc = g->ops->lane(g, p->device, p->peer, &p->lane, &f);
    if (!rc)
        rc = g->ops->job(p->lane, &b->job, &f);
    if (rc) {
        lc_trouble(rail, "no stream for copies", -rc, f.why ? &f : NULL);
        free(b);
    }
    gr_rail_lock(&rail->base);
    p->asked = 0;
    p->failed = -rc;
    if (!rc) {
        b->pair = p;
        b->next = p->free;
        p->free = b;
    }
    gr_rail_unlock(&rail->base);
}

static lc_bulk *take(lc_rail *rail, int device, int peer, int *rc)
{
    lc_pair *p = rail->gpu.pairs;
    while (p && (p->device != device || p->peer != peer))
        p = p->next;
    if (!p) {
        *rc = -EAGAIN;
        if (!(p = calloc(1, sizeof(*p))))
            return NULL;
        *p = (lc_pair){ .task.what = LC_PAIR, .device = device, .peer = peer, .next = rail->gpu.pairs };
        rail->gpu.pairs = p;
    }
    lc_bulk *b = p->free;
    if (b) {
        p->free = b->next;
        return b;
    }
    *rc = p->failed ? -ENOTSUP : -EAGAIN;
    p->failed = 0; /* the next transfer tries again */
    if (*rc == -EAGAIN && !p->asked) {
        p->asked = 1;
        lc_mapper_add(rail, &p->task);
    }
    return NULL;
}

static void give(lc_bulk *b)
{
    b->next = b->pair->free;
    b->pair->free = b;
}

static void mark(lc_ep *ep, uint32_t lane)
{
    atomic_store(&ep->peer.box->lane[lane].turn, ++ep->peer.turn[lane]);
}

static void release(lc_bulk *b)
{
    mark(b->ep, b->lane);
    while (b->n)
        b->on[--b->n]->jobs--;
    b->ep->gpu.lanes &= ~(1u << (b->lane - LC_COPIERS));
    give(b);
}

/* Before the looks that follow, as copy.c does it. 0 or an errno. */
static int enter(lc_ep *ep, uint32_t lane, const gr_bulk *w)
{
    int err = 0;
    uint64_t regions = 0;
    for (uint32_t i = 0; i < w->nremote; i++)
        regions |= lc_region_bit(w->remote[i].key);
    atomic_store(&ep->peer.box->lane[lane].regions, regions);
    mark(ep, lane);
    if (atomic_load(&ep->peer.box->closed) || !lc_alive(ep))
        err = ECONNRESET;
    for (uint32_t i = 0; !err && i < w->nremote; i++)
        err = lc_allowed(ep->peer.table, w->remote[i].key, w->remote[i].addr, w->remote[i].len);
    return err;
}

static int start(lc_rail *rail, lc_bulk *b, int op, const gr_bulk *w, const lc_import *first)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = { 0 };
    gr_gpu_work work = { .ops = w->ops, .nops = (uint32_t)w->nops, .write = op != GR_READ, .bytes = w->bytes, .delta = first->delta,
                         .blocks = rail->gpu.blocks };
    if (w->nremote > 1)
        work.table = rail->gpu.deltas[first->device];
    int err = enter(b->ep, b->lane, w);
    if (err)
        return err;
    int rc = g->ops->post(b->job, &work, &f);
    if (rc)
        lc_trouble(rail, "posting a copy", -rc, &f);
    return rc ? EIO : 0;
}

/* Keeps the imports, which are all ready, from being unmapped. */
static int hold(lc_ep *ep, lc_bulk *b, const gr_bulk *w, int device)
{
    int rc;
    if (w->nremote > b->room) {
        lc_import **more = realloc(b->on, w->nremote * sizeof(*more));
        if (!more)
            return -EAGAIN;
        b->on = more;
        b->room = w->nremote;
    }
    for (b->n = 0; b->n < w->nremote; b->n++)
        (b->on[b->n] = lc_import_of(ep, &w->remote[b->n], device, &rc))->jobs++;
    return 0;
}

int lc_bulk_post(gr_rail *base, void *opaque, int op, const gr_bulk *w, gr_ctx *ctx)
{
    lc_rail *rail = (lc_rail *)base;
    lc_ep *ep = opaque;
    lc_import *first = NULL;
    const lc_vram *here = w->local[0].desc;
    int rc = ep->err ? -ep->err : !ep->named ? -ENOTCONN : !ep->peer.box || gr_ready_full(&rail->ready) ? -EAGAIN : 0;
    uint32_t busy = ep->gpu.lanes;
    if (rc)
        return rc;
    if (!here || w->nops > UINT32_MAX) {
        lc_trouble(rail, "between memory here and a peer's GPU", GR_GPU_HOST, NULL);
        return -ENOTSUP;
    }
    for (uint32_t i = w->nremote; i-- && (!rc || rc == -EAGAIN);) { /* all are asked for at once */
        int one = 0;
        first = lc_import_of(ep, &w->remote[i], here->device, &one);
        if (!first)
            rc = one;
    }
    if (rc == -EAGAIN || rc == -ENOTSUP)
        return rc;
    if (rc) { /* taken back meanwhile: an error of the operation's, as any copy's */
        gr_ready_owe(&rail->ready);
        lc_tell(rail, ctx, -rc, 0);
        return 0;
    }
    if (busy == (1u << LC_BULKS) - 1)
        return -EAGAIN;
    lc_bulk *b = take(rail, here->device, first->peer, &rc);
    if (!b)
        return rc;
    if ((rc = hold(ep, b, w, here->device))) {
        give(b);
        return rc;
    }
    uint32_t free = (uint32_t)__builtin_ctz(~busy);
    b->ep = ep;
    b->ctx = ctx;
    b->stopped = 0;
    b->lane = LC_COPIERS + free;
    ep->gpu.lanes |= 1u << free;
    int err = start(rail, b, op, w, first);
    gr_ready_owe(&rail->ready);
    if (err) {
        release(b);
        lc_tell(rail, ctx, err, 0);
        return 0;
    }
    b->next = rail->gpu.bulks;
    rail->gpu.bulks = b;
    return 0;
}

void lc_bulk_poll(lc_rail *rail)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = { 0 };
    for (lc_bulk **at = &rail->gpu.bulks, *b; (b = *at);) {
        int rc = g->ops->poll(b->job, &f);
        int closed = atomic_load(&b->ep->peer.box->closed);
        if (rc > 0) {
            if (closed && !b->stopped) { /* the peer waits for it */
                b->stopped = 1;
                g->ops->cancel(b->job);
            }
            at = &b->next;
            continue;
        }
        *at = b->next;
        if (rc && rc != -GR_GPU_CANCELLED)
            lc_trouble(rail, "a copy", -rc, &f);
        release(b);
        lc_tell(rail, b->ctx, rc == 0 ? 0 : rc != -GR_GPU_CANCELLED ? EIO : closed ? ECONNRESET : ECANCELED, 0);
        lc_import_sweep(b->ep);
    }
}

void lc_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx)
{
    lc_rail *rail = (lc_rail *)base;
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    for (lc_bulk *b = rail->gpu.bulks; b; b = b->next)
        if (b->ep == ep && (!ctx || b->ctx == ctx))
            g->ops->cancel(b->job);
}

void lc_bulk_drain(lc_ep *ep)
{
    if (ep->gpu.lanes)
        lc_bulk_stop(&ep->rail->base, ep, NULL);
    while (lc_bulk_poll(ep->rail), ep->gpu.lanes) {
        gr_rail_unlock(&ep->rail->base);
        nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
        gr_rail_lock(&ep->rail->base);
    }
}

void *lc_ops_alloc(gr_rail *base, size_t size)
{
    gr_gpu *g = atomic_load(&((lc_rail *)base)->gpu.driver);
    return g ? g->ops->alloc(g, size) : NULL;
}

void lc_ops_free(gr_rail *base, void *mem)
{
    gr_gpu *g = atomic_load(&((lc_rail *)base)->gpu.driver);
    g->ops->free(g, mem);
}

void lc_bulk_close(lc_rail *rail)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    for (lc_pair *p = rail->gpu.pairs, *next; p; p = next) {
        next = p->next;
        for (lc_bulk *b = p->free, *more; b; b = more) {
            more = b->next;
            (void)g->ops->job_free(b->job);
            free(b->on);
            free(b);
        }
        if (p->lane)
            g->ops->lane_close(g, p->lane);
        free(p);
    }
    for (int i = 0; i < LC_GPUS; i++)
        if (rail->gpu.deltas[i])
            g->ops->table_free(rail->gpu.deltas[i]);
}
