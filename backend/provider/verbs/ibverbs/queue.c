/* A rail's completion queues. One has room for thirty endpoints on devices whose queues are short (soft RoCE: 32,767 entries), so a rail
 * makes another one when none has room. All report their events on the rail's completion channel. A queue without endpoints stays until
 * the rail closes: the next endpoints take it, and no queue pair that is still being destroyed can refer to one that is gone. */
#include <errno.h>
#include <stdlib.h>

#include "verbs.h"

enum {
    /* Entries of a rail's first queue: room for about thirty endpoints, 2 MiB. Many drivers cannot resize a queue (hns, mana, qedr, erdma;
     * irdma sometimes). Where resizing has failed, further queues are as large. */
    CQ_FULL = 32768,
    CQ_LEAST = 1024,
    CQ_SMALL = 4096, /* of further queues, which grow: three endpoints */
};

static uint32_t at_most(uint32_t n, uint32_t limit) { return n < limit ? n : limit; }

static void arm(vb_cq *q) { q->armed = ibv_req_notify_cq(q->cq, 0) == 0 ? VB_ANY : VB_NOT; }

static int refused_for_size(int err) { return err == ENOMEM || err == EINVAL; }

/* Makes a queue. Halves the size, down to `least`, until the device accepts it. 0, or a positive errno. */
static int cq_create(vb_rail *rail, vb_cq *q, uint32_t size, uint32_t least)
{
    for (;;) {
        errno = 0;
        q->cq = rail->lib->create_cq(rail->pd->context, (int)size, q, rail->channel, 0);
        if (q->cq)
            return 0;
        int err = errno ? errno : EIO;
        if (size <= least || !refused_for_size(err))
            return err;
        size = size / 2 > least ? size / 2 : least;
    }
}

/* Makes a queue, and puts it behind the last one. */
static int cq_add(vb_rail *rail, uint32_t size, uint32_t least, vb_cq **made, const char **step)
{
    *step = "ibv_create_cq";
    if (rail->max_cq && rail->cqs >= rail->max_cq)
        return -ENOSPC;
    vb_cq *q = GR_ALLOC(verbs_cq, calloc(1, sizeof(*q)));
    if (!q) {
        *step = "calloc";
        return -ENOMEM;
    }
    int err = cq_create(rail, q, size, least);
    if (err) {
        free(q);
        return -err;
    }
    vb_cq *last = rail->cq;
    while (last && last->next != rail->cq)
        last = last->next;
    if (!last) {
        rail->cq = rail->turn = q->next = q;
    } else {
        arm(q); /* the thread that polls may sleep already, and arms the queue only when something wakes it */
        q->next = rail->cq;
        last->next = q;
    }
    rail->cqs++;
    *made = q;
    return 0;
}

int vb_cq_first(vb_rail *rail, const char **step)
{
    vb_cq *first;
    return cq_add(rail, at_most(CQ_FULL, rail->max_cqe), CQ_LEAST, &first, step);
}

int vb_cq_close(vb_rail *rail)
{
    int first = 0;
    while (rail->cqs) {
        vb_cq *q = rail->cq;
        int rc = rail->lib->destroy_cq(q->cq);
        first = first ? first : -abs(rc);
        rail->cq = q->next;
        rail->cqs--;
        free(q);
    }
    return first;
}

static int fits(const vb_cq *q, uint32_t comps) { return q->reserved + comps <= (uint32_t)q->cq->cqe; }

/* Resizes the queue so that it has room. Some drivers report success and leave it as it is. 0, or a positive errno. */
static int grow(vb_rail *rail, vb_cq *q, uint32_t comps)
{
    uint32_t want = q->reserved + comps, size = (uint32_t)q->cq->cqe;
    while (size < want)
        size *= 2;
    int rc = rail->lib->resize_cq(q->cq, (int)at_most(size, rail->max_cqe));
    if (rc || !fits(q, comps))
        return rc ? abs(rc) : EOPNOTSUPP;
    if (q->armed) /* resizing may have ended that */
        arm(q);
    return 0;
}

/* The first queue with room, else the first that can be given room. NULL: none. *fixed: a queue could not be resized. */
static vb_cq *find(vb_rail *rail, uint32_t comps, int *fixed)
{
    *fixed = 0;
    for (int resize = 0; resize < 2; resize++) {
        vb_cq *q = rail->cq;
        do {
            if (fits(q, comps))
                return q;
            if (resize && q->reserved + comps <= rail->max_cqe) {
                if (grow(rail, q, comps) == 0)
                    return q;
                *fixed = 1;
            }
            q = q->next;
        } while (q != rail->cq);
    }
    return NULL;
}

int vb_cq_reserve(vb_qp *qp, uint32_t comps, const char **step)
{
    vb_rail *rail = qp->rail;
    int rc = 0, fixed;
    gr_rail_lock(&rail->base);
    qp->cq = find(rail, comps, &fixed);
    if (!qp->cq) {
        uint32_t size = fixed ? CQ_FULL : CQ_SMALL;
        *step = "ibv_create_cq";
        rc = comps > rail->max_cqe ? -ENOSPC : cq_add(rail, at_most(size > comps ? size : comps, rail->max_cqe), comps, &qp->cq, step);
    }
    if (!rc) {
        qp->room = comps;
        qp->cq->reserved += comps;
        rail->reserved += comps;
    }
    gr_rail_unlock(&rail->base);
    return rc;
}

void vb_cq_keep(vb_qp *qp, uint32_t comps)
{
    if (qp->room <= comps)
        return;
    qp->cq->reserved -= qp->room - comps;
    qp->rail->reserved -= qp->room - comps;
    qp->room = comps;
}

void vb_cq_leave(vb_qp *qp)
{
    gr_rail_lock(&qp->rail->base);
    vb_cq_keep(qp, 0);
    gr_rail_unlock(&qp->rail->base);
}
