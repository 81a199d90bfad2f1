/* The lives of links: made, stopped, emptied after their endpoint was closed, bound to another, given up. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gr_link_new(gr_sess *sess, int rail_idx, int peer_rail, void *ep, uint64_t id, uint64_t peer_id, int role,
                int probe, gr_link **out)
{
    gr_core *core = sess->core;
    if (rail_idx < 0 || rail_idx >= core->nrails || peer_rail < 0 || peer_rail >= (int)core->cfg.max_rails)
        return -EINVAL;
    rail_st *rail = core->rails[rail_idx];
    pthread_mutex_lock(&core->slot_mu);
    gr_link *link = core->free_links, *none = NULL;
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
    link->peer_id = peer_id;
    link->peer_rail = peer_rail;
    link->role = role;
    link->state = probe ? LINK_PROBING : LINK_UP;
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
    link->id_next = rail->by_id[id % ID_BUCKETS];
    rail->by_id[id % ID_BUCKETS] = link;
    atomic_fetch_add(&rail->nlinks, 1);
    gr_rail_unlock(rail->dev);
    if (role & GR_LINK_TX) /* until Go says otherwise */
        atomic_compare_exchange_strong(&sess->home, &none, link);
    if (role & GR_LINK_RX) {
        pthread_mutex_lock(&sess->rx_mu);
        link->rx_next = sess->rx_links;
        sess->rx_links = link;
        pthread_mutex_unlock(&sess->rx_mu);
    }
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
        int weak = 0;
        next = p->next;
        for (run *r = p->runs; r; r = r->next) {
            weak |= r->weak_bytes != 0;
            link->inflight_bytes -= r->weak_bytes;
            r->weak_bytes = 0;
        }
        if (weak && atomic_load(&p->x->pub.err))
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
        buf *b = c->buf;
        if (!rail->dev->private_ep)
            c->buf = NULL; /* not free before its completion comes */
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
        link->posted = c->next;
        if (c->next)
            c->next->prev = NULL;
        c->buf = b;
        rail_grave(rail, c, 1);
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
        for (run *r = p->runs; r; r = r->next)
            r->inflight = 0;
        part_drop(p);
    }
    gr_rail_unlock(link->rail->dev);
}

/* An error of its own may come again; being cancelled along with others costs next to nothing. */
static void charge(xfer *x, const run *r)
{
    int posted = r->posted || r->off;
    if (posted)
        COUNT(x->core, GR_C_REPLAYS, 1);
    if ((r->blamed && atomic_fetch_add(&x->attempts, 1) >= 3) || (posted && atomic_fetch_add(&x->replays, 1) >= 200))
        xfer_fail(x, ST_BACKEND, atomic_load(&x->pub.wire_err));
}

/* Gives back to their transfers' pools what the link has taken and not proved. */
static void give_back(gr_link *link)
{
    part *list = NULL, *p;
    while ((p = link->todo ? link->todo : link->waiting)) {
        part_unlist(p);
        p->next = list;
        list = p;
    }
    while ((p = list)) {
        xfer *x = p->x;
        list = p->next;
        if (x->pipelined && x->msg.done) { /* its notification arrived behind all of its data */
            while (p->runs)
                run_end(p->runs);
            part_leave(p);
            continue;
        }
        x->pipelined = 0;
        while (p->runs) {
            charge(x, p->runs);
            run_back(p->runs);
        }
        part_list(p, LIST_TODO);
        if (atomic_load(&x->pub.err))
            part_drop(p);
    }
}

static int proved(const gr_proof *proof, uint64_t seq)
{
    if (seq < proof->next)
        return 1;
    for (size_t i = 0; i < proof->nhave && proof->have[i] <= seq; i++)
        if (proof->have[i] == seq)
            return 1;
    return 0;
}

/* What is known of the link's notifications after a fence. A pipelined one goes out behind its data again. */
static void settle_msgs(gr_link *link, const gr_proof *proof)
{
    for (msg *m = link->msgs, *next; m; m = next) {
        next = m->next;
        xfer *x = m->x;
        int blamed = m->blamed;
        m->inflight = 0;
        m->failed = m->blamed = m->posted = 0;
        m->off = 0;
        m->skip |= m->unproved;
        if (m->numbered && proved(proof, m->seq))
            msg_end(m, 0);
        else if (x && blamed && atomic_load(&x->pub.parts_left) == 0 && atomic_fetch_add(&x->attempts, 1) >= 3 &&
                 msg_gap(m) == 0)
            xfer_msg_end(x, ST_BACKEND);
    }
    for (msg *m = link->msgs, *next; m; m = next) {
        next = m->next;
        if (m->x && m->x->pipelined && atomic_load(&m->x->pub.parts_left) > 0)
            msg_unlist(m);
    }
    link->cur = link->msgs;
}

static int rail_of_hub(const gr_link *link)
{
    return link->rail->hub != NULL;
}

static void fresh(gr_link *link)
{
    link->reported = 0;
    link->recv_debt = 0;
    link->inflight_ops = 0;
    link->inflight_bytes = 0;
    atomic_store(&link->load, 0);
    link->meas_ns = 0;
    link->owed = 0;
    link->credits = link->role & GR_LINK_TX ? RX_BUFS : 0;
    link->probe = 0;
}

int gr_link_rebind(gr_link *link, void *ep, uint32_t epoch, const gr_proof *proof, int probe)
{
    gr_rail_lock(link->rail->dev);
    link->ep = ep;
    link->state = probe ? LINK_PROBING : LINK_UP;
    link->epoch = epoch;
    fresh(link);
    settle_msgs(link, proof);
    give_back(link);
    int rc = rail_of_hub(link) ? 0 : msg_post_recvs(link);
    link_pump(link, UINT64_MAX);
    gr_rail_unlock(link->rail->dev);
    core_wake(link->rail->core);
    return rc;
}

void gr_link_up(gr_link *link)
{
    gr_rail_lock(link->rail->dev);
    if (link->state == LINK_PROBING)
        link->state = LINK_UP;
    link_pump(link, UINT64_MAX);
    gr_rail_unlock(link->rail->dev);
    core_wake(link->rail->core);
}

void gr_link_yield(gr_link *link, const gr_proof *proof)
{
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    settle_msgs(link, proof);
    give_back(link);
    for (part *p = link->todo, *next; p; p = next) {
        next = p->next;
        part_evict(p);
    }
    gr_link *home = atomic_load(&link->sess->home);
    for (msg *m = home && home != link ? link->msgs : NULL, *next; m; m = next) {
        next = m->next;
        msg_move(m, home);
    }
    gr_rail_unlock(link->rail->dev);
    core_wake(link->rail->core);
}

void gr_link_weight(gr_link *link, uint64_t weight)
{
    atomic_store(&link->weight, weight);
}

void gr_sess_home(gr_sess *sess, gr_link *link)
{
    atomic_store(&sess->home, link);
}

void gr_link_free(gr_link *link)
{
    rail_st *rail = link->rail;
    gr_sess *sess = link->sess;
    gr_core *core = sess->core;
    pthread_mutex_lock(&sess->rx_mu);
    for (gr_link **at = &sess->rx_links; *at; at = &(*at)->rx_next)
        if (*at == link) {
            *at = link->rx_next;
            break;
        }
    pthread_mutex_unlock(&sess->rx_mu);
    gr_rail_lock(rail->dev);
    rail_inbox(rail);
    if (link->next)
        link->next->prev = link->prev;
    if (link->prev)
        link->prev->next = link->next;
    else
        rail->links = link->next;
    for (gr_link **at = &rail->by_id[link->id % ID_BUCKETS]; *at; at = &(*at)->id_next)
        if (*at == link) {
            *at = link->id_next;
            break;
        }
    if (rail->hub)
        rail->rx_surplus += msg_recvs(link);
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
