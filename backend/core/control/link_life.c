/* The lifecycle of links: made, stopped, reaped after their endpoint was closed, failed, freed. */
#include "progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gr_link_new(gr_sess *sess, int rail_idx, int peer_rail, void *ep, uint64_t id, uint64_t peer_id, int role, int probe, gr_link **out)
{
    gr_core *core = sess->core;
    if (rail_idx < 0 || rail_idx >= core->nrails || peer_rail < 0 || peer_rail >= (int)core->cfg.max_rails)
        return -EINVAL;
    rail_st *rail = core->rails[rail_idx];
    if (!rail)
        return -ENODEV;
    pthread_mutex_lock(&core->slots.mu);
    gr_link *link = LIST_FIRST(&core->slots.links), *none = NULL;
    if (link)
        LIST_REMOVE(link, list);
    pthread_mutex_unlock(&core->slots.mu);
    if (!link && (core_event_nodes(core, LINK_EVENTS) != 0 || !(link = GR_ALLOC(core_link, malloc(sizeof *link)))))
        return -ENOMEM;
    memset(link, 0, sizeof *link);
    TAILQ_INIT(&link->out.list);
    link->rail = rail;
    link->sess = sess;
    link->ep.handle = ep;
    link->id = id;
    link->peer_id = peer_id;
    link->peer_rail = peer_rail;
    link->role = role;
    link->state = probe ? LINK_PROBING : LINK_UP;
    link->win.size = link_window(link, core->cfg.window_min * 4);
    link->halted = sub_evict_idle;
    link->credit.cmd.run = msg_credit_cmd;
    atomic_fetch_add(&sess->refs, 1);
    gr_rail_lock(rail->dev);
    int rc = msg_post_recvs(link);
    LIST_INSERT_HEAD(&rail->links, link, list);
    link->id_next = rail->by_id[id % ID_BUCKETS];
    rail->by_id[id % ID_BUCKETS] = link;
    atomic_fetch_add(&rail->nlinks, 1);
    gr_rail_unlock(rail->dev);
    if (role & GR_LINK_TX) /* until Go sets another one */
        atomic_compare_exchange_strong(&sess->notif_link, &none, link);
    if (role & GR_LINK_RX) {
        pthread_mutex_lock(&sess->rx.mu);
        link->rx_next = sess->rx.links;
        sess->rx.links = link;
        pthread_mutex_unlock(&sess->rx.mu);
    }
    *out = link;
    rail_wake(rail);
    return rc;
}

void gr_link_stop(gr_link *link)
{
    gr_rail_lock(link->rail->dev);
    link_halt(link);
    gr_rail_unlock(link->rail->dev);
}

/* Marks batches with unsignaled bytes failed: no later WRITE proves those bytes. Once the peer's endpoint is closed, they
 * are posted again or given up. */
static void reap_unflushed(gr_link *link, subxfer *p)
{
    for (; p; p = p->next)
        for (batch *r = p->batches; r; r = r->next) {
            r->failed |= r->unflushed_bytes != 0;
            link_inflight(link, 0, r->unflushed_bytes);
            r->unflushed_bytes = 0;
        }
}

void gr_link_reap(gr_link *link)
{
    rail_st *rail = link->rail;
    gr_rail_lock(rail->dev);
    while (link->ep.posted && rail_poll(rail, 1024) > 0)
        ;
    while (link->ep.posted) {
        ctx *c = link->ep.posted;
        buf *b = c->buf;
        if (!rail->dev->is.private_ep)
            c->buf = NULL; /* not free before its completion comes */
        if (c->kind == CTX_RMA)
            wr_done(c, ECANCELED);
        else if (c->kind == CTX_SEND)
            msg_sent(c, ECANCELED);
        else
            msg_received(c, ECANCELED, 0);
        if (rail->dev->is.private_ep) {
            ctx_done(rail, c);
            continue;
        }
        c->buf = b;
        ctx_orphan(rail, c);
    }
    reap_unflushed(link, link->work.todo);
    reap_unflushed(link, link->work.waiting);
    msg_take_held(rail); /* Go counts next what has come */
    gr_rail_unlock(rail->dev);
    rail_wake(rail); /* closing an endpoint may have left completions of other links in the queue */
}

void gr_link_catch_up(gr_link *link)
{
    enum { MOST = 64 }; /* completions of other links keep coming */
    gr_rail_lock(link->rail->dev);
    for (int i = 0; i < MOST && rail_poll(link->rail, 1024) == 1024; i++)
        ;
    msg_take_held(link->rail);
    gr_rail_unlock(link->rail->dev);
    rail_wake(link->rail);
}

void gr_link_fail(gr_link *link, int err)
{
    gr_rail_lock(link->rail->dev);
    link->state = LINK_DEAD;
    link->dead_err = err;
    rail_inbox(link->rail);
    while (!TAILQ_EMPTY(&link->out.list))
        msg_end(TAILQ_FIRST(&link->out.list), err);
    subxfer *p;
    while ((p = link->work.todo ? link->work.todo : link->work.waiting)) {
        xfer_fail(p->x, err, 0);
        for (batch *r = p->batches; r; r = r->next)
            r->inflight = r->failed = 0;
        sub_drop(p);
    }
    gr_rail_unlock(link->rail->dev);
}

int gr_link_unproved(gr_link *link)
{
    int found = 0;
    gr_rail_lock(link->rail->dev);
    subxfer *lists[2] = {link->work.todo, link->work.waiting};
    for (int i = 0; i < 2; i++)
        for (subxfer *p = lists[i]; p; p = p->next)
            for (batch *r = p->batches; r; r = r->next)
                found |= r->failed && p->x->op == GR_WRITE; /* a READ ends with our own endpoint */
    gr_rail_unlock(link->rail->dev);
    return found;
}

void gr_link_weight(gr_link *link, uint64_t weight) { atomic_store(&link->win.weight, weight); }

void gr_link_free(gr_link *link)
{
    rail_st *rail = link->rail;
    gr_sess *sess = link->sess;
    gr_core *core = sess->core;
    pthread_mutex_lock(&sess->rx.mu);
    for (gr_link **at = &sess->rx.links; *at; at = &(*at)->rx_next)
        if (*at == link) {
            *at = link->rx_next;
            break;
        }
    pthread_mutex_unlock(&sess->rx.mu);
    gr_rail_lock(rail->dev);
    rail_inbox(rail);
    LIST_REMOVE(link, list);
    for (gr_link **at = &rail->by_id[link->id % ID_BUCKETS]; *at; at = &(*at)->id_next)
        if (*at == link) {
            *at = link->id_next;
            break;
        }
    if (rail->shared)
        rail->rx_surplus += msg_recvs(link);
    link_inflight(link, 0, link->win.inflight);
    atomic_fetch_sub(&rail->nlinks, 1);
    gr_rail_unlock(rail->dev);
    sess_unref(sess);
    pthread_mutex_lock(&core->slots.mu);
    LIST_INSERT_HEAD(&core->slots.links, link, list);
    pthread_mutex_unlock(&core->slots.mu);
}

void gr_link_stats_get(gr_link *link, gr_link_stats *out)
{
    gr_rail_lock(link->rail->dev);
    *out = (gr_link_stats){link->count[GR_N_COMPLETIONS],
                           link->count[GR_N_ERRORS] + link->count[GR_N_FLUSHED],
                           link->win.inflight,
                           link->win.size,
                           link->win.rate,
                           link->ep.ops,
                           credits_left(link),
                           link->out.n,
                           0,
                           link->state};
    for (subxfer *p = link->work.todo; p; p = p->next)
        out->queued_subs++;
    gr_rail_unlock(link->rail->dev);
}
