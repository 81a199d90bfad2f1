/* The lifecycle of links: made, stopped, reaped after their endpoint was closed, failed, freed. And the replay of their work. */
#include "control.h"

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
    link->credit.cmd.run = msg_credit_cmd;
    atomic_fetch_add(&sess->refs, 1);
    gr_rail_lock(rail->dev);
    int rc = msg_post_recvs(link);
    LIST_INSERT_HEAD(&rail->links, link, list);
    link_busy(link);
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
    link_not_busy(link);
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

/* ---- Replay of a failed link's work: acknowledged, sent again, or handed to other links of its session. */

enum { TRIES = 3, MSG_TRIES = 16 /* six losses in a row are normal on a shared endpoint */, REPLAYS = 200 };

/* Counts a link's failure against the sub-transfer's transfer. A batch that was the first to fail on four endpoints ends
 * its transfer, since other links would fail too. Each failed link with posted batches also counts once against the
 * transfer. That limit ends transfers that would otherwise never end. */
static void count_failure(subxfer *p)
{
    xfer *x = p->x;
    int posted = 0, gave_up = 0;
    for (batch *r = p->batches; r; r = r->next) {
        int sent = r->posted || r->off;
        posted |= sent;
        if (sent)
            COUNT(x->core, GR_C_REPLAYS, 1);
        if (r->at_fault)
            gave_up |= ++r->tries > TRIES;
    }
    if (gave_up || (posted && atomic_fetch_add(&x->replays, 1) >= REPLAYS))
        xfer_fail(x, GR_ERR_BACKEND, atomic_load(&x->pub.wire_err));
    for (batch *r = p->batches; r && !atomic_load(&x->pub.err); r = r->next)
        link_count(p->link, GR_N_RETRIES, r->wrs);
}

/* Returns the link's unfinished batches to their transfers' work queues. */
static void return_batches(gr_link *link)
{
    subxfer *list = NULL, *p;
    while ((p = link->work.todo ? link->work.todo : link->work.waiting)) {
        sub_unlist(p);
        p->next = list;
        list = p;
    }
    while ((p = list)) {
        xfer *x = p->x;
        list = p->next;
        if (x->msg.pipelined && x->msg.done) { /* its notification arrived behind all of its data */
            while (p->batches)
                batch_end(p->batches);
            sub_leave(p);
            continue;
        }
        x->msg.pipelined = 0;
        xfer_not_exclusive(p, SHARED);
        count_failure(p);
        while (p->batches)
            batch_return(p->batches);
        sub_list(p, LIST_TODO);
        if (atomic_load(&x->pub.err))
            sub_drop(p);
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

/* Ends acknowledged notifications after a fence and prepares the others for resending. A pipelined notification goes out
 * behind its data again. */
static void finalize_msgs(gr_link *link, const gr_proof *proof)
{
    for (msg *m = TAILQ_FIRST(&link->out.list), *next; m; m = next) {
        next = TAILQ_NEXT(m, list);
        int at_fault = m->sent.at_fault, sent = m->sent.posted || m->sent.off;
        m->sent = (struct msg_sent){0};
        m->skip |= m->unproved;
        if (m->number.given && proved(proof, m->number.seq))
            msg_end(m, 0);
        else if (m->xfer && at_fault && atomic_load(&m->xfer->subs_left) == 0 && ++m->tries > MSG_TRIES && msg_skip(m) == 0)
            xfer_msg_ended(m, GR_ERR_BACKEND);
        else if (sent)
            link_count(link, GR_N_RETRIES, 1);
    }
    for (msg *m = TAILQ_FIRST(&link->out.list), *next; m; m = next) {
        next = TAILQ_NEXT(m, list);
        if (m->xfer && m->pipelined && atomic_load(&m->xfer->subs_left) > 0)
            msg_unlist(m);
    }
    link->out.cur = TAILQ_FIRST(&link->out.list);
    link_busy(link);
}

static void link_reset(gr_link *link)
{
    link->ep.reported = 0;
    link->ep.missing_recvs = 0;
    link->ep.ops = 0;
    link_inflight(link, 0, link->win.inflight);
    link->win.meas_ns = 0;
    if (!link->rail->shared) { /* a shared endpoint's receives and credits stay */
        credits_reset(link);
        link->probe.received = 0;
        link->probe.answer = link->probe.answered = 0;
    }
    link->probe.posted = 0;
}

int gr_link_rebind(gr_link *link, void *ep, uint32_t epoch, const gr_proof *proof, int probe)
{
    gr_rail_lock(link->rail->dev);
    link->ep.handle = ep;
    link->state = probe ? LINK_PROBING : LINK_UP;
    link->ep.epoch = epoch;
    link_reset(link);
    link->probe.wanted = !probe && link->role & GR_LINK_TX && !link->rail->shared ? PROBE_WAITS : 0;
    finalize_msgs(link, proof);
    return_batches(link);
    int rc = link->rail->shared ? 0 : msg_post_recvs(link);
    if (rc != 0) /* the caller hands its work back: what the library had would be posted twice */
        link_halt(link);
    link_pump(link, UINT64_MAX);
    gr_rail_unlock(link->rail->dev);
    rail_wake(link->rail);
    return rc;
}

void gr_link_up(gr_link *link)
{
    gr_rail_lock(link->rail->dev);
    if (link->state == LINK_PROBING)
        link->state = LINK_UP;
    link_busy(link);
    link_pump(link, UINT64_MAX);
    gr_rail_unlock(link->rail->dev);
    rail_wake(link->rail);
}

void gr_link_hand_back(gr_link *link, const gr_proof *proof)
{
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    finalize_msgs(link, proof);
    return_batches(link);
    sub_evict_idle(link);
    gr_link *notif_link = atomic_load(&link->sess->notif_link);
    for (msg *m = notif_link && notif_link != link ? TAILQ_FIRST(&link->out.list) : NULL, *next; m; m = next) {
        next = TAILQ_NEXT(m, list);
        msg_move(m, notif_link);
    }
    gr_rail_unlock(link->rail->dev);
    rail_wake(link->rail);
}

void gr_link_finalize(gr_link *link)
{
    gr_rail_lock(link->rail->dev);
    subxfer *lists[2] = {link->work.todo, link->work.waiting};
    for (int i = 0; i < 2; i++)
        for (subxfer *p = lists[i], *next; p; p = next) {
            int failed = 0;
            next = p->next;
            for (batch *r = p->batches; r; r = r->next)
                failed |= r->failed;
            if (!failed)
                continue;
            xfer_fail(p->x, GR_ERR_BACKEND, atomic_load(&p->x->pub.wire_err));
            for (batch *r = p->batches; r; r = r->next)
                r->failed = 0;
            sub_drop(p);
        }
    gr_rail_unlock(link->rail->dev);
}

void gr_link_abandon(gr_link *link, int writes)
{
    gr_rail_lock(link->rail->dev);
    subxfer *lists[2] = {link->work.todo, link->work.waiting};
    for (int i = 0; i < 2; i++)
        for (subxfer *p = lists[i], *next; p; p = next) {
            next = p->next;
            if (!atomic_load(&p->x->pub.err) || (p->x->op == GR_WRITE && !writes))
                continue;
            for (batch *r = p->batches; r; r = r->next)
                r->failed = 0;
            sub_drop(p);
        }
    gr_rail_unlock(link->rail->dev);
}
