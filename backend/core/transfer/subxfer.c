/* Who has taken which operations of a transfer. Each link that works on it has a sub-transfer; a sub-transfer takes batches of operations
 * from the transfer's work queue as fast as its link gets them through, so that shares follow the rates. A sub-transfer is in while its
 * link has batches or may get some; the transfer's data is done when the last one has left. */
#include "transfer.h"

/* Small transfers go before large ones. */
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
}

void sub_unlist(subxfer *p)
{
    gr_link *link = p->link;
    if (!p->listed)
        return;
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
}

/* Another sub-transfer joins; whoever calls is in itself, so that the transfer can't end meanwhile. */
static void sub_enter(subxfer *p)
{
    uint32_t none = 0;
    atomic_fetch_add(&p->x->pub.subs_left, 1);
    if (atomic_exchange(&p->in, 1)) {
        atomic_fetch_sub(&p->x->pub.subs_left, 1);
        return;
    }
    atomic_compare_exchange_strong(&p->x->shared, &none, SHARED);
    rail_push(p->link->rail, &p->start);
    core_wake(p->link->rail->core); /* its rail may be held, or nobody may be at it: not run from under our lock */
}

/* One sub-transfer fewer; with the last the data is done, and x may be gone. */
void sub_out(xfer *x, gr_link *link)
{
    if (atomic_fetch_sub(&x->pub.subs_left, 1) == 1)
        xfer_data_done(x, link);
}

void sub_leave(subxfer *p)
{
    xfer *x = p->x;
    sub_unlist(p);
    atomic_store(&p->in, 0);
    if (!atomic_load(&x->pub.err) && queue_has(x) && !atomic_exchange(&p->in, 1)) { /* given back just now */
        sub_list(p, LIST_TODO);
        return;
    }
    sub_out(x, p->link);
}

/* Nothing to take: the sub-transfer waits for its batches, or leaves. */
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

/* Lets the other links that work take what the sub-transfer has given back or can't take. How many there are. */
int sub_call(subxfer *p)
{
    xfer *x = p->x;
    int others = 0;
    for (uint32_t i = 0; i < x->nsubs; i++)
        if (&x->subs[i] != p && atomic_load(&x->subs[i].link->state) == LINK_UP) {
            others++;
            sub_enter(&x->subs[i]);
        }
    return others;
}

/* The sub-transfer's link can't go on: others of the transfer that can are called in, and a sub-transfer without batches leaves. 0: there is
 * no other, it stays. */
int sub_evict(subxfer *p)
{
    if (p->batches)
        return sub_call(p) != 0;
    atomic_store(&p->in, 0); /* first: whoever gives back from now on calls us in, as we do others */
    if (!sub_call(p) && !atomic_exchange(&p->in, 1))
        return 0;
    sub_unlist(p);
    sub_out(p->x, p->link);
    return 1;
}

/* Who has nothing on a link that stops need not wait for what becomes of it. */
void sub_evict_idle(gr_link *link)
{
    for (subxfer *next, *p = link->work.todo; p; p = next) {
        next = p->next;
        if (!p->batches && p->x->nsubs > 1 && !atomic_load(&p->x->pub.err))
            sub_evict(p);
    }
}

/* What the sub-transfer has not posted, others do. */
void sub_nudge(rail_st *rail, cmd *self)
{
    subxfer *p = (subxfer *)(void *)((char *)self - offsetof(subxfer, nudge));
    gr_link *link = p->link;
    xfer *x = p->x;
    (void)rail;
    atomic_store(&p->nudged, 0);
    if (p->listed == LIST_TODO && !atomic_load(&x->pub.err) && sub_unposted(p)) {
        if (!p->cur) {
            sub_leave(p);
        } else {
            batch_back(p->cur);
            (void)sub_evict(p);
        }
    }
    sub_out(x, link);
}

/* The counts that late joins took go back where the transfer's only other sub-transfer is: its notification may be in that link's list, which the
 * rail that joined must not touch. Unless several links share the transfer, it is that sub-transfer alone that was ever in. */
void sub_late(rail_st *rail, cmd *self)
{
    subxfer *p = (subxfer *)(void *)((char *)self - offsetof(subxfer, late));
    xfer *x = p->x;
    gr_link *link = x->subs[p->late_to].link; /* first: without lates it may be set anew */
    uint32_t n = atomic_exchange(&p->lates, 0);
    (void)rail;
    if (atomic_fetch_sub(&x->pub.subs_left, n) == n)
        xfer_data_done(x, link);
}

/* Gives up what is not posted; the sub-transfer leaves here, with its last completion, or, when an operation of it failed, with the
 * peer's answer to the fence: until then its bytes may land. Not 0: what is posted can't be proved
 * now; it is tried again with the next turn, or the link has failed and reap ends it. */
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
