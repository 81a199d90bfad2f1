/* Notifications for Go: sent, moved to another link, and taken from a link of an ended session for the next session. */
#include "progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Detaches the message's posted frames, on an endpoint that other links share. */
static void msg_detach_frames(msg *m)
{
    for (ctx *c = m->sent.inflight ? m->link->ep.posted : NULL; c; c = c->next)
        if (c->msg == m)
            c->msg = NULL;
    m->sent.inflight = 0;
}

/* The message itself goes to the caller: a copy might find no memory, and the notification would be lost. */
int gr_link_take_msg(gr_link *link, gr_taken *out)
{
    int rc = 0;
    msg *m;
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    TAILQ_FOREACH(m, &link->out.list, list)
    {
        if (m->xfer || m->skip || m->unproved)
            continue;
        *out = (gr_taken){.seq = m->number.seq, .numbered = m->number.given, .len = m->len, .body = m->body, .mem = m};
        msg_detach_frames(m);
        msg_leave(m);
        rc = 1;
        break;
    }
    gr_rail_unlock(link->rail->dev);
    return rc;
}

void gr_taken_free(gr_taken *t) { msg_free(t->mem); }

uint32_t gr_link_numbered(gr_link *link, uint64_t *first)
{
    uint32_t n = 0;
    msg *m;
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    TAILQ_FOREACH(m, &link->out.list, list)
    {
        if (!m->number.given)
            continue;
        if (n++ == 0 || m->number.seq < *first)
            *first = m->number.seq;
    }
    gr_rail_unlock(link->rail->dev);
    return n;
}

void gr_link_fail_unacked(gr_link *link)
{
    msg *m;
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    TAILQ_FOREACH(m, &link->out.list, list)
    if (m->number.given && m->xfer && m->sent.inflight)
        xfer_fail((xfer *)m->xfer, GR_ERR_BACKEND, 0);
    gr_rail_unlock(link->rail->dev);
}

void gr_sess_set_notif_link(gr_sess *sess, gr_link *link)
{
    gr_link *old = atomic_load(&sess->notif_link);
    if (!old || old == link) {
        atomic_store(&sess->notif_link, link);
        return;
    }
    /* Unnumbered messages without a transfer move to the new link, before later ones are queued there. Numbered messages
     * keep their link. A transfer's message gets its number only once the data is done. */
    gr_rail_lock(old->rail->dev);
    rail_inbox(old->rail);
    for (msg *m = old->out.plain, *next; m; m = next) {
        next = TAILQ_NEXT(m, list);
        if (!m->xfer)
            msg_move(m, link);
    }
    atomic_store(&sess->notif_link, link);
    gr_rail_unlock(old->rail->dev);
    rail_run(link->rail);
    rail_wake(link->rail);
}

/* Makes a message without a transfer. tx_queued counts it already. */
static msg *msg_new(gr_link *link, const void *body, size_t len)
{
    msg *m = GR_ALLOC(core_notif_out, calloc(1, sizeof *m + len));
    if (!m) {
        atomic_fetch_sub(&link->sess->tx_queued, len + OVERHEAD);
        return NULL;
    }
    m->body = (char *)(m + 1);
    if (len)
        memcpy(m->body, body, len); /* ours */
    m->len = len;
    m->link = link;
    m->start.run = msg_start;
    return m;
}

static void msg_send(msg *m)
{
    rail_st *rail = m->link->rail;
    rail_push(rail, &m->start);
    rail_run(rail);
    rail_wake_starved(rail);
}

int gr_notify(gr_link *link, const void *body, size_t len)
{
    gr_sess *sess = link->sess;
    uint64_t size = len + OVERHEAD, before = atomic_fetch_add(&sess->tx_queued, size);
    if (before && before + size > sess->core->cfg.notif_limit) {
        atomic_fetch_sub(&sess->tx_queued, size);
        return -EAGAIN;
    }
    msg *m = msg_new(link, body, len);
    if (!m)
        return -ENOMEM;
    msg_send(m);
    return 0;
}

int gr_notify_again(gr_link *link, const gr_taken *t)
{
    atomic_fetch_add(&link->sess->tx_queued, t->len + OVERHEAD);
    msg *m = msg_new(link, t->body, t->len);
    if (!m)
        return -ENOMEM;
    m->skip = t->skip != 0;
    if (t->numbered)
        msg_resend(m, t->seq);
    msg_send(m);
    return 0;
}
