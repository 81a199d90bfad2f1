/* Peers' memory as our GPUs see it: mapped when a transfer first wants it, by the mapper, and kept until the peer takes it back, its
 * metadata is unloaded or the endpoint is closed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "local.h"

static int delta_of(lc_rail *rail, gr_gpu *g, lc_import *m, gr_gpu_fault *f)
{
    gr_gpu_table **t = &rail->deltas[m->device];
    int rc = *t ? 0 : g->ops->table(g, m->device, t, f);
    return rc ? rc : g->ops->entry(*t, m->index, m->delta, f);
}

static int map(gr_gpu *g, lc_import *m, gr_gpu_fault *f)
{
    int feeder = 0;
    if (!m->share.how) /* nobody else can have it; here it is where it is */
        return m->self && m->peer == m->device ? 0 : m->share.pad ? -(int)m->share.pad : -GR_GPU_BAD_SHARE;
    int rc = g->ops->map(g, &m->share, m->device, &m->map, &feeder, f);
    if (rc)
        return rc;
    if (feeder && atomic_load(&m->map->state) == GR_GPU_MAP_OPENING && (rc = lc_feed(g, m, f))) {
        g->ops->map_fail(g, m->map, -rc);
        return rc;
    }
    while (atomic_load(&m->map->state) == GR_GPU_MAP_OPENING)
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    if (atomic_load(&m->map->state) == GR_GPU_MAP_FAILED)
        return -m->map->why;
    m->delta = m->map->at - m->share.base;
    return 0;
}

static void unmap(lc_rail *rail, lc_import *m)
{
    gr_gpu *g = atomic_load(&rail->gpu);
    if (m->map)
        (void)g->ops->unmap(g, m->map, NULL);
    m->map = NULL;
}

static void begin(lc_rail *rail, lc_task *task)
{
    lc_import *m = (lc_import *)(void *)task;
    gr_gpu *g = atomic_load(&rail->gpu);
    gr_gpu_fault f = { 0 };
    m->peer = g->ops->find(g, m->share.gpu);
    int rc = map(g, m, &f);
    if (!rc)
        rc = delta_of(rail, g, m, &f);
    if (rc) {
        lc_trouble(rail, "the peer's GPU memory can't be mapped here", -rc, f.why == -rc ? &f : NULL);
        unmap(rail, m);
    }
    atomic_store(&m->state, rc ? LC_FAILED : LC_READY);
}

static void end(lc_rail *rail, lc_task *task)
{
    lc_import *m = (lc_import *)(void *)((char *)task - offsetof(lc_import, end));
    unmap(rail, m);
    free(m);
}

/* With the rail locked: what is left unmaps when no job can be at it. */
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
    while (ep->left && !ep->bulk_lanes) {
        lc_import *m = ep->left;
        ep->left = m->next;
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
    m->begin.run = begin;
    m->end.run = end;
    m->key = r->key;
    m->index = r->index;
    m->self = ep->self;
    m->device = device;
    if (rc || (rc = lc_mapper_add(ep->rail, &m->begin))) {
        free(m);
        return rc;
    }
    m->next = ep->import[r->index];
    ep->import[r->index] = m;
    return -EAGAIN;
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
    return NULL;
}
