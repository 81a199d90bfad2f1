/* Calls of the application's threads that do not enter Go, and how a transfer is aborted or waited for. */
#include "control.h"

#include <stdlib.h>
#include <time.h>

int gr_check(gr_core *core, gr_xfer *slot, uint64_t handle)
{
    if (atomic_load(&slot->handle) != handle)
        return GR_ERR_NOT_FOUND;
    int s = atomic_load(&slot->state);
    if (s > 0) {
        core_progress(core);
        s = atomic_load(&slot->state);
    }
    if (s == 0 && core_flushes(core) && ((xfer *)slot)->op == GR_READ)
        core_flush(core);
    return s > 0 ? 1 : s;
}

/* Subtracts bytes from one of the session's queues. When the queue falls below a limit, credits that were held back go out. */
static void sess_room(gr_sess *sess, _Atomic uint64_t *queue, uint64_t size)
{
    uint64_t limit = sess->core->cfg.notif_limit, before = atomic_fetch_sub(queue, size), after = before - size;
    atomic_fetch_sub(&sess->core->notif_bytes, size);
    if ((before < limit || after >= limit) && (before < FAIR || after >= FAIR))
        return;
    pthread_mutex_lock(&sess->rx.mu);
    for (gr_link *link = sess->rx.links; link; link = link->rx_next)
        if (!atomic_exchange(&link->credit.queued, 1))
            rail_push(link->rail, &link->credit.cmd);
    pthread_mutex_unlock(&sess->rx.mu);
    for (int i = 0, n = sess->core->nrails; i < n; i++) {
        rail_st *rail = sess->core->rails[i];
        if (!rail)
            continue;
        rail_run(rail);
        rail_wake_starved(rail);
    }
}

void gr_sess_handled(gr_sess *sess, size_t len) { sess_room(sess, &sess->handed_bytes, len + OVERHEAD); }

gr_notif *gr_notif_take(gr_core *core)
{
    core_progress(core);
    if (atomic_load_explicit(&core->ready.n, memory_order_acquire) == 0)
        return NULL;
    pthread_mutex_lock(&core->ready.mu);
    gr_notif *list = core->ready.first;
    core->ready.first = core->ready.last = NULL;
    atomic_store(&core->ready.n, 0);
    pthread_mutex_unlock(&core->ready.mu);
    core_flush(core); /* flushes the writes before these notifications */
    return list;
}

void gr_notif_free(gr_core *core, gr_notif *list)
{
    (void)core;
    for (gr_notif *n = list, *next; n; n = next) {
        next = n->next;
        gr_sess *sess = n->origin;
        sess_room(sess, &sess->ready_bytes, n->msg_len + sess->name_len + OVERHEAD);
        sess_unref(sess);
        free(n);
    }
}

/* ---- Aborting a transfer, waiting for it, and its state. */

/* Ends or detaches the transfer's notification if that rail lists it. Caller holds the rail's lock. */
static void abort_msg(xfer *x, rail_st *rail, int err)
{
    msg *m = &x->msg;
    if (atomic_load(&m->listed) != rail)
        return;
    if (!m->number.given)
        msg_end(m, err);
    else if (atomic_load(&x->pub.subs_left) == 0)
        msg_detach(m, err);
}

int gr_xfer_abort(gr_core *core, gr_xfer *pub, int err)
{
    xfer *x = (xfer *)pub;
    (void)core;
    xfer_fail(x, err, 0);
    for (uint32_t i = 0; i < x->nsubs; i++) {
        subxfer *p = &x->subs[i];
        gr_rail *dev = p->link->rail->dev;
        gr_rail_lock(dev);
        rail_inbox(p->link->rail);
        if (p->listed) /* else sub_start drops it */
            sub_drop(p);
        abort_msg(x, p->link->rail, err);
        gr_rail_unlock(dev);
    }
    gr_link *notif_link = x->sess ? atomic_load(&x->sess->notif_link) : NULL;
    if (notif_link && (atomic_load(&pub->state) & 0xff) == GR_XFER_RUNNING) { /* the notification link may have no sub-transfer of x */
        gr_rail_lock(notif_link->rail->dev);
        rail_inbox(notif_link->rail);
        abort_msg(x, notif_link->rail, err);
        gr_rail_unlock(notif_link->rail->dev);
    }
    return (atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING;
}

/* Whether all operations are posted. A batch that is returned meanwhile is not posted again: a region of it is gone. */
static int all_posted(xfer *x)
{
    int all = x->nsubs && !queue_has(x);
    for (uint32_t i = 0; all && i < x->nsubs; i++) {
        subxfer *p = &x->subs[i];
        gr_rail_lock(p->link->rail->dev);
        rail_inbox(p->link->rail);
        for (batch *r = p->batches; r; r = r->next)
            all &= r->posted == r->count && !r->failed;
        gr_rail_unlock(p->link->rail->dev);
    }
    return all && !queue_has(x);
}

int gr_xfer_abort_unposted(gr_core *core, gr_xfer *pub, int err)
{
    if (all_posted((xfer *)pub))
        return (atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING;
    return gr_xfer_abort(core, pub, err);
}

int gr_xfer_posted(gr_core *core, gr_xfer *pub, const gr_link *link)
{
    xfer *x = (xfer *)pub;
    int found = 0;
    for (uint32_t i = 0; !found && i < x->nsubs; i++) {
        subxfer *p = &x->subs[i];
        rail_st *rail = core->rails[p->own]; /* its link may be freed */
        if (link && p->link != link)
            continue;
        gr_rail_lock(rail->dev);
        for (batch *r = p->batches; r; r = r->next)
            found |= r->inflight || r->unflushed_bytes;
        gr_rail_unlock(rail->dev);
    }
    return found;
}

void gr_xfer_prove(gr_xfer *pub) { ((xfer *)pub)->prove = 1; }

int gr_xfer_unposted(const gr_xfer *pub)
{
    const xfer *x = (const xfer *)pub;
    int idle = (atomic_load(&pub->state) & 0xff) == GR_XFER_RUNNING && atomic_load(&pub->subs_left) && !x->msg.number.given;
    for (uint32_t i = 0; idle && i < x->nsubs; i++)
        idle = atomic_load(&x->subs[i].idle);
    return idle;
}

int gr_xfer_message(const gr_xfer *pub, void **body, uint64_t *len)
{
    const xfer *x = (const xfer *)pub;
    *body = x->msg.body;
    *len = x->msg.body ? x->msg.len : 0;
    return x->has_notif && (x->msg.number.given || x->msg.done) && !x->msg.skip ? -1 : x->has_notif;
}

int gr_xfer_wait(gr_core *core, gr_xfer *pub, uint64_t ns)
{
    uint64_t end = gr_now_ns() + ns;
    for (int i = 0;; i++) {
        if ((atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING)
            return 1;
        if (gr_now_ns() >= end)
            return 0;
        core_progress(core);
        if (i > 64) {
            struct timespec delay = {.tv_nsec = 20000};
            nanosleep(&delay, NULL);
        }
    }
}
