/* The lifecycle of the core and of its rails. */
#include "progress.h"

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
    if (dev->shared_ep && !(rail->shared = GR_ALLOC(core_rail_shared, calloc(1, sizeof *rail->shared)))) {
        free(rail);
        return -ENOMEM;
    }
    if (rail->shared) {
        rail->shared->rail = rail;
        rail->shared->ep.handle = dev->shared_ep;
        rail->shared->halted = sub_evict_idle;
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
