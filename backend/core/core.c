/* The lifecycle of the core and of its rails, and their counters. */
#include "control.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

gr_core *gr_core_new(const gr_core_cfg *cfg)
{
    gr_core *core = GR_ALLOC(core_new, calloc(1, sizeof *core));
    if (!core)
        return NULL;
    core->cfg = *cfg;
    if (core->cfg.max_rails > MAX_RAILS)
        core->cfg.max_rails = MAX_RAILS;
    core->regions.size = sizeof(gr_region) + core->cfg.max_rails * sizeof(gr_rail_key);
    pthread_mutex_init(&core->slots.mu, NULL);
    pthread_mutex_init(&core->ready.mu, NULL);
    pthread_mutex_init(&core->events.mu, NULL);
    core->events.fd = GR_CALL(core_event_fd, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    int rc = core->events.fd < 0 ? -errno : worker_start(core, 0);
    if (rc == 0)
        return core;
    gr_core_free(core);
    errno = -rc;
    return NULL;
}

void gr_core_stop(gr_core *core)
{
    atomic_store(&core->stop, 1);
    core_wake(core);
    workers_join(core);
}

int gr_core_reserve_rail(gr_core *core) { return core->nrails < (int)core->cfg.max_rails ? core->nrails++ : -ENOSPC; }

int gr_core_add_rail(gr_core *core, gr_rail *dev)
{
    int rc = core->nrails < (int)core->cfg.max_rails ? gr_core_set_rail(core, core->nrails, dev) : -ENOSPC;
    return rc == 0 ? core->nrails++ : rc;
}

int gr_core_set_rail(gr_core *core, int index, gr_rail *dev)
{
    rail_st *rail = GR_ALLOC(core_rail, calloc(1, sizeof *rail));
    if (!rail)
        return -ENOMEM;
    rail->core = core;
    rail->dev = dev;
    rail->index = index;
    int rc = worker_start(core, dev->worker);
    if (rc != 0) {
        free(rail);
        return rc;
    }
    const struct worker *thread = &core->workers[dev->worker];
    dev->thread = thread->id;
    TAILQ_INIT(&rail->busy);
    if (dev->shared_ep && !(rail->shared = GR_ALLOC(core_rail_shared, calloc(1, sizeof *rail->shared)))) {
        free(rail);
        return -ENOMEM;
    }
    if (rail->shared) {
        rail->shared->rail = rail;
        rail->shared->ep.handle = dev->shared_ep;
    }
    if (dev->wait_fd >= 0) {
        struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.fd = dev->wait_fd};
        if (GR_CALL(core_rail_epoll, epoll_ctl(thread->epoll_fd, EPOLL_CTL_ADD, dev->wait_fd, &ev)) != 0) {
            int e = errno;
            free(rail->shared);
            free(rail);
            return -e;
        }
    }
    gr_rail_lock(dev);
    dev->core = rail;
    dev->kick = rail_kick;
    gr_rail_unlock(dev);
    atomic_store(&core->rails[index], rail);
    rail_wake(rail);
    return 0;
}

/* Unregisters a rail's message buffers. Their memory stays while posted operations may use it. */
static void rail_unregister(rail_st *rail)
{
    if (rail->dev->ops->shut) {
        gr_rail_lock(rail->dev);
        rail->dev->ops->shut(rail->dev);
        gr_rail_unlock(rail->dev);
    }
    for (struct slab *s = rail->mem.slabs; s; s = s->next)
        if (s->mr) {
            gr_rail_lock(rail->dev);
            rail->dev->ops->unreg(rail->dev, s->mr);
            gr_rail_unlock(rail->dev);
        }
}

static void rail_free(rail_st *rail)
{
    for (buf *b = rail->mem.untaken; b; b = b->next)
        sess_unref(b->sess);
    while (rail->mem.slabs) {
        struct slab *s = rail->mem.slabs;
        rail->mem.slabs = s->next;
        free(s->bufs);
        free(s->mem);
        free(s);
    }
    ctx *lists[3] = {rail->mem.free_ctx, rail->mem.orphans, rail->shared ? rail->shared->ep.posted : NULL};
    for (int i = 0; i < 3; i++)
        for (ctx *c = lists[i], *n; c; c = n) {
            n = c->next;
            free(c);
        }
    for (batch *r = rail->mem.free_batch, *n; r; r = n) {
        n = r->next;
        free(r);
    }
    for (msg *m = rail->mem.free_msg, *n; m; m = n) {
        n = m->next;
        free(m);
    }
    free(rail->shared);
    free(rail);
}

void gr_core_drop_rails(gr_core *core)
{
    for (struct xfer_block *b = core->slots.blocks; b; b = b->next)
        for (size_t i = 0; i < sizeof b->x / sizeof b->x[0]; i++)
            bulk_free(&b->x[i]);
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (!rail)
            continue;
        if (rail->dev->wait_fd >= 0)
            epoll_ctl(core->workers[rail->dev->worker].epoll_fd, EPOLL_CTL_DEL, rail->dev->wait_fd, NULL);
        rail_unregister(rail);
        rail->dev->kick = NULL;
        rail->dev->core = NULL;
        rail->next = core->dropped;
        core->dropped = rail;
        core->rails[i] = NULL;
    }
    core->nrails = 0;
}

void gr_core_free(gr_core *core)
{
    gr_core_drop_rails(core);
    for (rail_st *rail = core->dropped, *n; rail; rail = n) {
        n = rail->next;
        rail_free(rail);
    }
    gr_notif_free(core, core->ready.first);
    struct event_node *events[2] = {core->events.first, core->events.spare};
    for (int i = 0; i < 2; i++)
        for (struct event_node *e = events[i], *n; e; e = n) {
            n = e->next;
            if (e->sess) {
                free(e->ev.data);
                sess_unref(e->sess);
            }
            free(e);
        }
    for (struct xfer_block *b = core->slots.blocks, *n; b; b = n) {
        n = b->next;
        for (size_t i = 0; i < sizeof b->x / sizeof b->x[0]; i++) {
            free(b->x[i].pub.ops);
            free(b->x[i].subs);
            msg_body_free(&b->x[i].msg);
        }
        free(b);
    }
    for (int i = 0; i < core->slots.spare.n; i++)
        free(core->slots.spare.block[i].ops);
    for (gr_link *l = LIST_FIRST(&core->slots.links), *n; l; l = n) {
        n = LIST_NEXT(l, list);
        free(l);
    }
    for (int i = 0; i < REGION_CHUNKS; i++)
        free(core->regions.chunk[i]);
    if (core->events.fd >= 0)
        close(core->events.fd);
    workers_free(core);
    free(core->traces);
    free(core);
}

void gr_crossed(gr_core *core, int which) { COUNT(core, GR_C_CROSS + which, 1); }

/* ---- Reads the counters without a lock: see link_count. */

static uint64_t load(const _Atomic uint64_t *c) { return atomic_load_explicit(c, memory_order_relaxed); }

static void copy(const _Atomic uint64_t *count, uint64_t *out)
{
    for (int i = 0; i < GR_N_COUNT; i++)
        out[i] = load(&count[i]);
}

void gr_link_tally(gr_link *link, gr_tally *out)
{
    copy(link->count, out->count);
    out->inflight = load(&link->win.load);
    out->rate = load(&link->win.rate_pub);
    out->last_ns = load(&link->last_ns);
    out->links = 1;
}

void gr_rail_tally(gr_core *core, int idx, gr_tally *out)
{
    rail_st *rail = core->rails[idx];
    *out = (gr_tally){0};
    if (!rail)
        return;
    copy(rail->count, out->count);
    out->inflight = load(&rail->load);
    out->last_ns = rail_now(rail);
    out->links = (uint32_t)atomic_load_explicit(&rail->nlinks, memory_order_relaxed);
}

void gr_rail_times(gr_core *core, int idx, uint64_t out[GR_TIME_CLASSES][GR_TIME_BUCKETS])
{
    rail_st *rail = core->rails[idx];
    for (int c = 0; c < GR_TIME_CLASSES; c++)
        for (int b = 0; b < GR_TIME_BUCKETS; b++)
            out[c][b] = rail ? load(&rail->times[c][b]) : 0;
}

/* Adds up the counters that only rails count, so that the hot path counts each only once. */
void gr_counters(gr_core *core, uint64_t *out)
{
    static const struct {
        int core, rail;
    } sums[] = {{GR_C_WRS, GR_N_WRS},       {GR_C_ERRORS, GR_N_ERRORS},           {GR_C_ERRORS, GR_N_FLUSHED},
                {GR_C_EAGAIN, GR_N_EAGAIN}, {GR_C_WRITE_BYTES, GR_N_WRITE_BYTES}, {GR_C_READ_BYTES, GR_N_READ_BYTES}};
    for (int i = 0; i < GR_C_COUNT; i++)
        out[i] = load(&core->count[i]);
    for (int i = 0, n = core->nrails; i < n; i++) {
        rail_st *rail = core->rails[i];
        for (size_t k = 0; rail && k < sizeof sums / sizeof sums[0]; k++)
            out[sums[k].core] += load(&rail->count[sums[k].rail]);
    }
}

uint64_t gr_xfer_share(gr_xfer *pub, gr_link *link)
{
    xfer *x = (xfer *)pub;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < x->nsubs; i++)
        if (x->subs[i].link == link)
            bytes = atomic_load_explicit(&x->subs[i].bytes, memory_order_relaxed);
    return bytes;
}

uint32_t gr_xfer_paths(gr_xfer *pub, gr_path *out, uint32_t max)
{
    xfer *x = (xfer *)pub;
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->nsubs; i++) {
        subxfer *p = &x->subs[i];
        uint64_t bytes = atomic_load_explicit(&p->bytes, memory_order_relaxed);
        uint32_t k = 0;
        while (k < n && (out[k].own != p->own || out[k].peer != p->peer)) /* links over the same pair of rails count together */
            k++;
        if (k < n)
            out[k].bytes += bytes;
        else if (bytes && n < max)
            out[n++] = (gr_path){p->own, p->peer, bytes};
    }
    return n;
}
