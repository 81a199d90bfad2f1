/* Posting on a link: messages, then sub-transfers in turn. */
#include "transfer.h"

/* Posts messages, then sub-transfers in turn, until credits, window or budget are used up. */
void link_pump(gr_link *link, uint64_t budget)
{
    if (msg_due(link))
        msg_pump(link);
    while (link->state == LINK_UP && link->work.todo && budget) {
        subxfer *p = link->work.todo;
        uint64_t turn = 0, bytes = 0;
        int rc = POSTED;
        if (atomic_load(&p->x->pub.err)) {
            if (sub_drop(p) != 0)
                break;
            continue;
        }
        if (p->x->bulk.rail && (rc = wr_post_bulk(link, p)) == POSTED)
            turn = WR_COST;
        while (!p->x->bulk.rail && turn < QUANTUM && (rc = wr_post(link, p, &bytes)) == POSTED)
            turn += bytes < WR_COST ? WR_COST : bytes;
        budget -= turn < budget ? turn : budget;
        if (rc == REGION_GONE) {
            if (sub_drop(p) != 0)
                break;
        } else if (rc == NOTHING) {
            sub_deactivate(p);
        } else if (rc == YIELDS) {
            if (!sub_yield(p))
                break;
        } else if (rc == NO_ROOM) {
            break;
        } else if (p->next) { /* the next sub-transfer's turn */
            sub_unlist(p);
            sub_list(p, LIST_TODO);
        }
    }
    link->rail->work_left |= link->work.todo != NULL;
    if (link->out.cur)
        msg_pump(link);
}

void sub_start(rail_st *rail, cmd *self)
{
    /* Bytes posted inside the caller's postXfer: 1 MiB, and one more turn for the notification behind the data. The rest
     * goes out as completions come in. */
    enum { IN_POST = (1 << 20) + WR_COST };
    subxfer *p = (subxfer *)(void *)((char *)self - offsetof(subxfer, start));
    gr_link *link = p->link;
    xfer *x = p->x;
    (void)rail;
    if (link->state == LINK_DEAD)
        xfer_fail(x, link->dead_err, 0);
    if (link->rail->rma_ops)
        link->rail->coarse_clock = 1;
    if (x->pub.bytes <= SMALL)
        link_small_posted(link, atomic_load_explicit(&x->pub.posted_ns, memory_order_relaxed));
    sub_list(p, LIST_TODO);
    if (atomic_load(&x->pub.err))
        sub_drop(p);
    else if (link->state != LINK_UP && x->nsubs > 1)
        sub_evict(p);
    else if (x->nsubs > 1 && !queue_has(x)) /* other links took all operations first */
        sub_leave(p);
    link_pump(link, IN_POST);
}
