/* Peers' memory as our GPUs see it: mapped when a transfer first wants it, by the mapper, and kept until the peer takes it back, its
 * metadata is unloaded or the endpoint is closed. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "local.h"

static int delta_of(lc_rail *rail, gr_gpu *g, lc_import *m, gr_gpu_fault *f)
{
    gr_gpu_table **t = &rail->deltas[m->device];
    int rc = *t ? 0 : g->ops->table(g, m->device, t, f);
    return rc ? rc : g->ops->entry(*t, m->index, m->delta, f);
}

/* 1: its owner has to send something, or somebody else brings that. */
static int map(gr_gpu *g, lc_import *m, gr_gpu_fault *f)
{
    int ours = memcmp(m->share.owner, g->owner, sizeof(g->owner)) == 0;
    if (!m->share.how) /* nobody else can have it; here it is where it is */
        return m->self && m->peer == m->device ? 0 : m->why ? -m->why : -GR_GPU_BAD_SHARE;
    if (ours && !m->self) /* a peer that says that its memory is ours would have us write where we like to be */
        return -GR_GPU_BAD_SHARE;
    int rc = g->ops->map(g, &m->share, m->device, &m->map, &m->feeder, f);
    return rc ? rc : 1;
}

static void unmap(lc_rail *rail, lc_import *m)
{
    gr_gpu *g = atomic_load(&rail->gpu);
    if (m->map)
        (void)g->ops->unmap(g, m->map, NULL);
    m->map = NULL;
}

/* One step more: 1, or how it has ended. Whoever brought the pieces may have been told to stop: then somebody else does it. */
static int advance(lc_rail *rail, gr_gpu *g, lc_import *m, gr_gpu_fault *f)
{
    int rc = m->map ? 1 : map(g, m, f);
    if (rc == 1 && m->feeder && atomic_load(&m->map->state) == GR_GPU_MAP_OPENING && (rc = lc_fetch(g, m, f)) < 0)
        g->ops->map_fail(g, m->map, -rc);
    if (m->map && rc >= 0) {
        int state = atomic_load(&m->map->state);
        m->delta = m->map->at - m->share.base;
        rc = state == GR_GPU_MAP_OPENING ? 1 : state == GR_GPU_MAP_READY ? 0 : -m->map->why;
    }
    if (rc == -GR_GPU_CANCELLED && lc_now() < m->until) {
        unmap(rail, m);
        lc_fetch_end(m);
        return 1;
    }
    return rc ? rc : delta_of(rail, g, m, f);
}

static void settle(lc_rail *rail, lc_import *m, int rc, gr_gpu_fault *f)
{
    lc_fetch_end(m);
    if (rc) {
        lc_trouble(rail, "the peer's GPU memory can't be mapped here", -rc, f->why == -rc ? f : NULL);
        unmap(rail, m);
    }
    m->why = -rc;
    atomic_fetch_sub(&rail->mapper.opening, 1);
    atomic_store(&m->state, rc ? LC_FAILED : LC_READY);
}

static void begin(lc_rail *rail, lc_task *task)
{
    lc_import *m = (lc_import *)(void *)task;
    gr_gpu *g = atomic_load(&rail->gpu);
    gr_gpu_fault f = { 0 };
    m->peer = g->ops->find(g, m->share.gpu);
    m->until = lc_now() + (uint64_t)LC_PATIENCE_S * 1000000000;
    int rc = advance(rail, g, m, &f);
    if (rc != 1) {
        settle(rail, m, rc, &f);
        return;
    }
    m->parked = rail->mapper.parked;
    rail->mapper.parked = m;
}

/* Whether it was parked. */
static int unpark(lc_rail *rail, lc_import *m)
{
    lc_import **at = &rail->mapper.parked;
    while (*at && *at != m)
        at = &(*at)->parked;
    if (!*at)
        return 0;
    *at = m->parked;
    return 1;
}

void lc_import_step(lc_rail *rail)
{
    enum { AT_ONCE = 64, NAP_MS = 1 };
    gr_gpu *g = atomic_load(&rail->gpu);
    struct pollfd p[AT_ONCE];
    nfds_t n = 0;
    for (lc_import *m = rail->mapper.parked; m && n < AT_ONCE; m = m->parked)
        if (m->met)
            p[n++] = (struct pollfd){ .fd = m->sock, .events = POLLIN };
    (void)poll(p, n, NAP_MS);
    for (lc_import *m = rail->mapper.parked, *next; m; m = next) {
        gr_gpu_fault f = { 0 };
        next = m->parked;
        int rc = advance(rail, g, m, &f);
        if (rc != 1) {
            (void)unpark(rail, m);
            settle(rail, m, rc, &f);
        }
    }
}

static void end(lc_rail *rail, lc_task *task)
{
    lc_import *m = (lc_import *)(void *)((char *)task - offsetof(lc_import, end));
    gr_gpu *g = atomic_load(&rail->gpu);
    if (unpark(rail, m)) {
        atomic_fetch_sub(&rail->mapper.opening, 1);
        lc_fetch_end(m);
        if (m->feeder && m->map)
            g->ops->map_fail(g, m->map, GR_GPU_CANCELLED);
    }
    unmap(rail, m);
    free(m);
}

/* With the rail locked: what is left unmaps when no job is at it. */
static void detach(lc_ep *ep, uint32_t index)
{
    while (ep->import[index]) {
        lc_import *m = ep->import[index];
        ep->import[index] = m->next;
        m->next = ep->left;
        ep->left = m;
    }
}

void lc_import_sweep(lc_ep *ep)
{
    for (lc_import **at = &ep->left, *m; (m = *at);) {
        if (m->jobs) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        (void)lc_mapper_add(ep->rail, &m->end); /* the thread is there: it has begun it */
    }
}

void lc_import_drop(lc_ep *ep, uint32_t index)
{
    gr_rail_lock(&ep->rail->base);
    int there = index < ep->imports && ep->import[index];
    if (there) {
        detach(ep, index);
        lc_import_sweep(ep);
    }
    gr_rail_unlock(&ep->rail->base);
    if (there)
        lc_mapper_wait(ep->rail);
}

void lc_import_close(lc_ep *ep)
{
    for (uint32_t i = 0; i < ep->imports; i++)
        detach(ep, i);
    lc_import_sweep(ep);
}

/* Room for that number. */
static int room(lc_ep *ep, uint32_t index)
{
    uint32_t n = ep->imports ? ep->imports : 64;
    while (n <= index)
        n *= 2;
    if (n == ep->imports)
        return 0;
    lc_import **more = realloc(ep->import, n * sizeof(lc_import *));
    if (!more)
        return -EAGAIN;
    for (uint32_t i = ep->imports; i < n; i++)
        more[i] = NULL;
    ep->import = more;
    ep->imports = n;
    return 0;
}

/* What the peer says of the region, copied once. */
static int look(const lc_ep *ep, const gr_bulk_region *r, gr_gpu_share *out)
{
    int err = lc_allowed(ep->table, r->key, r->addr, r->len);
    if (err)
        return -err;
    uint64_t place = atomic_load(&ep->table[(uint32_t)r->key].share);
    if (place > LC_SHARES)
        return -EPROTO;
    if (place == 0) {
        lc_trouble(ep->rail, "between a GPU here and the peer's memory", GR_GPU_HOST, NULL);
        return -ENOTSUP;
    }
    *out = *(const volatile gr_gpu_share *)&ep->shares->share[place - 1];
    if (r->addr < out->base || r->addr - out->base > out->size || r->len > out->size - (r->addr - out->base)) {
        lc_trouble(ep->rail, "the peer's GPU memory", GR_GPU_BAD_SHARE, NULL);
        return -ENOTSUP;
    }
    atomic_thread_fence(memory_order_acquire); /* what was copied is of that generation */
    return -lc_allowed(ep->table, r->key, r->addr, r->len);
}

static int ask(lc_ep *ep, const gr_bulk_region *r, int device)
{
    int rc = room(ep, r->index);
    lc_import *m = rc ? NULL : calloc(1, sizeof(*m));
    if (!m)
        return -EAGAIN;
    rc = look(ep, r, &m->share);
    m->feed_len = *(const volatile uint8_t *)&ep->shares->name_len;
    m->feed_len = m->feed_len < sizeof(m->feed_name) ? m->feed_len : sizeof(m->feed_name);
    memcpy(m->feed_name, ep->shares->name, sizeof(m->feed_name));
    memcpy(m->feed_token, ep->shares->token, LC_TOKEN);
    m->why = m->share.how ? 0 : m->share.pad < GR_GPU_WHY_COUNT ? (int)m->share.pad : GR_GPU_BAD_SHARE;
    m->share.pad = (uint32_t)ep->pid; /* by whose word: no other's mapping is taken for it */
    m->sock = -1;
    m->begin.run = begin;
    m->end.run = end;
    m->key = r->key;
    m->index = r->index;
    m->self = ep->self;
    m->device = device;
    atomic_fetch_add(&ep->rail->mapper.opening, 1);
    if (rc || (rc = lc_mapper_add(ep->rail, &m->begin))) {
        atomic_fetch_sub(&ep->rail->mapper.opening, 1);
        free(m);
        return rc;
    }
    m->next = ep->import[r->index];
    ep->import[r->index] = m;
    return -EAGAIN;
}

/* What may be otherwise the next time. The rest is so until the peer registers the memory anew. */
static int passing(int why)
{
    return why == GR_GPU_NO_FDS || why == GR_GPU_NO_MEMORY || why == GR_GPU_SILENT || why == GR_GPU_REFUSED || why == GR_GPU_DRIVER ||
           why == GR_GPU_CANCELLED;
}

lc_import *lc_import_of(lc_ep *ep, const gr_bulk_region *r, int device, int *rc)
{
    lc_import *m = r->index < ep->imports ? ep->import[r->index] : NULL;
    if (m && m->key != r->key) { /* another region that has the number now */
        detach(ep, r->index);
        lc_import_sweep(ep);
        m = NULL;
    }
    while (m && m->device != device)
        m = m->next;
    if (!m) {
        *rc = ask(ep, r, device);
        return NULL;
    }
    int state = atomic_load(&m->state);
    if (state == LC_READY)
        return m;
    *rc = state == LC_FAILED ? -ENOTSUP : -EAGAIN;
    if (state == LC_FAILED && passing(m->why)) { /* those for our other GPUs are asked for anew, too */
        detach(ep, r->index);
        lc_import_sweep(ep);
    }
    return NULL;
}
