/* Progress on one rail: takes in completions, posts work, runs the inbox. And events for Go. */
#include "control.h"

#include <errno.h>
#include <sched.h>

/* Takes in operations that completed within their post, for which no event comes. Sends credits for messages that came with
 * them. 1: more work is left, and nothing in flight would give an event. */
static int poll_inline(rail_st *rail)
{
    int n = rail_poll(rail, POLL_MAX), more = rail->work_left, unfinished = n >= POLL_MAX;
    rail->work_left = 0;
    for (gr_link *link = more ? TAILQ_FIRST(&rail->busy) : NULL; link; link = TAILQ_NEXT(link, busy_list)) {
        if (credits_due(link))
            msg_pump(link);
        rail->work_left |= link->work.todo != NULL;
        unfinished |= link->state == LINK_UP && link->work.todo && !link->ep.ops;
    }
    return unfinished;
}

int rail_run(rail_st *rail)
{
    int idle = 0;
    while (atomic_load(&rail->dev->pending)) {
        if (pthread_mutex_trylock(&rail->dev->mu) != 0)
            return 0;
        rail_inbox(rail);
        int unfinished = rail->dev->is.completes_inline && poll_inline(rail);
        idle = !unfinished && !rail->work_left && !rail->rma_ops && !rail->starved;
        gr_rail_leave(rail->dev);
        if (unfinished)
            rail_wake(rail);
    }
    return idle;
}

void rail_kick(gr_rail *dev)
{
    rail_run(dev->core);
    rail_wake_starved(dev->core);
}

static void complete(rail_st *rail, const gr_comp *comp)
{
    ctx *c = (ctx *)comp->ctx;
    if (c->kind == CTX_ORPHAN) { /* a late completion: now the library has released the context too */
        rail_buf_put(rail, c->buf);
        ctx_done(rail, c);
        return;
    }
    gr_link *link = c->link;
    int err = comp->err;
    link_count(link, GR_N_COMPLETIONS, 1);
    atomic_store_explicit(&link->last_ns, rail_now(rail), memory_order_relaxed);
    if (err && c->stopped) { /* expected: the rail was asked to end it */
        link_count(link, GR_N_FLUSHED, 1);
    } else if (err) {
        c->first = link->state == LINK_UP;
        link_count(link, link->state == LINK_UP || link->state == LINK_PROBING ? GR_N_ERRORS : GR_N_FLUSHED, 1);
        if (link != rail->shared) /* messages of other links must still come in */
            link_error(link, err);
    }
    if (!err && link->probe.wanted && c->kind != CTX_RECV)
        link->probe.wanted = PROBE_DUE;
    switch (c->kind) {
    case CTX_RMA: wr_done(c, err); break;
    case CTX_SEND: msg_sent(c, err); break;
    case CTX_RECV: msg_received(c, err, comp->len); break;
    }
    ctx_done(rail, c);
}

/* Takes in completions until there are none or max is reached. Caller holds the rail's lock. */
int rail_poll(rail_st *rail, int max)
{
    gr_comp comp[POLL_BATCH];
    int total = 0;
    while (total < max) {
        int n = rail->dev->ops->poll(rail->dev, comp, POLL_BATCH);
        for (gr_link *link = n < 0 ? LIST_FIRST(&rail->links) : NULL; link; link = LIST_NEXT(link, list)) /* the completion queue itself has failed */
            link_error(link, -n);
        if (n <= 0)
            break;
        atomic_store_explicit(&rail->now, rail->coarse_clock ? core_tick(rail->core) : gr_now_ns(), memory_order_relaxed);
        for (int i = 0; i < n; i++)
            complete(rail, &comp[i]);
        total += n;
        if (n < POLL_BATCH)
            break;
    }
    if (total)
        COUNT(rail->core, GR_C_COMPLETIONS, (uint64_t)total);
    return total;
}

/* With failpoints, and in ctest: no link has work that progress would not look at. */
static void check_busy(const rail_st *rail)
{
#if defined GR_FAILPOINTS_ON || defined GR_TEST_PAUSE
    const gr_link *link;
    LIST_FOREACH (link, &rail->links, list)
        if (!link->busy && link_has_work(link))
            abort();
#else
    (void)rail;
#endif
}

/* Each link with work posts what it can. */
static void pump_links(rail_st *rail)
{
    check_busy(rail);
    gr_link *last = TAILQ_LAST(&rail->busy, busy_links);
    for (gr_link *link = TAILQ_FIRST(&rail->busy), *next; link; link = next) {
        next = link == last ? NULL : TAILQ_NEXT(link, busy_list); /* a link that becomes busy meanwhile: the next step */
        if (link_has_work(link))
            link_pump(link, UINT64_MAX);
        if (!link_has_work(link))
            link_not_busy(link);
    }
}

static int rail_assist(rail_st *rail) { return rail->dev->ops->assist ? rail->dev->ops->assist(rail->dev) : 0; }

/* One step of progress. Caller holds the rail's lock; the step releases it. */
static int step(rail_st *rail)
{
    int n = rail_poll(rail, POLL_MAX);
    uint32_t before = rail->rma_ops;
    rail_inbox(rail);
    rail->starved = 0;
    msg_take_held(rail);
    pump_links(rail);
    if (rail->shared && rail->shared->ep.missing_recvs)
        msg_pump(rail->shared);
    if (rail->dev->is.completes_inline && rail->rma_ops != before && poll_inline(rail))
        n = POLL_MAX;
    n += !n && rail->dev->soon && rail->core->cfg.spin_for_peers;
    rail->dev->soon = 0;
    gr_rail_leave(rail->dev);
    rail_run(rail);
    return n;
}

int rail_progress(rail_st *rail, int *assisted)
{
    *assisted = 0;
    if (atomic_load_explicit(&rail->nlinks, memory_order_relaxed) == 0 && !atomic_load(&rail->dev->pending))
        return 0;
    int waited_for = atomic_load(&rail->dev->waiters) > 0;
    if (waited_for || pthread_mutex_trylock(&rail->dev->mu) != 0) {
        *assisted = rail_assist(rail);
        if (waited_for && !*assisted)
            sched_yield();
        return -1;
    }
    int n = step(rail);
    if (n || !(*assisted = rail_assist(rail)))
        return n;
    if (!atomic_load(&rail->dev->waiters) && pthread_mutex_trylock(&rail->dev->mu) == 0) /* the copy may have been the last of a transfer */
        n = step(rail);
    return n ? n : 1;
}

/* ---- Events for Go: those of the queue, and those that there was no memory for. */

/* Looks at all links and transfers, since one has an event that is not in the queue. */
static int look(gr_core *core, gr_event *out, int max)
{
    int n = 0, one = 0;
    for (int i = 0, rails = core->nrails; i < rails && one >= 0; i++) {
        rail_st *rail = core->rails[i];
        gr_link *link;
        if (!rail)
            continue;
        gr_rail_lock(rail->dev);
        LIST_FOREACH (link, &rail->links, list) {
            if ((one = core_events_owed(core, &link->owed, out + n, max - n)) < 0)
                break;
            n += one;
        }
        gr_rail_unlock(rail->dev);
    }
    pthread_mutex_lock(&core->slots.mu);
    for (struct xfer_block *b = core->slots.blocks; b && one >= 0; b = b->next)
        for (size_t i = 0; i < sizeof b->x / sizeof b->x[0] && one >= 0; i++)
            if ((one = core_events_owed(core, &b->x[i].owed, out + n, max - n)) > 0)
                n += one;
    pthread_mutex_unlock(&core->slots.mu);
    if (one < 0)
        atomic_store(&core->events.owed, 1); /* the rest comes with the next call */
    return n;
}

/* The queue goes first: an object with an owed event has no later one in the queue. */
int gr_events_take(gr_core *core, gr_event *out, int max)
{
    int n = core_events_queued(core, out, max);
    if (max - n >= 2 && atomic_exchange(&core->events.owed, 0))
        n += look(core, out + n, max - n);
    return n;
}
