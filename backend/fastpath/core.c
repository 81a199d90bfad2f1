/* Lifecycle of the core, the region table, events for Go and notifications for the application. */
#define _GNU_SOURCE
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static _Atomic int in_child;

static void after_fork(void)
{
    atomic_store(&in_child, 1);
}

/* With the library, not with the first engine: Go's runtime is there from then on, and a child has none of its threads. */
__attribute__((constructor)) static void fork_setup(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

int gr_forked(void)
{
    return atomic_load_explicit(&in_child, memory_order_relaxed);
}

uint64_t gr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

gr_core *gr_core_new(const gr_core_cfg *cfg)
{
    gr_core *core = calloc(1, sizeof *core);
    if (!core)
        return NULL;
    core->cfg = *cfg;
    if (core->cfg.max_rails > MAX_RAILS)
        core->cfg.max_rails = MAX_RAILS;
    core->region_size = sizeof(gr_region) + core->cfg.max_rails * sizeof(gr_rkey);
    pthread_mutex_init(&core->slot_mu, NULL);
    pthread_mutex_init(&core->ready_mu, NULL);
    pthread_mutex_init(&core->ev_mu, NULL);
    core->ev_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    core->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    core->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = core->wake_fd};
    if (core->ev_fd < 0 || core->wake_fd < 0 || core->epoll_fd < 0 ||
        epoll_ctl(core->epoll_fd, EPOLL_CTL_ADD, core->wake_fd, &ev) != 0)
        goto fail;
    int rc = pthread_create(&core->thread, NULL, core_thread, core);
    if (rc != 0) {
        errno = rc;
        goto fail;
    }
    core->thread_up = 1;
    return core;
fail:
    rc = errno;
    gr_core_free(core);
    errno = rc;
    return NULL;
}

void core_wake(gr_core *core)
{
    uint64_t one = 1;
    ssize_t n = write(core->wake_fd, &one, sizeof one);
    (void)n; /* full means that a wake is pending already */
}

void gr_core_stop(gr_core *core)
{
    if (!core->thread_up)
        return;
    atomic_store(&core->stop, 1);
    core_wake(core);
    pthread_join(core->thread, NULL);
    core->thread_up = 0;
}

int gr_core_add_rail(gr_core *core, gr_rail *dev)
{
    if (core->nrails >= (int)core->cfg.max_rails)
        return -ENOSPC;
    rail_st *rail = calloc(1, sizeof *rail);
    if (!rail)
        return -ENOMEM;
    rail->core = core;
    rail->dev = dev;
    rail->index = core->nrails;
    if (dev->wait_fd >= 0) {
        struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.fd = dev->wait_fd};
        if (epoll_ctl(core->epoll_fd, EPOLL_CTL_ADD, dev->wait_fd, &ev) != 0) {
            int e = errno;
            free(rail);
            return -e;
        }
    }
    gr_rail_lock(dev);
    dev->core = rail;
    dev->kick = rail_kick;
    gr_rail_unlock(dev);
    core->rails[rail->index] = rail;
    atomic_thread_fence(memory_order_seq_cst);
    core->nrails++;
    core_wake(core);
    return rail->index;
}

static void rail_free(rail_st *rail)
{
    while (rail->slabs) {
        struct slab *s = rail->slabs;
        rail->slabs = s->next;
        if (s->mr) {
            gr_rail_lock(rail->dev);
            rail->dev->ops->unreg(rail->dev, s->mr);
            gr_rail_unlock(rail->dev);
        }
        free(s->bufs);
        free(s->mem);
        free(s);
    }
    ctx *lists[2] = {rail->free_ctx, rail->grave};
    for (int i = 0; i < 2; i++)
        for (ctx *c = lists[i], *n; c; c = n) {
            n = c->next;
            free(c);
        }
    free(rail);
}

void gr_core_drop_rails(gr_core *core)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (rail->dev->wait_fd >= 0)
            epoll_ctl(core->epoll_fd, EPOLL_CTL_DEL, rail->dev->wait_fd, NULL);
        rail->dev->kick = NULL;
        rail->dev->core = NULL;
        rail_free(rail);
        core->rails[i] = NULL;
    }
    core->nrails = 0;
}

struct xfer_block {
    struct xfer_block *next;
    xfer x[64];
};

void gr_core_free(gr_core *core)
{
    gr_core_drop_rails(core);
    gr_notif_free(core, core->ready);
    for (struct event_node *e = core->ev, *n; e; e = n) {
        n = e->next;
        free(e->ev.data);
        if (e->sess)
            sess_unref(e->sess);
        free(e);
    }
    for (struct xfer_block *b = core->blocks, *n; b; b = n) {
        n = b->next;
        for (size_t i = 0; i < sizeof b->x / sizeof b->x[0]; i++) {
            free(b->x[i].pub.ops);
            free(b->x[i].parts);
            free(b->x[i].msg.body);
        }
        free(b);
    }
    for (gr_link *l = core->free_links, *n; l; l = n) {
        n = l->next;
        free(l);
    }
    for (int i = 0; i < REGION_CHUNKS; i++)
        free(core->regions[i]);
    if (core->ev_fd >= 0)
        close(core->ev_fd);
    if (core->wake_fd >= 0)
        close(core->wake_fd);
    if (core->epoll_fd >= 0)
        close(core->epoll_fd);
    free(core);
}

/* Slots come in blocks that live as long as the core: a stale pointer of the shim's reads a passed handle, never freed memory. */
static xfer *slot_take(gr_core *core)
{
    pthread_mutex_lock(&core->slot_mu);
    if (!core->free_xfers) {
        struct xfer_block *b = calloc(1, sizeof *b);
        if (b) {
            b->next = core->blocks;
            core->blocks = b;
            for (size_t i = 0; i < sizeof b->x / sizeof b->x[0]; i++) {
                b->x[i].free_next = core->free_xfers;
                core->free_xfers = &b->x[i];
            }
        }
    }
    xfer *x = core->free_xfers;
    if (x)
        core->free_xfers = x->free_next;
    pthread_mutex_unlock(&core->slot_mu);
    return x;
}

gr_xfer *gr_xfer_new(gr_core *core, uint64_t handle, int op, uint64_t nops)
{
    if (nops > SIZE_MAX / sizeof(gr_op))
        return NULL;
    gr_op *ops = malloc(nops ? nops * sizeof *ops : 1);
    xfer *x = ops ? slot_take(core) : NULL;
    if (!x) {
        free(ops);
        return NULL;
    }
    x->core = core;
    x->op = op;
    x->pub.ops = ops;
    x->pub.nops = nops;
    atomic_store(&x->pub.state, 0);
    x->nparts = 0;
    atomic_store(&x->pub.err, 0);
    atomic_store(&x->pub.parts_left, 0);
    atomic_store(&x->pub.handle, handle);
    return &x->pub;
}

void gr_xfer_free(gr_core *core, gr_xfer *pub)
{
    xfer *x = (xfer *)pub;
    atomic_store(&pub->handle, 0);
    free(pub->ops);
    pub->ops = NULL;
    pub->nops = 0;
    pthread_mutex_lock(&core->slot_mu);
    x->free_next = core->free_xfers;
    core->free_xfers = x;
    pthread_mutex_unlock(&core->slot_mu);
}

gr_region *gr_region_at(gr_core *core, uint32_t idx)
{
    uint32_t c = idx / REGION_CHUNK;
    if (c >= REGION_CHUNKS)
        return NULL;
    char *chunk = atomic_load_explicit(&core->regions[c], memory_order_acquire);
    if (!chunk) {
        pthread_mutex_lock(&core->slot_mu);
        chunk = atomic_load(&core->regions[c]);
        if (!chunk) {
            chunk = calloc(REGION_CHUNK, core->region_size);
            atomic_store(&core->regions[c], chunk);
        }
        pthread_mutex_unlock(&core->slot_mu);
        if (!chunk)
            return NULL;
    }
    return (gr_region *)(void *)(chunk + (size_t)(idx % REGION_CHUNK) * core->region_size);
}

void gr_region_live(gr_region *region, int live)
{
    atomic_store(&region->live, (uint32_t)live);
}

void core_event(gr_core *core, const gr_event *ev, gr_sess *sess)
{
    struct event_node *n = malloc(sizeof *n);
    if (!n)
        abort(); /* an event lost would be a hang; 80 bytes not to be had means the process is gone anyway */
    n->ev = *ev;
    n->next = NULL;
    n->sess = sess;
    if (sess) {
        atomic_fetch_add(&sess->refs, 1);
        atomic_fetch_add(&sess->handed_bytes, ev->len + OVERHEAD);
    }
    pthread_mutex_lock(&core->ev_mu);
    int first = !core->ev;
    if (first)
        core->ev = n;
    else
        core->ev_tail->next = n;
    core->ev_tail = n;
    pthread_mutex_unlock(&core->ev_mu);
    if (first) {
        uint64_t one = 1;
        ssize_t w = write(core->ev_fd, &one, sizeof one);
        (void)w;
    }
}

int gr_event_fd(gr_core *core)
{
    return core->ev_fd;
}

/* A queue of the session's shrank from `before` by `size`: credits that it held back go out. */
void sess_room(gr_sess *sess, uint64_t before, uint64_t size)
{
    uint64_t limit = sess->core->cfg.notif_limit;
    if (before < limit || before - size >= limit)
        return;
    pthread_mutex_lock(&sess->rx_mu);
    gr_link *link = atomic_load(&sess->rx_link);
    rail_st *rail = link ? link->rail : NULL;
    if (link && !atomic_exchange(&link->credit_queued, 1))
        rail_push(rail, &link->credit_cmd);
    pthread_mutex_unlock(&sess->rx_mu);
    if (rail) {
        rail_run(rail);
        rail_unstarve(rail);
    }
}

int gr_events_take(gr_core *core, gr_event *out, int max)
{
    int n = 0;
    struct event_node *list, **end = &list;
    pthread_mutex_lock(&core->ev_mu);
    while (n < max && core->ev) {
        struct event_node *e = core->ev;
        core->ev = e->next;
        out[n++] = e->ev;
        *end = e;
        end = &e->next;
    }
    *end = NULL;
    pthread_mutex_unlock(&core->ev_mu);
    for (struct event_node *e = list, *next; e; e = next) {
        next = e->next;
        if (e->sess) {
            uint64_t size = e->ev.len + OVERHEAD;
            sess_room(e->sess, atomic_fetch_sub(&e->sess->handed_bytes, size), size);
            sess_unref(e->sess);
        }
        free(e);
    }
    return n;
}

void core_ready(gr_sess *sess, gr_notif *n)
{
    gr_core *core = sess->core;
    n->next = NULL;
    pthread_mutex_lock(&core->ready_mu);
    if (core->ready)
        core->ready_tail->next = n;
    else
        core->ready = n;
    core->ready_tail = n;
    atomic_fetch_add(&core->nready, 1);
    pthread_mutex_unlock(&core->ready_mu);
    COUNT(core, GR_C_NOTIF_RECEIVED, 1);
}

gr_notif *gr_notif_take(gr_core *core)
{
    core_progress(core);
    if (atomic_load_explicit(&core->nready, memory_order_acquire) == 0)
        return NULL;
    pthread_mutex_lock(&core->ready_mu);
    gr_notif *list = core->ready;
    core->ready = core->ready_tail = NULL;
    atomic_store(&core->nready, 0);
    pthread_mutex_unlock(&core->ready_mu);
    return list;
}

void gr_notif_free(gr_core *core, gr_notif *list)
{
    (void)core;
    for (gr_notif *n = list, *next; n; n = next) {
        next = n->next;
        gr_sess *sess = n->origin;
        uint64_t size = n->msg_len + OVERHEAD;
        sess_room(sess, atomic_fetch_sub(&sess->ready_bytes, size), size);
        sess_unref(sess);
        free(n);
    }
}

void gr_crossed(gr_core *core, int which)
{
    COUNT(core, GR_C_CROSS + which, 1);
}

void gr_counters(gr_core *core, uint64_t *out)
{
    for (int i = 0; i < GR_C_COUNT; i++)
        out[i] = atomic_load_explicit(&core->count[i], memory_order_relaxed);
}
