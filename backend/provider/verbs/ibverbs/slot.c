/* An endpoint's place on the rail: in the tables that posts and polls use. C, since the rail's lock is held, for which pollers wait: Go's
 * scheduler may stop who holds it. And what is flushed is taken in here, one completion after the other. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "verbs.h"

enum {
    SLOTS_MAX = 65535,
    FLUSH_MS = 200, /* flushing is the device's own work, without the wire */
};

/* Room in the tables of the rail for one endpoint more; *number is its slot. */
static int make_room(vb_rail *rail, uint32_t comps, uint32_t *number, const char **step)
{
    *step = "ibv_resize_cq";
    uint32_t want = rail->cq_promised + comps, size = (uint32_t)rail->cq->cqe;
    if (want > size) {
        while (size < want)
            size *= 2;
        if (size > rail->max_cqe)
            size = rail->max_cqe;
        if (size < want)
            return -ENOSPC;
        int rc = rail->lib->resize_cq(rail->cq, (int)size);
        if (rc)
            return -abs(rc);
        rail->armed = VB_NOT;
    }
    *step = "calloc";
    if (gr_ready_room(&rail->ready, want) != 0)
        return -ENOMEM;
    for (*number = 0; *number < rail->slots && rail->slot[*number].qp; ++*number)
        ;
    if (*number == rail->slots) {
        uint32_t n = rail->slots ? rail->slots * 2 : 16;
        vb_slot *slot = n <= SLOTS_MAX ? realloc(rail->slot, n * sizeof(*slot)) : NULL;
        if (!slot)
            return -ENOMEM;
        memset(slot + rail->slots, 0, (n - rail->slots) * sizeof(*slot));
        rail->slot = slot;
        rail->slots = n;
    }
    return 0;
}

/* Every request of a failed queue pair is a completion, signaled or not. */
static uint32_t promise(const vb_qp *qp)
{
    return qp->sq_size + qp->rq_size;
}

int vb_ep_enter(vb_qp *qp, const char **step)
{
    vb_rail *rail = qp->rail;
    gr_rail_lock(&rail->base);
    int rc = make_room(rail, promise(qp), &qp->number, step);
    if (!rc) {
        rail->slot[qp->number].qp = qp;
        rail->slot[qp->number].generation++;
        rail->cq_promised += promise(qp);
    }
    gr_rail_unlock(&rail->base);
    return rc;
}

void vb_ep_connected(vb_qp *qp)
{
    gr_rail_lock(&qp->rail->base);
    qp->connected = 1;
    gr_rail_unlock(&qp->rail->base);
}

static int posted(const vb_qp *qp)
{
    return qp->sent_head != qp->sent_tail || qp->recv_head != qp->recv_tail;
}

/* Everything posted is flushed to the completion queue, which is emptied before the queue pair goes: on some devices its
 * entries stay, on others they vanish with it. Unsignalled requests that were executed already say nothing by themselves. */
static void flush(vb_qp *qp)
{
    vb_rail *rail = qp->rail;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct timespec t0, t;
    struct ibv_wc wc[32];
    vb_close_tail(qp);
    vb_unpost(qp, ECANCELED);
    int failed = rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE) != 0;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    while (posted(qp)) {
        int n = ibv_poll_cq(rail->cq, 32, wc);
        for (int i = 0; i < n; i++)
            vb_take(rail, &wc[i]);
        if (n > 0)
            continue;
        vb_close_tail(qp);
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (n < 0 || failed || (t.tv_sec - t0.tv_sec) * 1000 + (t.tv_nsec - t0.tv_nsec) / 1000000 >= FLUSH_MS)
            return;
        sched_yield();
    }
}

void vb_ep_leave(vb_qp *qp)
{
    vb_rail *rail = qp->rail;
    gr_rail_lock(&rail->base);
    flush(qp);
    vb_give_up(qp);
    rail->slot[qp->number].generation++;
    gr_rail_unlock(&rail->base);
}

int vb_ep_close(vb_qp *qp)
{
    vb_rail *rail = qp->rail;
    gr_rail_lock(&rail->base);
    flush(qp);
    int rc = rail->lib->destroy_qp(qp->qp);
    vb_give_up(qp); /* also when it could not be destroyed: what comes late is told by its generation */
    rail->slot[qp->number].generation++;
    if (rc == 0) {
        rail->slot[qp->number].qp = NULL;
        rail->cq_promised -= promise(qp);
        qp->qp = NULL;
    }
    gr_rail_unlock(&rail->base);
    return -abs(rc);
}
