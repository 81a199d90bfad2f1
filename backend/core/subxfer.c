/* Sub-transfers. Each link that works on a transfer has a sub-transfer. It takes batches of operations from the transfer's
 * work queue as fast as its link completes them, so that shares follow the links' rates.
 * A sub-transfer is active while its link has batches or may take some. The transfer's data is done when the last active
 * sub-transfer has left. */
#include "transfer.h"

/* Lists the sub-transfer on its link. In the todo list small transfers go before large ones. */
void sub_list(subxfer *p, int which)
{
    gr_link *link = p->link;
    int small = which == LIST_TODO && p->x->pub.bytes <= SMALL;
    subxfer **head = which == LIST_WAITING ? &link->work.waiting : &link->work.todo;
    p->listed = (uint8_t)which;
    p->prev = which == LIST_WAITING ? NULL : small ? link->work.small_tail : link->work.todo_tail;
    p->next = p->prev ? p->prev->next : *head;
    if (p->prev)
        p->prev->next = p;
    else
        *head = p;
    if (p->next)
        p->next->prev = p;
    else if (which == LIST_TODO)
        link->work.todo_tail = p;
    if (small)
        link->work.small_tail = p;
    atomic_store_explicit(&link->work.any, link->work.todo != NULL, memory_order_relaxed);
    if (which == LIST_TODO)
        link_busy(link);
}

void sub_unlist(subxfer *p)
{
    gr_link *link = p->link;
    if (!p->listed)
        return;
    link->work.yielding -= p->yields;
    p->yields = 0;
    if (link->work.small_tail == p)
        link->work.small_tail = p->prev;
    if (p->next)
        p->next->prev = p->prev;
    else if (p->listed == LIST_TODO)
        link->work.todo_tail = p->prev;
    if (p->prev)
        p->prev->next = p->next;
    else if (p->listed == LIST_TODO)
        link->work.todo = p->next;
    else
        link->work.waiting = p->next;
    p->listed = 0;
    atomic_store_explicit(&link->work.any, link->work.todo != NULL, memory_order_relaxed);
}

/* Activates another sub-transfer. The caller's sub-transfer is active, so the transfer cannot end meanwhile. */
static void sub_activate(subxfer *p)
{
    uint32_t none = 0;
    atomic_fetch_add(&p->x->pub.subs_left, 1);
    if (atomic_exchange(&p->active, 1)) {
        atomic_fetch_sub(&p->x->pub.subs_left, 1);
        return;
    }
    atomic_compare_exchange_strong(&p->x->shared, &none, SHARED);
    rail_push(p->link->rail, &p->start);
    rail_wake(p->link->rail); /* its rail may be locked, or idle; it must not run under our rail's lock */
}

/* Counts one active sub-transfer less. After the last one the data is done, and x may be freed. */
void sub_out(xfer *x, gr_link *link)
{
    if (atomic_fetch_sub(&x->pub.subs_left, 1) == 1)
        xfer_data_done(x, link);
}

void sub_leave(subxfer *p)
{
    xfer *x = p->x;
    sub_unlist(p);
    atomic_store(&p->active, 0);
    if (!atomic_load(&x->pub.err) && queue_has(x) && !atomic_exchange(&p->active, 1)) { /* a batch was returned just now */
        sub_list(p, LIST_TODO);
        return;
    }
    sub_out(x, p->link);
}

/* Nothing is left to take: the sub-transfer waits for its batches, or leaves. */
void sub_deactivate(subxfer *p)
{
    if (!p->batches) {
        sub_leave(p);
        return;
    }
    sub_unlist(p);
    sub_list(p, LIST_WAITING);
    if (p->x->has_notif)
        xfer_try_pipeline(p);
}

static int is_up(const subxfer *p) { return atomic_load(&p->link->state) == LINK_UP; }

/* Activates the other sub-transfers whose links are up; workers: of these, those on links of other threads. Returns their number. */
static int activate(subxfer *p, int workers)
{
    xfer *x = p->x;
    int others = 0;
    for (uint32_t i = 0; i < x->nsubs; i++)
        if (&x->subs[i] != p && is_up(&x->subs[i]) && (!workers || x->subs[i].link->rail->dev->worker)) {
            others++;
            sub_activate(&x->subs[i]);
        }
    return others;
}

/* Activates the other sub-transfers whose links are up: they take returned batches, or work that this sub-transfer cannot
 * take. Returns their number. */
int sub_activate_others(subxfer *p) { return activate(p, 0); }

/* Whether the link moves the transfer's bytes: it is up, its provider accepts posts, and its operations complete. */
static int moves(const xfer *x, const subxfer *p)
{
    enum { PATIENCE_NS = 100000000 };
    const gr_link *link = p->link;
    if (!is_up(p) || atomic_load_explicit(&link->rail->starved, memory_order_relaxed) == STARVED)
        return 0;
    uint64_t last = atomic_load_explicit(&link->last_ns, memory_order_relaxed), posted = atomic_load(&x->pub.posted_ns);
    if (!atomic_load_explicit(&link->win.load, memory_order_relaxed))
        return 1;
    return (int64_t)(core_tick(x->core) - (last > posted ? last : posted)) <= PATIENCE_NS;
}

/* Whether a large transfer leaves the first thread's link to small ones, as links of other threads can take its batches. */
int xfer_yields(const xfer *x, const gr_link *link)
{
    if (x->nsubs == 1 || x->pub.bytes < x->core->cfg.spread_min || !link_shares_thread(link) ||
        !link_beside_small(link, atomic_load(&x->pub.posted_ns)))
        return 0;
    for (uint32_t i = 0; i < x->nsubs; i++)
        if (x->subs[i].link->rail->dev->worker && moves(x, &x->subs[i]))
            return 1;
    return 0;
}

/* Leaves the batches that nobody has taken to the links of other threads; not to all links, as two that both yield would activate
 * each other again and again. It stays active, so that it can come back (sub_look). 0: no such link is up any more. */
int sub_yield(subxfer *p)
{
    gr_link *link = p->link;
    if (!activate(p, 1))
        return 0;
    sub_unlist(p);
    sub_list(p, LIST_WAITING);
    if (p->batches) /* with their end it leaves, or goes on */
        return 1;
    p->yields = 1;
    link_busy(link);
    if (link->work.yielding++ == 0)
        rail_wake(link->rail); /* it sleeps shorter from now on */
    return 1;
}

/* Looks, once a millisecond, which sub-transfers yield no longer. The work queue's end releases them at once (release_idle). */
void sub_look(gr_link *link)
{
    enum { LOOK_NS = 1000000 };
    uint64_t now = gr_now_ns();
    if (now - link->work.looked_ns < LOOK_NS)
        return;
    link->work.looked_ns = now;
    for (subxfer *next, *p = link->work.waiting; p; p = next) {
        next = p->next;
        if (!p->yields || (!atomic_load(&p->x->pub.err) && queue_has(p->x) && xfer_yields(p->x, link)))
            continue;
        sub_unlist(p);
        sub_list(p, LIST_TODO); /* link_pump posts for it, drops it, or lets it leave */
    }
}

/* The sub-transfer's link cannot continue. Activates the other sub-transfers that can. A sub-transfer without batches then
 * leaves. 0: no other link is up, so it stays. */
int sub_evict(subxfer *p)
{
    if (p->batches)
        return sub_activate_others(p) != 0;
    atomic_store(&p->active, 0); /* first: a sub-transfer that returns a batch from now on activates this one again */
    if (!sub_activate_others(p) && !atomic_exchange(&p->active, 1))
        return 0;
    sub_unlist(p);
    sub_out(p->x, p->link);
    return 1;
}

/* Evicts the sub-transfers without batches from a link that stops, so that they do not wait for the link's recovery. */
void sub_evict_idle(gr_link *link)
{
    for (subxfer *next, *p = link->work.yielding ? link->work.waiting : NULL; p; p = next) {
        next = p->next;
        if (p->yields) {
            sub_unlist(p);
            sub_list(p, LIST_TODO);
        }
    }
    for (subxfer *next, *p = link->work.todo; p; p = next) {
        next = p->next;
        if (!p->batches && p->x->nsubs > 1 && !atomic_load(&p->x->pub.err))
            sub_evict(p);
    }
}

/* Returns the sub-transfer's unposted batch to the work queue for other links, and leaves if one of them is up. */
void sub_release(rail_st *rail, cmd *self)
{
    subxfer *p = (subxfer *)(void *)((char *)self - offsetof(subxfer, release));
    gr_link *link = p->link;
    xfer *x = p->x;
    (void)rail;
    atomic_store(&p->release_queued, 0);
    if ((p->listed == LIST_TODO || p->yields) && !atomic_load(&x->pub.err) && sub_unposted(p)) {
        if (!p->cur) {
            sub_leave(p);
        } else {
            batch_return(p->cur);
            (void)sub_evict(p);
        }
    }
    sub_out(x, link);
}

/* Gives back the counts of late joins, on the rail of the transfer's exclusive sub-transfer. The transfer's notification
 * may be in that link's list, which the joining rail must not touch. With EXCLUSIVE set, no other sub-transfer was ever
 * active. */
void sub_late(rail_st *rail, cmd *self)
{
    subxfer *p = (subxfer *)(void *)((char *)self - offsetof(subxfer, late));
    xfer *x = p->x;
    gr_link *link = x->subs[p->late_sub].link; /* first: once late_count is 0, the field may change */
    uint32_t n = atomic_exchange(&p->late_count, 0);
    (void)rail;
    if (atomic_fetch_sub(&x->pub.subs_left, n) == n)
        xfer_data_done(x, link);
}

/* Gives up the unposted operations. The sub-transfer leaves here or with its last completion. If an operation of it failed,
 * the sub-transfer leaves with the peer's answer to the fence: until then the bytes may land. Not 0: the unsignaled WRITEs
 * cannot be flushed now. The next turn tries again, or the link has failed and gr_link_reap ends them. */
int sub_drop(subxfer *p)
{
    batch *r = p->cur;
    if (r) {
        if (r->unflushed_bytes && batch_flush(r) != 0)
            return 1;
        r->posted = r->count;
        p->cur = NULL;
    }
    if (p->x->bulk.rail)
        bulk_stop(p);
    for (batch *next, *q = p->batches; q; q = next) {
        next = q->next;
        if (q->inflight == 0 && !q->unflushed_bytes && !q->failed)
            batch_end(q);
    }
    if (!p->batches) {
        sub_leave(p);
    } else if (p->listed != LIST_WAITING) {
        sub_unlist(p);
        sub_list(p, LIST_WAITING);
    }
    return 0;
}
