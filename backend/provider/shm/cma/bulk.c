/* Copies that GPUs make: one job per transfer, posted and polled with the rail locked. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "cma.h"

enum { KEPT_NS = 1000000 }; /* between two looks at jobs of closed endpoints */

void cma_pair_make(cma_rail *rail, cma_task *task)
{
    cma_pair *p = (cma_pair *)(void *)task;
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = {0};
    cma_bulk *b = GR_ALLOC(cma_stream, calloc(1, sizeof(*b)));
    int rc = b ? 0 : -GR_GPU_NO_MEMORY;
    if (!rc && !p->stream)
        rc = g->ops->stream(g, p->device, p->peer, &p->stream, &f);
    if (!rc)
        rc = g->ops->job(p->stream, &b->job, &f);
    if (rc) {
        cma_note_error(rail, "cannot make a stream for GPU copies", -rc, f.why ? &f : NULL);
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

static cma_bulk *take_free(cma_rail *rail, int device, int peer, int *rc)
{
    cma_pair *p = rail->gpu.pairs;
    while (p && (p->device != device || p->peer != peer))
        p = p->next;
    if (!p) {
        *rc = -EAGAIN;
        if (!(p = GR_ALLOC(cma_pair, calloc(1, sizeof(*p)))))
            return NULL;
        *p = (cma_pair){.task.what = CMA_PAIR, .device = device, .peer = peer, .next = rail->gpu.pairs};
        rail->gpu.pairs = p;
    }
    cma_bulk *b = p->free;
    if (b) {
        p->free = b->next;
        return b;
    }
    *rc = p->failed ? -ENOTSUP : -EAGAIN;
    p->failed = 0; /* the next transfer tries again */
    if (*rc == -EAGAIN && !p->asked) {
        p->asked = 1;
        cma_mapper_add(rail, &p->task);
    }
    return NULL;
}

static void put_free(cma_bulk *b)
{
    b->next = b->pair->free;
    b->pair->free = b;
}

static void mark(cma_ep *ep, uint32_t epoch) { atomic_store(&ep->peer.shm->epoch[epoch].turn, ++ep->peer.turn[epoch]); }

static void release(cma_bulk *b)
{
    mark(b->ep, b->epoch);
    while (b->n)
        b->on[--b->n]->jobs--;
    b->ep->gpu.epochs &= ~(1u << (b->epoch - CMA_COPIERS));
    put_free(b);
}

/* Marks the epoch as busy before the checks, as copy.c does. 0 or an errno. */
static int enter(cma_ep *ep, uint32_t epoch, const gr_bulk *w)
{
    int err = 0;
    uint64_t regions = 0;
    for (uint32_t i = 0; i < w->nremote; i++)
        regions |= cma_region_bit(w->remote[i].key);
    atomic_store(&ep->peer.shm->epoch[epoch].regions, regions);
    mark(ep, epoch);
    if (!cma_reaches(ep))
        err = ECONNRESET;
    for (uint32_t i = 0; !err && i < w->nremote; i++)
        err = cma_allowed(ep->peer.table, w->remote[i].key, w->remote[i].addr, w->remote[i].len);
    return err;
}

static int start(cma_rail *rail, cma_bulk *b, int op, const gr_bulk *w, const cma_import *first)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = {0};
    gr_gpu_work work = {
        .ops = w->ops, .nops = (uint32_t)w->nops, .write = op != GR_READ, .how = rail->gpu.how,
        .bytes = w->bytes, .delta = first->delta, .blocks = rail->gpu.blocks};
    if (w->nremote > 1)
        work.table = rail->gpu.deltas[first->device];
    int err = enter(b->ep, b->epoch, w);
    if (err)
        return err;
    int rc = g->ops->post(b->job, &work, &f);
    if (rc)
        cma_note_error(rail, "cannot post a GPU copy", -rc, &f);
    return rc ? EIO : 0;
}

/* Counts the job on its imports, which are all ready, so that they stay mapped. */
static int hold(cma_ep *ep, cma_bulk *b, const gr_bulk *w, int device)
{
    int rc;
    if (w->nremote > b->room) {
        cma_import **more = GR_ALLOC(cma_bulk_imports, realloc(b->on, w->nremote * sizeof(*more)));
        if (!more)
            return -EAGAIN;
        b->on = more;
        b->room = w->nremote;
    }
    for (b->n = 0; b->n < w->nremote; b->n++)
        (b->on[b->n] = cma_import_of(ep, &w->remote[b->n], device, &rc))->jobs++;
    return 0;
}

int cma_bulk_post(gr_rail *base, void *opaque, int op, const gr_bulk *w, gr_ctx *ctx)
{
    cma_rail *rail = (cma_rail *)base;
    cma_ep *ep = opaque;
    cma_import *first = NULL;
    const cma_vram *here = w->local[0].desc;
    int rc = ep->err ? -ep->err : !ep->connecting ? -ENOTCONN : !ep->peer.shm || gr_ready_full(&rail->ready) ? -EAGAIN : 0;
    uint32_t busy = ep->gpu.epochs;
    if (rc)
        return rc;
    if (!here || w->nops > UINT32_MAX) {
        cma_note_error(rail, here ? "the transfer is too long for a GPU copy" : "the local region is no GPU memory",
                       here ? GR_GPU_TOO_MANY : GR_GPU_HOST, NULL);
        return -ENOTSUP;
    }
    for (uint32_t i = w->nremote; i-- && (!rc || rc == -EAGAIN);) { /* request all imports at once */
        int one = 0;
        first = cma_import_of(ep, &w->remote[i], here->device, &one);
        if (!first)
            rc = one;
    }
    if (rc == -EAGAIN || rc == -ENOTSUP)
        return rc;
    if (rc) { /* for instance revoked meanwhile: the operation fails, as any copy would */
        gr_ready_owe(&rail->ready);
        cma_complete(rail, ctx, -rc, 0);
        return 0;
    }
    if (busy == (1u << CMA_BULKS) - 1)
        return -EAGAIN;
    cma_bulk *b = take_free(rail, here->device, first->peer, &rc);
    if (!b)
        return rc;
    if ((rc = hold(ep, b, w, here->device))) {
        put_free(b);
        return rc;
    }
    uint32_t free = (uint32_t)__builtin_ctz(~busy);
    b->ep = ep;
    b->ctx = ctx;
    b->ops = w->ops;
    b->stopped = b->ops_freed = 0;
    b->regions = 0;
    for (uint32_t i = 0; i < w->nlocal; i++)
        b->regions |= ((const cma_vram *)w->local[i].desc)->region;
    b->epoch = CMA_COPIERS + free;
    ep->gpu.epochs |= 1u << free;
    int err = start(rail, b, op, w, first);
    gr_ready_owe(&rail->ready);
    if (err) {
        release(b);
        cma_complete(rail, ctx, err, 0);
        return 0;
    }
    b->next = rail->gpu.bulks;
    rail->gpu.bulks = b;
    return 0;
}

static void poll_jobs(cma_rail *rail, cma_bulk **at)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = {0};
    for (cma_bulk *b; (b = *at);) {
        int rc = g->ops->poll(b->job, &f);
        int closed = atomic_load(&b->ep->peer.shm->closed);
        if (rc > 0) {
            if (closed && !b->stopped) { /* the closing peer waits for the job */
                b->stopped = 1;
                g->ops->cancel(b->job);
            }
            at = &b->next;
            continue;
        }
        *at = b->next;
        if (rc && rc != -GR_GPU_CANCELLED)
            cma_note_error(rail, "GPU copy failed", -rc, &f);
        release(b);
        cma_import_sweep(b->ep);
        if (b->ctx) {
            cma_complete(rail, b->ctx, rc == 0 ? 0 : rc != -GR_GPU_CANCELLED ? EIO : closed ? ECONNRESET : ECANCELED, 0);
            continue;
        }
        if (b->ops_freed && !cma_ops_kept(rail, b->ops))
            g->ops->free(g, (void *)(uintptr_t)b->ops);
        atomic_fetch_sub(&rail->gpu.nkept, 1);
        cma_ep_job_ended(b->ep);
    }
}

void cma_bulk_poll(cma_rail *rail)
{
    poll_jobs(rail, &rail->gpu.bulks);
    if (!rail->gpu.kept || cma_now() - rail->gpu.looked_ns < KEPT_NS)
        return;
    poll_jobs(rail, &rail->gpu.kept);
    rail->gpu.looked_ns = cma_now();
}

void cma_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx)
{
    cma_rail *rail = (cma_rail *)base;
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    for (cma_bulk *b = rail->gpu.bulks; b; b = b->next)
        if (b->ep == ep && (!ctx || b->ctx == ctx))
            g->ops->cancel(b->job);
}

int cma_bulk_drain(cma_ep *ep)
{
    uint64_t end = cma_now() + (uint64_t)CMA_WAIT_MS * 1000000;
    if (ep->gpu.epochs)
        cma_bulk_stop(&ep->rail->base, ep, NULL);
    while (cma_bulk_poll(ep->rail), ep->gpu.epochs) {
        if (cma_now() > end)
            return cma_jobs_keep(ep);
        gr_rail_unlock(&ep->rail->base);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        gr_rail_lock(&ep->rail->base);
    }
    return 0;
}

void *cma_ops_alloc(gr_rail *base, size_t size)
{
    gr_gpu *g = atomic_load(&((cma_rail *)base)->gpu.driver);
    return g ? g->ops->alloc(g, size) : NULL;
}

void cma_ops_free(gr_rail *base, void *mem)
{
    cma_rail *rail = (cma_rail *)base;
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    int kept = 0;
    if (atomic_load(&rail->gpu.nkept)) {
        gr_rail_lock(base);
        kept = cma_ops_kept(rail, mem);
        gr_rail_unlock(base);
    }
    if (!kept)
        g->ops->free(g, mem);
}

void cma_bulk_close(cma_rail *rail)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    if (rail->gpu.kept) /* a GPU may still use all of it */
        return;
    for (cma_pair *p = rail->gpu.pairs, *next; p; p = next) {
        next = p->next;
        for (cma_bulk *b = p->free, *more; b; b = more) {
            more = b->next;
            (void)g->ops->job_free(b->job);
            free(b->on);
            free(b);
        }
        if (p->stream)
            g->ops->stream_close(g, p->stream);
        free(p);
    }
    for (int i = 0; i < CMA_GPUS; i++)
        if (rail->gpu.deltas[i])
            g->ops->table_free(rail->gpu.deltas[i]);
}
