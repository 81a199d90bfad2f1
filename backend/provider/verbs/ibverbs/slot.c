/* An endpoint's slot in the rail's tables, which posts and polls use. C, because pollers wait for the rail's lock, and
 * Go's scheduler may stop a goroutine that holds it. This file also takes in flushed requests, one completion at a
 * time. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "verbs.h"

enum {
    SLOTS_MAX = 65535,
    FLUSH_MS = 200, /* flushing is local to the device, without the wire */
};

/* Makes room in the rail's tables for one more endpoint; *number is its slot. */
static int make_room(vb_rail *rail, uint32_t *number)
{
    if (gr_ready_room(&rail->ready, rail->reserved) != 0)
        return -ENOMEM;
    for (*number = 0; *number < rail->slots && rail->slot[*number].qp; ++*number)
        ;
    if (*number == rail->slots) {
        uint32_t n = rail->slots ? rail->slots * 2 : 16;
        vb_slot *slot = n <= SLOTS_MAX ? GR_ALLOC(verbs_slots, realloc(rail->slot, n * sizeof(*slot))) : NULL;
        if (!slot)
            return -ENOMEM;
        memset(slot + rail->slots, 0, (n - rail->slots) * sizeof(*slot));
        rail->slot = slot;
        rail->slots = n;
    }
    return 0;
}

/* Every request of a failed queue pair becomes a completion, signaled or not. */
static uint32_t max_comps(const vb_qp *qp) { return qp->sq_size + qp->rq_size; }

int vb_ep_enter(vb_qp *qp)
{
    vb_rail *rail = qp->rail;
    gr_rail_lock(&rail->base);
    vb_cq_keep(qp, max_comps(qp));
    int rc = make_room(rail, &qp->number);
    if (!rc) {
        rail->slot[qp->number].qp = qp;
        rail->slot[qp->number].generation++;
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

static int posted(const vb_qp *qp) { return qp->sent_head != qp->sent_tail || qp->recv_head != qp->recv_tail; }

/* Flushes everything posted to the completion queue, and empties the queue before the queue pair is destroyed. On some
 * devices the entries of a destroyed queue pair stay in the queue, on others they vanish. An unsignaled request that
 * had completed before produces no entry of its own. Returns 1 if the device has reported every request, among them a
 * receive: it has taken in that the queue pair is in ERR, and neither reads nor writes memory for it any more. */
static int qp_flush(vb_qp *qp)
{
    vb_rail *rail = qp->rail;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    struct timespec t0, t;
    vb_close_tail(qp);
    vb_unpost(qp, ECANCELED);
    int failed = rail->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE) != 0;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    while (posted(qp)) {
        int n = vb_cq_take(rail, qp->cq);
        if (n > 0)
            continue;
        vb_close_tail(qp);
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (n < 0 || failed || (t.tv_sec - t0.tv_sec) * 1000 + (t.tv_nsec - t0.tv_nsec) / 1000000 >= FLUSH_MS)
            return 0;
        sched_yield();
    }
    return qp->recv_failed && !failed;
}

static void destroyed(vb_qp *qp)
{
    qp->rail->slot[qp->number].qp = NULL;
    vb_cq_keep(qp, 0);
    qp->qp = NULL;
}

int vb_ep_quiesce(vb_qp *qp, int *quiet)
{
    vb_rail *rail = qp->rail;
    gr_rail_lock(&rail->base);
    *quiet = qp_flush(qp);
    int rc = *quiet ? 0 : rail->lib->destroy_qp(qp->qp); /* with the lock: nobody sees an end before the device has ended */
    vb_cancel_posted(qp); /* also after a failure: a late completion has the wrong generation */
    qp->connected = 0;
    qp->unsignaled = qp->signaled = 0; /* no poll posts on it: it may be destroyed meanwhile */
    rail->slot[qp->number].generation++;
    if (*quiet) /* it gives no completions any more: others may have its room in the completion queue */
        vb_cq_keep(qp, 0);
    else if (!rc)
        destroyed(qp);
    gr_rail_unlock(&rail->base);
    return -abs(rc);
}

int vb_ep_destroy(vb_qp *qp)
{
    int rc = qp->rail->lib->destroy_qp(qp->qp);
    if (rc)
        return -abs(rc);
    gr_rail_lock(&qp->rail->base);
    destroyed(qp);
    gr_rail_unlock(&qp->rail->base);
    return 0;
}
