/* Replay of a failed link's work: acknowledged, sent again, or handed to other links of its session. */
#include "progress.h"

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
            m->ended(m, GR_ERR_BACKEND);
        else if (sent)
            link_count(link, GR_N_RETRIES, 1);
    }
    for (msg *m = TAILQ_FIRST(&link->out.list), *next; m; m = next) {
        next = TAILQ_NEXT(m, list);
        if (m->xfer && m->pipelined && atomic_load(&m->xfer->subs_left) > 0)
            msg_unlist(m);
    }
    link->out.cur = TAILQ_FIRST(&link->out.list);
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
