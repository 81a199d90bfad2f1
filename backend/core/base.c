/* Time, wakes, flushes, forks, the region table, and a rail's inbox and buffers. */
#include "base.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

uint64_t gr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void worker_wake(const struct worker *w)
{
    uint64_t one = 1;
    ssize_t n = write(w->wake_fd, &one, sizeof one);
    (void)n; /* the counter is full: a wake-up is pending already */
}

void core_wake(gr_core *core)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (atomic_load_explicit(&core->workers[i].up, memory_order_acquire))
            worker_wake(&core->workers[i]);
}

/* Records the errno of a failed operation. ECANCELED only follows another failure, so ECANCELED never replaces a recorded
 * errno. */
void note_wire_err(gr_xfer *x, int err)
{
    if (err != ECANCELED || !atomic_load(&x->wire_err))
        atomic_store(&x->wire_err, err);
}

/* ---- Flushes device writes to GPU memory. The GPU's work then sees the data before the application learns of the data. Without
 * registered callbacks nothing happens. */

int gr_core_flush_by(gr_core *core, void (*call)(void *arg), void *arg)
{
    int rc = 0;
    pthread_mutex_lock(&core->slots.mu);
    uint32_t n = atomic_load(&core->flush.n), i = 0;
    while (i < n && !(core->flush.callbacks[i].call == call && core->flush.callbacks[i].arg == arg))
        i++;
    if (i == MAX_FLUSHES) {
        rc = -ENOSPC;
    } else if (i == n) {
        core->flush.callbacks[n].call = call;
        core->flush.callbacks[n].arg = arg;
        atomic_store_explicit(&core->flush.n, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&core->slots.mu);
    return rc;
}

void core_flush(gr_core *core)
{
    uint32_t n = atomic_load_explicit(&core->flush.n, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++)
        core->flush.callbacks[i].call(core->flush.callbacks[i].arg);
}

/* ---- Fork. No engine works in a child of fork. The child closes our descriptors, so that the child does not keep the peers'
 * connections open. */

static _Atomic int in_child;

static pthread_mutex_t held_mu = PTHREAD_MUTEX_INITIALIZER;
static int *held; /* descriptors that a child of fork closes */
static size_t nheld, held_cap;

static void before_fork(void) { pthread_mutex_lock(&held_mu); }

static void after_fork_parent(void) { pthread_mutex_unlock(&held_mu); }

static void after_fork_child(void)
{
    atomic_store(&in_child, 1);
    for (size_t i = 0; i < nheld; i++)
        close(held[i]);
    nheld = 0;
    pthread_mutex_unlock(&held_mu);
}

/* Runs when the library is loaded, not with the first engine: Go's runtime exists from then on, and a child has none of its
 * threads. */
__attribute__((constructor)) static void fork_setup(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

int gr_forked(void) { return atomic_load_explicit(&in_child, memory_order_relaxed); }

int gr_fd_hold(int fd)
{
    int rc = 0;
    pthread_mutex_lock(&held_mu);
    if (nheld == held_cap) {
        size_t cap = held_cap ? 2 * held_cap : 64;
        int *more = GR_ALLOC(core_held_fd, realloc(held, cap * sizeof *more));
        if (more) {
            held = more;
            held_cap = cap;
        } else {
            rc = -ENOMEM;
        }
    }
    if (!rc)
        held[nheld++] = fd;
    pthread_mutex_unlock(&held_mu);
    return rc;
}

void gr_fd_release(int fd)
{
    pthread_mutex_lock(&held_mu);
    for (size_t i = 0; i < nheld; i++)
        if (held[i] == fd) {
            held[i] = held[--nheld];
            break;
        }
    pthread_mutex_unlock(&held_mu);
}

/* ---- The region table. Its memory grows, and is not unmapped while the core lives. */

gr_region *gr_region_at(gr_core *core, uint32_t idx)
{
    uint32_t c = idx / REGION_CHUNK;
    if (c >= REGION_CHUNKS)
        return NULL;
    char *chunk = atomic_load_explicit(&core->regions.chunk[c], memory_order_acquire);
    if (!chunk) {
        pthread_mutex_lock(&core->slots.mu);
        chunk = atomic_load(&core->regions.chunk[c]);
        if (!chunk) {
            chunk = GR_ALLOC(core_region, calloc(REGION_CHUNK, core->regions.size));
            atomic_store(&core->regions.chunk[c], chunk);
        }
        pthread_mutex_unlock(&core->slots.mu);
        if (!chunk)
            return NULL;
    }
    return (gr_region *)(void *)(chunk + (size_t)(idx % REGION_CHUNK) * core->regions.size);
}

void gr_region_live(gr_region *region, int live) { atomic_store(&region->live, (uint32_t)live); }

/* ---- One rail inside the core: its inbox and its message buffers. */

/* Queues a command for the thread that holds the rail's lock, or takes the lock next. The caller never waits for a poll in
 * progress. */
void rail_push(rail_st *rail, cmd *c)
{
    cmd *head = atomic_load_explicit(&rail->inbox, memory_order_relaxed);
    do
        c->next = head;
    while (!atomic_compare_exchange_weak(&rail->inbox, &head, c));
    atomic_store(&rail->dev->pending, 1);
}

/* Runs the queued commands in the order in which they were pushed. Caller holds the rail's lock. */
void rail_inbox(rail_st *rail)
{
    if (!atomic_load(&rail->dev->pending))
        return;
    atomic_store(&rail->dev->pending, 0);
    cmd *list = atomic_exchange(&rail->inbox, NULL), *order = NULL;
    while (list) {
        cmd *next = list->next;
        list->next = order;
        order = list;
        list = next;
    }
    while (order) {
        cmd *next = order->next;
        order->run(rail, order);
        order = next;
    }
}

/* Wakes the progress thread, which may sleep, to retry refused posts. */
void rail_wake_starved(rail_st *rail)
{
    if (atomic_load_explicit(&rail->starved, memory_order_relaxed) == STARVED)
        rail_wake(rail);
}

size_t rail_msg_size(const rail_st *rail)
{
    size_t full = FRAG + HDR;
    return rail->dev->limit.msg_size < full ? rail->dev->limit.msg_size : full;
}

size_t rail_buf_size(const rail_st *rail, int kind)
{
    enum { LINE = 64 };
    _Static_assert((int)HDR <= (int)LINE, "a header has a cache line");
    return kind == BUF_HEADER ? LINE : rail_msg_size(rail);
}

/* Adds a registered slab of buffers. 0: memory or registration fails. */
static int add_slab(rail_st *rail, int kind)
{
    enum { N = 64 };
    size_t size = rail_buf_size(rail, kind);
    struct slab *s = GR_ALLOC(core_slab, calloc(1, sizeof *s));
    if (!s)
        return 0;
    s->bufs = GR_ALLOC(core_slab_bufs, calloc(N, sizeof *s->bufs));
    s->mem = GR_ALLOC(core_slab_mem, calloc(N, size));
    void *desc = NULL;
    if (!s->bufs || !s->mem || GR_CALL(core_slab_register, rail->dev->ops->reg(rail->dev, s->mem, N * size, &s->mr, &desc)) != 0) {
        free(s->bufs);
        free(s->mem);
        free(s);
        return 0;
    }
    s->next = rail->mem.slabs;
    rail->mem.slabs = s;
    for (int i = 0; i < N; i++) {
        s->bufs[i].desc = desc;
        s->bufs[i].kind = kind;
        s->bufs[i].data = s->mem + (size_t)i * size;
        rail_buf_put(rail, &s->bufs[i]);
    }
    return 1;
}

/* Takes a registered message buffer. NULL when memory or registration fails. */
buf *rail_buf(rail_st *rail, int kind)
{
    if (!rail->mem.free_buf[kind] && !add_slab(rail, kind)) {
        if (kind == BUF_FULL || !rail->mem.free_buf[BUF_FULL]) {
            rail->starved = 1;
            return NULL;
        }
        kind = BUF_FULL; /* serves as well */
    }
    buf *b = rail->mem.free_buf[kind];
    rail->mem.free_buf[kind] = b->next;
    return b;
}

void rail_buf_put(rail_st *rail, buf *b)
{
    if (!b)
        return; /* a NULL buffer: its endpoint may still write to the buffer */
    b->next = rail->mem.free_buf[b->kind];
    rail->mem.free_buf[b->kind] = b;
}
