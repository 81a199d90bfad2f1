/* Imports: peers' memory as our GPUs see it. The mapper (shm/mapper.go) maps a region when a transfer first needs it.
 * The mapping lasts until the peer revokes the region, its metadata is unloaded, or the endpoint is closed. This is C
 * because each post looks up its regions here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cma.h"

static int delta_of(cma_rail *rail, const cma_import *m, uint64_t delta, gr_gpu_fault *f)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    gr_gpu_table **t = &rail->gpu.deltas[m->device];
    int rc = *t ? 0 : g->ops->table(g, m->device, t, f);
    return rc ? rc : g->ops->entry(*t, m->index, delta, f);
}

int cma_import_finish(cma_rail *rail, cma_import *m, int why, uint64_t delta)
{
    gr_gpu_fault f = {0};
    if (!why && (why = -delta_of(rail, m, delta, &f)))
        cma_note_error(rail, "cannot map the peer's GPU memory", why, f.why == why ? &f : NULL);
    m->delta = delta;
    m->why = why;
    atomic_fetch_sub(&rail->mapper.opening, 1);
    atomic_store(&m->state, why ? CMA_FAILED : CMA_READY);
    return why;
}

void cma_import_abandon(cma_rail *rail) { atomic_fetch_sub(&rail->mapper.opening, 1); }
void cma_import_free(cma_import *m) { free(m); }

cma_import *cma_task_import(cma_task *task)
{
    return (cma_import *)(void *)((char *)task - (task->what == CMA_END ? offsetof(cma_import, end) : offsetof(cma_import, begin)));
}

/* Moves the imports of a region to ep->gpu.left. They are unmapped when no job uses them. With the rail locked. */
static void detach(cma_ep *ep, uint32_t index)
{
    while (ep->gpu.import[index]) {
        cma_import *m = ep->gpu.import[index];
        ep->gpu.import[index] = m->next;
        m->next = ep->gpu.left;
        ep->gpu.left = m;
    }
}

void cma_import_sweep(cma_ep *ep)
{
    for (cma_import **at = &ep->gpu.left, *m; (m = *at);) {
        if (m->jobs) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        cma_mapper_add(ep->rail, &m->end);
    }
}

int cma_import_drop(cma_ep *ep, uint32_t index)
{
    gr_rail_lock(&ep->rail->base);
    int there = index < ep->gpu.imports && ep->gpu.import[index];
    if (there) {
        detach(ep, index);
        cma_import_sweep(ep);
    }
    gr_rail_unlock(&ep->rail->base);
    return there;
}

void cma_import_stale(cma_ep *ep, uint64_t key)
{
    for (uint32_t i = 0; i < ep->gpu.imports; i++)
        if (ep->gpu.import[i] && ep->gpu.import[i]->key == key)
            detach(ep, i);
    cma_import_sweep(ep);
}

void cma_import_close(cma_ep *ep)
{
    for (uint32_t i = 0; i < ep->gpu.imports; i++)
        detach(ep, i);
    cma_import_sweep(ep);
}

/* Makes room for that region number. */
static int imports_room(cma_ep *ep, uint32_t index)
{
    uint32_t n = ep->gpu.imports ? ep->gpu.imports : 64;
    while (n <= index)
        n *= 2;
    if (n == ep->gpu.imports)
        return 0;
    cma_import **more = GR_ALLOC(cma_imports, realloc(ep->gpu.import, n * sizeof(cma_import *)));
    if (!more)
        return -EAGAIN;
    for (uint32_t i = ep->gpu.imports; i < n; i++)
        more[i] = NULL;
    ep->gpu.import = more;
    ep->gpu.imports = n;
    return 0;
}

/* Copies the peer's share of the region, and checks that the share belongs to the region's current generation. */
static int read_share(const cma_ep *ep, const gr_bulk_region *r, gr_gpu_share *out)
{
    int err = cma_allowed(ep->peer.table, r->key, r->addr, r->len);
    if (err)
        return -err;
    uint64_t place = atomic_load(&ep->peer.table[(uint32_t)r->key].share);
    if (place > CMA_SHARES && place != CMA_FILE)
        return -EPROTO;
    if (place == 0 || place == CMA_FILE) {
        cma_note_error(ep->rail, "the peer's region is no GPU memory", GR_GPU_HOST, NULL);
        return -ENOTSUP;
    }
    *out = *(const volatile gr_gpu_share *)&ep->peer.shares->share[place - 1];
    if (r->addr < out->base || r->addr - out->base > out->size || r->len > out->size - (r->addr - out->base)) {
        cma_note_error(ep->rail, "the peer's range is outside its GPU memory", GR_GPU_BAD_SHARE, NULL);
        return -ENOTSUP;
    }
    atomic_thread_fence(memory_order_acquire); /* so that the copy is of the generation that the next check sees */
    return -cma_allowed(ep->peer.table, r->key, r->addr, r->len);
}

/* The process that a share comes from, so that its mapping is shared with endpoints to that process alone. A process of another pid
 * namespace has no number here: such a mapping is shared within the endpoint. Process numbers have 22 bits. With the rail locked. */
static uint32_t source_of(cma_ep *ep)
{
    static _Atomic uint32_t others;
    if (!ep->gpu.source)
        ep->gpu.source = ep->peer.pid > 0 ? (uint32_t)ep->peer.pid : 1u << 31 | (atomic_fetch_add(&others, 1) & ~(1u << 31));
    return ep->gpu.source;
}

static int request(cma_ep *ep, const gr_bulk_region *r, int device)
{
    int rc = imports_room(ep, r->index);
    cma_import *m = rc ? NULL : GR_ALLOC(cma_import, calloc(1, sizeof(*m)));
    if (!m)
        return -EAGAIN;
    rc = read_share(ep, r, &m->share);
    memcpy(m->server_place, ep->peer.shares->place, CMA_PLACE); /* ours */
    memcpy(m->server_token, ep->peer.shares->token, CMA_TOKEN); /* ours */
    m->why = m->share.how ? 0 : m->share.pad < GR_GPU_WHY_COUNT ? (int)m->share.pad : GR_GPU_BAD_SHARE;
    m->pid = ep->peer.pid;
    m->share.pad = source_of(ep);
    m->begin.what = CMA_BEGIN;
    m->end.what = CMA_END;
    m->key = r->key;
    m->index = r->index;
    m->self = ep->peer.self;
    m->device = device;
    if (rc) {
        free(m);
        return rc;
    }
    atomic_fetch_add(&ep->rail->mapper.opening, 1);
    cma_mapper_add(ep->rail, &m->begin);
    m->next = ep->gpu.import[r->index];
    ep->gpu.import[r->index] = m;
    return -EAGAIN;
}

/* Whether a failure may pass by itself. The other reasons last until the peer registers the memory again. */
static int transient(int why)
{
    return why == GR_GPU_NO_FDS || why == GR_GPU_NO_MEMORY || why == GR_GPU_SILENT || why == GR_GPU_REFUSED || why == GR_GPU_DRIVER ||
           why == GR_GPU_CANCELLED;
}

cma_import *cma_import_of(cma_ep *ep, const gr_bulk_region *r, int device, int *rc)
{
    cma_import *m = r->index < ep->gpu.imports ? ep->gpu.import[r->index] : NULL;
    if (m && m->key != r->key) { /* the number now belongs to another region */
        detach(ep, r->index);
        cma_import_sweep(ep);
        m = NULL;
    }
    while (m && m->device != device)
        m = m->next;
    if (!m) {
        *rc = request(ep, r, device);
        return NULL;
    }
    int state = atomic_load(&m->state);
    if (state == CMA_READY)
        return m;
    *rc = state != CMA_FAILED ? -EAGAIN : gr_gpu_changed(m->why) ? -EREMCHG : -ENOTSUP;
    if (state == CMA_FAILED && (transient(m->why) || gr_gpu_changed(m->why))) { /* imports for our other GPUs are requested again, too */
        detach(ep, r->index);
        cma_import_sweep(ep);
    }
    return NULL;
}
