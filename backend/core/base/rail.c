/* One rail inside the core: its inbox and its message buffers. */
#include "rail.h"
#include "msg_wire.h"

#include <stdlib.h>

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

/* Takes a registered message buffer. NULL when memory or registration fails. */
buf *rail_buf(rail_st *rail, int kind)
{
    if (!rail->mem.free_buf[kind]) {
        enum { N = 64 };
        size_t size = rail_buf_size(rail, kind);
        struct slab *s = GR_ALLOC(core_slab, calloc(1, sizeof *s));
        if (!s) {
            rail->starved = 1;
            return NULL;
        }
        s->bufs = GR_ALLOC(core_slab_bufs, calloc(N, sizeof *s->bufs));
        s->mem = GR_ALLOC(core_slab_mem, calloc(N, size));
        void *desc = NULL;
        if (!s->bufs || !s->mem || GR_CALL(core_slab_register, rail->dev->ops->reg(rail->dev, s->mem, N * size, &s->mr, &desc)) != 0) {
            free(s->bufs);
            free(s->mem);
            free(s);
            rail->starved = 1;
            return NULL;
        }
        s->next = rail->mem.slabs;
        rail->mem.slabs = s;
        for (int i = 0; i < N; i++) {
            s->bufs[i].desc = desc;
            s->bufs[i].kind = kind;
            s->bufs[i].data = s->mem + (size_t)i * size;
            rail_buf_put(rail, &s->bufs[i]);
        }
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
