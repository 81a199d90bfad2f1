/* Calls of the application's threads that do not enter Go: the status of a transfer, and notifications. */
#include "progress.h"

#include <stdlib.h>

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
