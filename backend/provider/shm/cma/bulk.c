/* Copies that GPUs make: one job per transfer, posted and polled with the rail locked. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cma.h"
#include "gr_op.h"

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

/* The job touches no memory any more. */
static void leave(cma_bulk *b)
{
    if (b->under_way)
        mark(b->ep, b->epoch);
    b->under_way = 0;
}

static void cma_bulk_release(cma_bulk *b)
{
    leave(b);
    while (b->use.n)
        b->use.on[--b->use.n]->jobs--;
    b->ep->gpu.epochs &= ~(1u << (b->epoch - CMA_COPIERS));
    put_free(b);
}

/* Marks the epoch as busy before the checks, as copy.c does. 0 or an errno. */
static int cma_bulk_enter(cma_bulk *b)
{
    cma_ep *ep = b->ep;
    int err = 0;
    uint64_t regions = 0;
    for (uint32_t i = 0; i < b->use.nrange; i++)
        regions |= cma_region_bit(b->use.range[i].key);
    atomic_store(&ep->peer.shm->epoch[b->epoch].regions, regions);
    mark(ep, b->epoch);
    b->under_way = 1;
    if (!cma_reaches(ep))
        err = ECONNRESET;
    for (uint32_t i = 0; !err && i < b->use.nrange; i++)
        err = cma_allowed(ep->peer.table, b->use.range[i].key, b->use.range[i].addr, b->use.range[i].len);
    return err == EACCES ? EREMCHG : err; /* revoked meanwhile: the owner may have mapped other memory there */
}

/* Whether our own memory is what was registered, and our GPU can access it. A kernel that accesses unmapped memory would end the application's
 * use of the GPU. Other memory goes through bounce buffers: what the driver has put there may be ours. */
static int check_here(cma_rail *rail, const cma_bulk *b)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    uint32_t need = b->write ? GR_GPU_READS : GR_GPU_WRITES;
    for (uint32_t i = 0; i < b->use.nhere; i++) {
        const cma_here *h = &b->use.here[i];
        uint64_t at;
        int rc = h->mem->parts ? g->ops->same(g, h->mem->parts, h->from, h->len, need, &at) : 0;
        if (rc)
            cma_note_changed(rail);
        if (rc) {
            cma_note_error(rail, "our GPU memory cannot be copied", -rc, NULL);
            return EREMCHG;
        }
    }
    return 0;
}

/* Copies. 0 or an errno. */
static int cma_bulk_start(cma_rail *rail, cma_bulk *b)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = {0};
    int err = check_here(rail, b);
    if (!err)
        err = cma_bulk_enter(b);
    if (err) {
        leave(b);
        return err;
    }
    int rc = g->ops->post(b->job, &b->work, &f);
    if (rc) {
        leave(b);
        cma_note_error(rail, "cannot post a GPU copy", -rc, &f);
        return EIO;
    }
    b->posted = 1;
    return 0;
}

static void ask(cma_bulk *b)
{
    uint32_t i = b->epoch - CMA_COPIERS, left = b->use.nrange - b->asked;
    b->asking = left < CMA_ASK_RANGES ? left : CMA_ASK_RANGES;
    memcpy(cma_question_of(b->ep, i)->range, b->use.range + b->asked, b->asking * sizeof(cma_range)); /* ours */
    cma_ask(b->ep, i, b->asking, b->write);
}

/* Takes the peer's answer. Memory that is not what we have mapped: the transfer goes through the owner's copies (EREMCHG), and the next one
 * maps it anew. */
static void take_answer(cma_rail *rail, cma_bulk *b)
{
    uint32_t place;
    int rc = cma_answer(b->ep, b->epoch - CMA_COPIERS, &place);
    if (rc == 0)
        return;
    if (rc > 0) {
        b->asked += b->asking;
        b->answered = b->asked == b->use.nrange;
        if (!b->answered)
            ask(b);
        return;
    }
    b->answered = 1;
    b->err = rc == -ECONNRESET ? ECONNRESET : EREMCHG;
    if (b->err == EREMCHG) {
        cma_note_error(rail, "the peer's GPU memory is no longer what was mapped", rc == -EFAULT ? GR_GPU_UNMAPPED : GR_GPU_CHANGED, NULL);
        if (place < b->asking)
            cma_import_stale(b->ep, b->use.range[b->asked + place].key);
    }
}

/* Makes room for what the job uses. */
static int cma_bulk_grow(cma_bulk *b, uint32_t n)
{
    if (n <= b->use.room)
        return 0;
    cma_range *range = GR_ALLOC(cma_bulk_ranges, realloc(b->use.range, n * sizeof(*range)));
    if (range)
        b->use.range = range;
    cma_here *mine = GR_ALLOC(cma_bulk_here, realloc(b->use.here, n * sizeof(*mine)));
    if (mine)
        b->use.here = mine;
    cma_import **on = GR_ALLOC(cma_bulk_imports, realloc(b->use.on, n * sizeof(*on)));
    if (on)
        b->use.on = on;
    if (!range || !mine || !on)
        return -EAGAIN;
    b->use.room = n;
    return 0;
}

/* Notes what the job uses, and counts it on its imports, which are all ready, so that they stay mapped. */
static int cma_bulk_hold(cma_ep *ep, cma_bulk *b, const gr_bulk *w, int device)
{
    int rc = cma_bulk_grow(b, w->nremote > w->nlocal ? w->nremote : w->nlocal);
    if (rc)
        return rc;
    b->use.nhere = b->use.nrange = 0;
    b->regions = 0;
    for (uint32_t i = 0; i < w->nlocal; i++)
        b->regions |= ((const cma_vram *)w->local[i].desc)->region;
    for (uint32_t i = 0; i < w->nlocal; i++)
        if (w->local[i].to > w->local[i].from)
            b->use.here[b->use.nhere++] = (cma_here){w->local[i].desc, w->local[i].from, w->local[i].to - w->local[i].from};
    for (b->use.n = 0; b->use.n < w->nremote; b->use.n++) {
        const gr_bulk_region *r = &w->remote[b->use.n];
        (b->use.on[b->use.n] = cma_import_of(ep, r, device, &rc))->jobs++;
        if (r->to > r->from)
            b->use.range[b->use.nrange++] = (cma_range){.key = r->key, .addr = r->from, .len = r->to - r->from};
    }
    return 0;
}

/* Asks, and copies or waits. 0 or an errno. */
static int cma_bulk_begin(cma_rail *rail, cma_bulk *b, int op, const gr_bulk *w, const cma_import *first)
{
    b->write = op != GR_READ;
    b->stopped = b->posted = b->under_way = b->err = 0;
    b->asked = b->asking = 0;
    b->late_ns = 0;
    b->answered = b->use.nrange == 0;
    b->work = (gr_gpu_work){.ops = w->ops, .nops = (uint32_t)w->nops, .write = b->write, .how = rail->gpu.how,
                            .bytes = w->bytes, .delta = first->delta};
    if (w->nremote > 1)
        b->work.table = rail->gpu.deltas[first->device];
    if (!b->answered)
        ask(b);
    /* our own memory at its own address: a kernel must not touch it before we know that it is mapped */
    return b->answered || (!b->write && !b->ep->peer.self) ? cma_bulk_start(rail, b) : 0;
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
    if (rc == -EAGAIN || rc == -ENOTSUP || rc == -EREMCHG)
        return rc;
    if (rc) { /* EACCES: revoked meanwhile, as in cma_bulk_enter. Else the operation fails, as any copy would */
        gr_ready_owe(&rail->ready);
        cma_complete(rail, ctx, rc == -EACCES ? EREMCHG : -rc, 0);
        return 0;
    }
    if (busy == (1u << CMA_BULKS) - 1)
        return -EAGAIN;
    cma_bulk *b = take_free(rail, here->device, first->peer, &rc);
    if (!b)
        return rc;
    if ((rc = cma_bulk_hold(ep, b, w, here->device))) {
        put_free(b);
        return rc;
    }
    uint32_t free = (uint32_t)__builtin_ctz(~busy);
    b->ep = ep;
    b->ctx = ctx;
    b->ops_freed = 0;
    b->epoch = CMA_COPIERS + free;
    ep->gpu.epochs |= 1u << free;
    gr_ready_owe(&rail->ready);
    b->err = cma_bulk_begin(rail, b, op, w, first);
    if (b->err) {
        int err = b->err;
        cma_bulk_release(b);
        cma_complete(rail, ctx, err, 0);
        return 0;
    }
    b->next = rail->gpu.bulks;
    rail->gpu.bulks = b;
    return 0;
}

static void cma_bulk_halt(gr_gpu *g, cma_bulk *b)
{
    if (b->posted && b->under_way && !b->stopped)
        g->ops->cancel(b->job);
    b->stopped = 1;
}

/* Looks at the copy: its result is in err. */
static void poll_job(cma_rail *rail, cma_bulk *b)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_fault f = {0};
    int rc = g->ops->poll(b->job, &f);
    int closed = atomic_load(&b->ep->peer.shm->closed);
    if (rc > 0) {
        if (closed || b->err) /* the closing peer waits for the job */
            cma_bulk_halt(g, b);
        return;
    }
    leave(b);
    if (rc && rc != -GR_GPU_CANCELLED)
        cma_note_error(rail, "GPU copy failed", -rc, &f);
    if (rc && !b->err)
        b->err = rc != -GR_GPU_CANCELLED ? EIO : closed ? ECONNRESET : ECANCELED;
}

/* One step of a job; 1: it has ended. */
static int cma_bulk_step(cma_rail *rail, cma_bulk *b)
{
    if (b->posted && b->under_way)
        poll_job(rail, b);
    if (!b->answered && !b->err)
        take_answer(rail, b);
    if (b->under_way)
        return 0;
    if (b->stopped && !b->err && !(b->posted && b->answered))
        b->err = ECANCELED;
    if (!b->err && b->answered && !b->posted)
        b->err = cma_bulk_start(rail, b);
    return b->err || (b->answered && !b->under_way);
}

static void poll_jobs(cma_rail *rail, cma_bulk **at)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    for (cma_bulk *b; (b = *at);) {
        if (!cma_bulk_step(rail, b)) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        cma_ep *ep = b->ep;
        gr_ctx *ctx = b->ctx;
        int err = b->err, ops_freed = b->ops_freed;
        const void *ops = b->work.ops;
        cma_bulk_release(b);
        cma_import_sweep(ep);
        if (ctx) {
            cma_complete(rail, ctx, err, 0);
            continue;
        }
        if (ops_freed && !cma_ops_kept(rail, ops))
            g->ops->free(g, (void *)(uintptr_t)ops);
        atomic_fetch_sub(&rail->gpu.nkept, 1);
        cma_ep_job_ended(ep);
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

int cma_bulk_busy(const cma_rail *rail)
{
    uint32_t place;
    for (cma_bulk *b = rail->gpu.bulks; b; b = b->next)
        if (b->under_way || b->stopped || b->answered || cma_answer(b->ep, b->epoch - CMA_COPIERS, &place))
            return 1;
    return 0;
}

void cma_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx)
{
    cma_rail *rail = (cma_rail *)base;
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    for (cma_bulk *b = rail->gpu.bulks; b; b = b->next)
        if (b->ep == ep && (!ctx || b->ctx == ctx))
            cma_bulk_halt(g, b);
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

static void free_retired(cma_rail *rail)
{
    for (cma_vram *v; (v = rail->gpu.retired);) {
        rail->gpu.retired = v->next;
        free(v);
    }
}

void cma_vram_retire(cma_rail *rail, cma_vram *v)
{
    gr_rail_lock(&rail->base);
    v->next = rail->gpu.retired;
    rail->gpu.retired = v;
    if (!rail->gpu.bulks)
        free_retired(rail);
    gr_rail_unlock(&rail->base);
}

void cma_bulk_close(cma_rail *rail)
{
    free_retired(rail);
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    if (rail->gpu.kept) /* a GPU may still use all of it */
        return;
    for (cma_pair *p = rail->gpu.pairs, *next; p; p = next) {
        next = p->next;
        for (cma_bulk *b = p->free, *more; b; b = more) {
            more = b->next;
            (void)g->ops->job_free(b->job);
            free(b->use.on);
            free(b->use.range);
            free(b->use.here);
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
