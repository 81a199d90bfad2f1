/* Transfers: their notification and their end. */
#include "transfer.h"

/* Ends a running transfer. After the exchange of state the application and Go own the transfer. */
void xfer_end(xfer *x)
{
    gr_core *core = x->core;
    int err = atomic_load(&x->pub.err);
    gr_event ev = {.kind = GR_EV_XFER, .code = err, .id = atomic_load(&x->pub.handle)};
    COUNT(core, err ? GR_C_XFERS_FAILED : GR_C_XFERS_DONE, 1);
    if (atomic_load_explicit(&core->trace, memory_order_relaxed))
        xfer_trace(x);
    int old = atomic_exchange(&x->pub.state, err ? GR_XFER_FAILED : 0);
    if (err || (old & GR_XFER_WANT))
        core_event(core, &ev, &x->owed, &x->pub.handle);
}

/* Records the first error; sub-transfers end as their posted operations complete. */
void xfer_fail(xfer *x, int err, int wire_err)
{
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&x->pub.err, &none, err) && wire_err)
        atomic_store(&x->pub.wire_err, wire_err);
}

/* The data is done. Sends the transfer's notification, or ends the transfer. Runs on the notification link's rail. */
static void finish(xfer *x, gr_link *notif_link)
{
    msg *m = &x->msg;
    int err = atomic_load(&x->pub.err);
    if (!err) {
        msg_queue(notif_link, m);
        msg_pump(notif_link);
    } else if (m->number.given && !m->done) { /* the peer waits for that number */
        m->link = notif_link;
        if (msg_skip(m) != 0) {
            m->skip = 1;
            msg_queue(notif_link, m);
        } else {
            xfer_end(x);
        }
        msg_pump(notif_link);
    } else {
        if (!m->done)
            atomic_fetch_sub(&x->sess->tx_queued, m->len + OVERHEAD);
        xfer_end(x);
    }
}

void xfer_cmd_fin(rail_st *rail, cmd *self)
{
    xfer *x = (xfer *)(void *)((char *)self - offsetof(xfer, fin));
    gr_link *notif_link = atomic_load(&x->sess->notif_link);
    if (notif_link->rail == rail) {
        finish(x, notif_link);
        return;
    }
    rail_push(notif_link->rail, self); /* the session has another notification link now */
    rail_wake(notif_link->rail);
}

/* All sub-transfers have left. link is the last one's; its rail is locked. */
void xfer_data_done(xfer *x, gr_link *link)
{
    msg *m = &x->msg;
    rail_st *rail = link->rail;
    int err = atomic_load(&x->pub.err);
    if (!err)
        xfer_time(x, rail);
    if (x->queue.returned)
        queue_drop(x, rail);
    if (!x->has_notif || (!err && m->done)) {
        xfer_end(x);
    } else if (m->listed && err && !m->number.given) {
        msg_end(m, err); /* ends x too */
    } else if (m->listed) { /* pipelined on this link; if msg_detach lacks memory, the message's last completion ends x */
        if (err || m->sent.posted)
            msg_detach(m, err);
    } else {
        gr_link *notif_link = atomic_load(&x->sess->notif_link);
        if (notif_link->rail == rail) {
            finish(x, notif_link);
            return;
        }
        x->fin.run = xfer_cmd_fin;
        rail_push(notif_link->rail, &x->fin);
        notif_link->rail->dev->kick(notif_link->rail->dev); /* only tries the lock; a thread that holds the lock runs the command */
    }
}

void xfer_msg_ended(msg *m, int err)
{
    xfer *x = (xfer *)m->xfer;
    if (err)
        xfer_fail(x, err, 0);
    if (atomic_load(&x->pub.subs_left) == 0)
        xfer_end(x);
}

static uint32_t exclusive_mark(const subxfer *p) { return EXCLUSIVE | (uint32_t)(p - p->x->subs) << EXCLUSIVE_SHIFT; }

/* Whether the sub-transfer's link alone has done the transfer, up to the last batch, and will send the notification behind
 * it. The peer then needs no other proof than the link's order. The answer stays 1 while operations of the last batch are
 * posted. */
int xfer_exclusive(subxfer *p)
{
    xfer *x = p->x;
    uint32_t none = 0;
    if (p->exclusive)
        return 1;
    if (!x->has_notif || atomic_load(&x->shared) || x->op != GR_WRITE || !p->link->rail->dev->is.ordered || queue_has(x))
        return 0;
    if (p->link != atomic_load(&x->sess->notif_link) && atomic_load(&x->sess->tx_queued) > x->msg.len + OVERHEAD)
        return 0; /* earlier messages wait on the notification link */
    p->exclusive = atomic_compare_exchange_strong(&x->shared, &none, exclusive_mark(p)); /* from here on no other link may join */
    return p->exclusive;
}

/* Ends the exclusive state. The last batch returns to the work queue: unposted (now is 0), or posted on a failed link (now
 * is SHARED). */
void xfer_not_exclusive(subxfer *p, uint32_t now)
{
    uint32_t exclusive = exclusive_mark(p);
    if (p->exclusive)
        atomic_compare_exchange_strong(&p->x->shared, &exclusive, now);
    p->exclusive = 0;
}

/* On an ordered link the notification goes out at once: its receive proves the data before it. */
void xfer_try_pipeline(subxfer *p)
{
    xfer *x = p->x;
    if (x->msg.listed || !xfer_exclusive(p))
        return;
    x->msg.pipelined = 1;
    msg_queue(p->link, &x->msg);
}
