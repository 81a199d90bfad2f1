/* The lives of links: made, stopped, emptied after their endpoint was closed, bound to another, given up. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gr_link_new(gr_sess *sess, int rail_idx, int peer_rail, void *ep, uint64_t id, int role, gr_link **out)
{
    gr_core *core = sess->core;
    if (rail_idx < 0 || rail_idx >= core->nrails || peer_rail < 0 || peer_rail >= (int)core->cfg.max_rails)
        return -EINVAL;
    rail_st *rail = core->rails[rail_idx];
    pthread_mutex_lock(&core->slot_mu);
    gr_link *link = core->free_links;
    if (link)
        core->free_links = link->next;
    pthread_mutex_unlock(&core->slot_mu);
    if (!link && !(link = malloc(sizeof *link)))
        return -ENOMEM;
    memset(link, 0, sizeof *link);
    link->rail = rail;
    link->sess = sess;
    link->ep = ep;
    link->id = id;
    link->peer_rail = peer_rail;
    link->role = role;
    link->window = core->cfg.window_min * 4 < core->cfg.window_max ? core->cfg.window_min * 4 : core->cfg.window_max;
    link->credits = role & GR_LINK_TX ? RX_BUFS : 0;
    link->credit_cmd.run = msg_credit_cmd;
    atomic_fetch_add(&sess->refs, 1);
    gr_rail_lock(rail->dev);
    int rc = msg_post_recvs(link);
    link->next = rail->links;
    if (link->next)
        link->next->prev = link;
    rail->links = link;
    atomic_fetch_add(&rail->nlinks, 1);
    gr_rail_unlock(rail->dev);
    if (role & GR_LINK_RX)
        atomic_store(&sess->rx_link, link);
    *out = link;
    core_wake(core);
    return rc;
}

void gr_link_stop(gr_link *link)
{
    gr_rail_lock(link->rail->dev);
    if (link->state == LINK_UP)
        link->state = LINK_STOPPED;
    link->reported = 1;
    gr_rail_unlock(link->rail->dev);
}

/* What nothing proves any more is posted again, or its transfer has been given up and waited for this. */
static void reap_weak(gr_link *link, part *p)
{
    for (part *next; p; p = next) {
        next = p->next;
        if (!p->weak_bytes)
            continue;
        link->inflight_bytes -= p->weak_bytes;
        p->weak_bytes = 0;
        if (atomic_load(&p->x->pub.err))
            part_drop(p);
    }
}

void gr_link_reap(gr_link *link)
{
    rail_st *rail = link->rail;
    gr_rail_lock(rail->dev);
    while (link->posted && rail_poll(rail, 1024) > 0)
        ;
    while (link->posted) {
        ctx *c = link->posted;
        if (!rail->dev->private_ep)
            c->buf = NULL;
        if (c->kind == CTX_RMA)
            link_rma_done(c, ECANCELED);
        else if (c->kind == CTX_SEND)
            msg_sent(c, ECANCELED);
        else
            msg_received(c, ECANCELED, 0);
        if (rail->dev->private_ep) {
            rail_ctx_done(rail, c);
            continue;
        }
        /* The endpoint lives on for other peers and may still complete it: context and buffer are never used again. */
        link->posted = c->next;
        if (c->next)
            c->next->prev = NULL;
        c->kind = CTX_DEAD;
        c->next = rail->grave;
        rail->grave = c;
    }
    reap_weak(link, link->todo);
    reap_weak(link, link->waiting);
    gr_rail_unlock(rail->dev);
    core_wake(rail->core); /* closing an endpoint may have left other links' completions in the queue */
}

void gr_link_fail(gr_link *link, int err)
{
    gr_rail_lock(link->rail->dev);
    link->state = LINK_DEAD;
    link->dead_err = err;
    rail_inbox(link->rail);
    while (link->msgs)
        msg_end(link->msgs, err);
    part *p;
    while ((p = link->todo ? link->todo : link->waiting)) {
        xfer_fail(p->x, err, 0);
        p->inflight = 0;
        part_drop(p);
    }
    gr_rail_unlock(link->rail->dev);
}

static void restart_parts(gr_link *link)
{
    part *list = NULL;
    while (link->todo || link->waiting) {
        part *p = link->todo ? link->todo : link->waiting;
        part_unlist(p);
        p->next = list;
        list = p;
    }
    while (list) {
        part *p = list;
        list = p->next;
        xfer *x = p->x;
        int blamed = p->blamed;
        p->failed = p->blamed = 0;
        p->inflight = 0;
        if (x->pipelined && x->msg.done) { /* its notification arrived behind all of its data */
            part_end(p);
            continue;
        }
        /* An error of its own may come again; being cancelled along with others costs next to nothing. */
        if ((blamed && ++x->attempts > 3) || (p->posted && ++x->replays > 100))
            xfer_fail(x, ST_BACKEND, atomic_load(&x->pub.wire_err));
        if (p->posted)
            COUNT(link->rail->core, GR_C_REPLAYS, 1);
        p->posted = 0;
        part_list(link, p, LIST_TODO);
        if (atomic_load(&x->pub.err))
            part_drop(p);
    }
}

int gr_link_rebind(gr_link *link, void *ep, uint64_t next_seq)
{
    gr_rail_lock(link->rail->dev);
    link->ep = ep;
    link->state = LINK_UP;
    link->reported = 0;
    link->rebinds++;
    link->recv_debt = 0;
    link->inflight_ops = 0;
    link->inflight_bytes = 0;
    link->meas_ns = 0;
    link->owed = 0;
    link->credits = link->role & GR_LINK_TX ? RX_BUFS : 0;
    link->cur = NULL;
    for (msg *m = link->msgs, *next; m; m = next) {
        next = m->next;
        xfer *x = m->x;
        int blamed = m->blamed;
        m->inflight = 0;
        m->failed = m->blamed = m->posted = 0;
        m->off = 0;
        m->skip |= m->unproved;
        if (m->numbered && m->seq < next_seq)
            msg_end(m, 0);
        else if (x && blamed && atomic_load(&x->pub.parts_left) == 0 && ++x->attempts > 3 && msg_gap(m) == 0)
            xfer_msg_end(x, ST_BACKEND);
    }
    /* A pipelined notification goes out behind its replayed data again. */
    for (msg *m = link->msgs, *next; m; m = next) {
        next = m->next;
        if (m->x && m->x->pipelined && atomic_load(&m->x->pub.parts_left) > 0)
            msg_unlist(m);
    }
    link->cur = link->msgs;
    restart_parts(link);
    int rc = msg_post_recvs(link);
    link_pump(link, UINT64_MAX);
    gr_rail_unlock(link->rail->dev);
    core_wake(link->rail->core);
    return rc;
}

void gr_link_free(gr_link *link)
{
    rail_st *rail = link->rail;
    gr_sess *sess = link->sess;
    gr_core *core = sess->core;
    pthread_mutex_lock(&sess->rx_mu);
    if (atomic_load(&sess->rx_link) == link)
        atomic_store(&sess->rx_link, NULL);
    pthread_mutex_unlock(&sess->rx_mu);
    gr_rail_lock(rail->dev);
    rail_inbox(rail);
    if (link->next)
        link->next->prev = link->prev;
    if (link->prev)
        link->prev->next = link->next;
    else
        rail->links = link->next;
    atomic_fetch_sub(&rail->nlinks, 1);
    gr_rail_unlock(rail->dev);
    sess_unref(sess);
    pthread_mutex_lock(&core->slot_mu);
    link->next = core->free_links;
    core->free_links = link;
    pthread_mutex_unlock(&core->slot_mu);
}

void gr_link_stats_get(gr_link *link, gr_link_stats *out)
{
    gr_rail_lock(link->rail->dev);
    *out = (gr_link_stats){link->tx_bytes, link->rx_msgs, link->wrs, link->completions, link->errors, link->eagain,
                           link->inflight_bytes, link->window, link->rate, link->inflight_ops, link->credits, link->nmsgs,
                           0, link->state};
    for (part *p = link->todo; p; p = p->next)
        out->queued_parts++;
    gr_rail_unlock(link->rail->dev);
}
