/* Who has taken which operations of a transfer. Each link that works on it has a part; a part takes runs of operations
 * from the transfer's pool as fast as its link gets them through, so that shares follow the rates. A part is in while its
 * link has runs or may get some; the transfer's data is done when the last one has left. */
#include "transfer.h"

/* Small transfers go before large ones. */
void part_list(part *p, int which)
{
    gr_link *link = p->link;
    int small = which == LIST_TODO && p->x->pub.bytes <= SMALL;
    part **head = which == LIST_WAITING ? &link->work.waiting : &link->work.todo;
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

void part_unlist(part *p)
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

/* Another part joins; whoever calls is in itself, so that the transfer can't end meanwhile. */
static void part_enter(part *p)
{
    uint32_t none = 0;
    atomic_fetch_add(&p->x->pub.parts_left, 1);
    if (atomic_exchange(&p->in, 1)) {
        atomic_fetch_sub(&p->x->pub.parts_left, 1);
        return;
    }
    atomic_compare_exchange_strong(&p->x->shared, &none, SHARED);
    rail_push(p->link->rail, &p->start);
    core_wake(p->link->rail->core); /* its rail may be held, or nobody may be at it: not run from under our lock */
}

/* One part fewer; with the last the data is done, and x may be gone. */
void part_out(xfer *x, gr_link *link)
{
    if (atomic_fetch_sub(&x->pub.parts_left, 1) == 1)
        xfer_data_done(x, link);
}

void part_leave(part *p)
{
    xfer *x = p->x;
    part_unlist(p);
    atomic_store(&p->in, 0);
    if (!atomic_load(&x->pub.err) && pool_has(x) && !atomic_exchange(&p->in, 1)) { /* given back just now */
        part_list(p, LIST_TODO);
        return;
    }
    part_out(x, p->link);
}

/* Nothing to take: the part waits for its runs, or leaves. */
void part_rest(part *p)
{
    if (!p->runs) {
        part_leave(p);
        return;
    }
    part_unlist(p);
    part_list(p, LIST_WAITING);
    xfer_try_pipeline(p);
}

/* Lets the other links that work take what the part has given back or can't take. How many there are. */
int part_call(part *p)
{
    xfer *x = p->x;
    int others = 0;
    for (uint32_t i = 0; i < x->nparts; i++)
        if (&x->parts[i] != p && atomic_load(&x->parts[i].link->state) == LINK_UP) {
            others++;
            part_enter(&x->parts[i]);
        }
    return others;
}

/* The part's link can't go on: others of the transfer that can are called in, and a part without runs leaves. 0: there is
 * no other, it stays. */
int part_evict(part *p)
{
    if (p->runs)
        return part_call(p) != 0;
    atomic_store(&p->in, 0); /* first: whoever gives back from now on calls us in, as we do others */
    if (!part_call(p) && !atomic_exchange(&p->in, 1))
        return 0;
    part_unlist(p);
    part_out(p->x, p->link);
    return 1;
}

/* Who has nothing on a link that stops need not wait for what becomes of it. */
void part_evict_idle(gr_link *link)
{
    for (part *next, *p = link->work.todo; p; p = next) {
        next = p->next;
        if (!p->runs && p->x->nparts > 1 && !atomic_load(&p->x->pub.err))
            part_evict(p);
    }
}

/* What the part has not posted, others do. */
void part_nudge(rail_st *rail, cmd *self)
{
    part *p = (part *)(void *)((char *)self - offsetof(part, nudge));
    gr_link *link = p->link;
    xfer *x = p->x;
    (void)rail;
    atomic_store(&p->nudged, 0);
    if (p->listed == LIST_TODO && !atomic_load(&x->pub.err) && part_unposted(p)) {
        if (!p->cur) {
            part_leave(p);
        } else {
            run_back(p->cur);
            (void)part_evict(p);
        }
    }
    part_out(x, link);
}

/* The count that a late join took goes back where the transfer's only other part is: its notification may be in that link's list, which the
 * rail that joined must not touch. Unless several links share the transfer, it is that part alone that was ever in. */
void part_late(rail_st *rail, cmd *self)
{
    part *p = (part *)(void *)((char *)self - offsetof(part, late));
    xfer *x = p->x;
    (void)rail;
    part_out(x, x->parts[p->late_to].link);
}

/* Gives up what is not posted; the part leaves here, with its last completion, or, when an operation of it failed, with the
 * peer's answer to the fence: until then its bytes may land. Not 0: what is posted can't be proved
 * now; it is tried again with the next turn, or the link has failed and reap ends it. */
int part_drop(part *p)
{
    run *r = p->cur;
    if (r) {
        if (r->weak_bytes && run_proof(r) != 0)
            return 1;
        r->posted = r->count;
        p->cur = NULL;
    }
    if (p->x->bulk.rail)
        bulk_stop(p);
    for (run *next, *q = p->runs; q; q = next) {
        next = q->next;
        if (q->inflight == 0 && !q->weak_bytes && !q->failed)
            run_end(q);
    }
    if (!p->runs) {
        part_leave(p);
    } else if (p->listed != LIST_WAITING) {
        part_unlist(p);
        part_list(p, LIST_WAITING);
    }
    return 0;
}
