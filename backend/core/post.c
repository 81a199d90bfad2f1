/* Posting a transfer, and striping: its links are chosen and its sub-transfers start. Then notifications for Go. */
#include "control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int prepare(xfer *x, gr_link *const *links, uint32_t nsubs, int has_notif, const void *body, size_t len)
{
    if (nsubs > x->sub_cap) {
        subxfer *subs = GR_ALLOC(core_subs, realloc(x->subs, nsubs * sizeof *subs));
        if (!subs)
            return -ENOMEM;
        x->subs = subs;
        x->sub_cap = nsubs;
    }
    char *copy = x->msg.small;
    if (has_notif && len > sizeof x->msg.small && !(copy = GR_ALLOC(core_xfer_notif, malloc(len))))
        return -ENOMEM;
    msg_body_free(&x->msg);
    memset(&x->msg, 0, offsetof(msg, small));
    memset(x->subs, 0, nsubs * sizeof *x->subs);
    if (has_notif && len) {
        memcpy(copy, body, len); /* ours */
        x->msg.body = copy;
    }
    x->msg.len = len;
    x->msg.xfer = &x->pub;
    for (uint32_t i = 0; i < nsubs; i++) {
        x->subs[i].start.run = sub_start;
        x->subs[i].release.run = sub_release;
        x->subs[i].late.run = sub_late;
        x->subs[i].idle = 1;
        x->subs[i].x = x;
        x->subs[i].link = links[i];
        x->subs[i].own = (uint8_t)links[i]->rail->index;
        x->subs[i].peer = (uint8_t)links[i]->peer_rail;
    }
    return 0;
}

/* Estimates the time that the link would take: the bytes in flight on its rail, those to other peers too, and its own once more, divided by its
 * speed. Its own count twice so that links of one rail share the work, also if one is a little faster. Measured rates count once all links
 * have one. A link far from the memory counts double, as NUMA distances do: it is used when the near ones are busy. */
static double cost(const gr_link *link, uint64_t bytes, int measured, int far)
{
    uint64_t speed = measured ? link->win.rate_pub : atomic_load_explicit(&link->win.weight, memory_order_relaxed);
    uint64_t load = atomic_load_explicit(&link->rail->load, memory_order_relaxed) + atomic_load_explicit(&link->win.load, memory_order_relaxed);
    double c = (double)(load + bytes) / (double)(speed ? speed : 1);
    return far ? 2 * c : c;
}

/* Activates up to `want` sub-transfers, those with the least busy links first. Equally busy links take turns. Links of the other
 * threads are left out unless `all`: to wake their threads costs more than a small transfer takes. */
static uint32_t choose(xfer *x, uint32_t want, int all)
{
    uint32_t n = x->nsubs, near = x->near, from = n > 1 ? atomic_fetch_add(&x->sess->turn, 1) : 0, chosen = 0;
    int measured = 1;
    uint8_t yields[GR_MAX_LINKS];
    for (uint32_t i = 0; i < n; i++) {
        yields[i] = (uint8_t)xfer_yields(x, x->subs[i].link);
        measured &= x->subs[i].link->win.rate_pub != 0;
    }
    while (chosen < want) {
        subxfer *best = NULL;
        double least = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = (from + i) % n;
            subxfer *p = &x->subs[k];
            if (atomic_load(&p->active) || atomic_load(&p->link->state) != LINK_UP || yields[k] || (p->link->rail->dev->worker && !all))
                continue;
            double c = cost(p->link, x->pub.bytes, measured, near && k >= near);
            if (!best || c < least) {
                best = p;
                least = c;
            }
        }
        /* The first thread has no link that is up, or has more than it can post: many transfers are work for all threads. */
        if (!all && (best ? x->pub.bytes > SMALL && atomic_load_explicit(&best->link->work.any, memory_order_relaxed) : !chosen)) {
            all = 1;
            continue;
        }
        if (!best)
            break;
        atomic_store(&best->active, 1);
        chosen++;
    }
    for (uint32_t i = 0; want > 1 && chosen && i < n; i++)
        if (yields[i] && atomic_load(&x->subs[i].link->state) == LINK_UP) { /* it waits, and works when it yields no longer */
            atomic_store(&x->subs[i].active, 1);
            chosen++;
        }
    if (chosen == 0) { /* no link is up: the first waits for its link, or for another sub-transfer that takes its work */
        atomic_store(&x->subs[0].active, 1);
        chosen = 1;
    }
    return chosen;
}

/* Starts a new round: resets the values that checks and deadlines read, before the state is running. */
static void xfer_stamp(xfer *x, const gr_link *link)
{
    gr_xfer *pub = &x->pub;
    atomic_store(&pub->err, 0);
    atomic_store(&pub->wire_err, 0);
    atomic_store(&pub->done, 0);
    int busy = atomic_load_explicit(&link->rail->load, memory_order_relaxed) != 0;
    uint64_t now = busy ? core_tick(x->core) : gr_now_ns();
    atomic_store(&pub->coarse, (uint32_t)busy);
    atomic_store(&pub->posted_ns, now);
    atomic_store(&pub->last_ns, now);
}

/* Starts the sub-transfers. The state is running already. */
static void xfer_start(xfer *x, gr_link *const *links, uint32_t nlinks, int has_notif, const void *body, size_t len)
{
    gr_xfer *pub = &x->pub;
    x->has_notif = has_notif != 0;
    atomic_store(&x->replays, 0);
    x->queue.next = 0;
    x->sess = links[0]->sess;
    x->sess_id = x->sess->id;
    int rc = prepare(x, links, nlinks, has_notif, body, len);
    x->nsubs = rc ? 0 : nlinks; /* not before its sub-transfers are there */
    if (rc) {
        xfer_fail(x, GR_ERR_BACKEND, ENOMEM);
        xfer_end(x);
        return;
    }
    if (has_notif)
        atomic_fetch_add(&x->sess->tx_queued, len + OVERHEAD);
    uint64_t most = pub->bytes / x->core->cfg.batch_bytes, batches = most < pub->nops ? most : pub->nops;
    uint32_t n = 1;
    if (nlinks == 1)
        atomic_store(&x->subs[0].active, 1);
    else
        n = choose(x, batches < 1 || x->bulk.rail ? 1 : batches < nlinks ? (uint32_t)batches : nlinks, pub->bytes >= x->core->cfg.spread_min);
    subxfer *in[GR_MAX_LINKS];
    rail_st *rails[GR_MAX_LINKS];
    uint32_t k = 0;
    gr_core *core = x->core; /* x may be freed below */
    for (uint32_t i = 0; i < nlinks; i++)
        if (atomic_load(&x->subs[i].active)) {
            rails[k] = links[i]->rail;
            in[k++] = &x->subs[i];
        }
    atomic_store(&x->shared, n > 1 ? SHARED : 0);
    atomic_store(&x->pub.subs_left, n);
    for (uint32_t i = 0; i < n; i++) /* after the last push x may end and be posted again */
        rail_push(rails[i], &in[i]->start);
    int idle = 1;
    for (uint32_t i = 0; i < n; i++)
        if (rails[i]->dev->worker) /* before this thread sends its share */
            rail_wake(rails[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!rails[i]->dev->worker) {
            idle &= rail_run(rails[i]);
            rail_wake_starved(rails[i]);
        }
    if (idle)
        core_posted(core);
}

void gr_xfer_post(gr_core *core, gr_xfer *pub, gr_link *const *links, uint32_t nlinks, uint32_t near, int has_notif, const void *body, size_t len)
{
    xfer *x = (xfer *)pub;
    COUNT(core, GR_C_TO_C_POST, 1);
    x->near = near;
    xfer_stamp(x, links[0]);
    xfer_start(x, links, nlinks, has_notif, body, len);
}

/* Posts the transfer again without Go. A call into Go from a thread that Go does not know wakes Go's sleeping scheduler: at
 * least two futex calls a post. The results of Go's last post (the peer exists, its keys are valid, these links reach the
 * memory) hold while the transfer has its cached post. Go withdraws the cached post before it changes any of them. */
static int repost(xfer *x, int has_notif, const void *body, size_t len)
{
    gr_link *links[GR_MAX_LINKS];
    uint32_t n = x->nsubs;
    for (uint32_t i = 0; i < n; i++)
        links[i] = x->subs[i].link;
    COUNT(x->core, GR_C_REPOSTS, 1);
    atomic_store_explicit(&x->pub.reposts, atomic_load_explicit(&x->pub.reposts, memory_order_relaxed) + 1,
                          memory_order_relaxed); /* one poster at a time */
    xfer_stamp(x, links[0]); /* first: a deadline check must not see state running with the last round's time */
    atomic_store(&x->pub.state, GR_XFER_RUNNING);
    xfer_start(x, links, n, has_notif, body, len);
    return atomic_load(&x->pub.state) != 0 || (x->op == GR_READ && core_flushes(x->core)); /* then gr_check reports the end */
}

int gr_repost(gr_core *core, gr_xfer *pub, uint64_t handle, int has_notif, const void *body, size_t len)
{
    uint32_t valid = GR_CACHED_VALID;
    int rc = GR_NOT_TAKEN;
    (void)core;
    if ((has_notif && len > GR_MAX_NOTIF) || !atomic_compare_exchange_strong(&pub->cached, &valid, GR_CACHED_IN_USE))
        return rc;
    if (atomic_load(&pub->handle) == handle && atomic_load(&pub->state) == 0)
        rc = repost((xfer *)pub, has_notif, body, len);
    uint32_t in_use = GR_CACHED_IN_USE;
    if (!atomic_compare_exchange_strong(&pub->cached, &in_use, GR_CACHED_VALID))
        atomic_store_explicit(&pub->cached, GR_CACHED_NONE, memory_order_release);
    return rc;
}

void gr_xfer_join(gr_core *core, gr_xfer *pub, gr_link *link)
{
    xfer *x = (xfer *)pub;
    subxfer *p = NULL;
    rail_st *other = NULL;
    for (uint32_t i = 0; i < x->nsubs; i++)
        if (x->subs[i].link == link)
            p = &x->subs[i];
    if (!p)
        return;
    gr_rail_lock(link->rail->dev);
    uint32_t was = 0, n = atomic_load(&pub->subs_left);
    while (n && !atomic_compare_exchange_weak(&pub->subs_left, &n, n + 1))
        ;
    GR_PAUSE(GR_PAUSE_JOIN);
    if (n) {
        int open = atomic_compare_exchange_strong(&x->shared, &was, SHARED) || was == SHARED;
        if (!open) {
            if (atomic_fetch_add(&p->late_count, 1) == 0) { /* else late is in an inbox already and takes this count along; x may be gone */
                p->late_sub = was >> EXCLUSIVE_SHIFT;
                other = x->subs[p->late_sub].link->rail;
                rail_push(other, &p->late); /* x may be gone from here on */
            }
        } else if (!atomic_exchange(&p->active, 1)) {
            sub_start(link->rail, &p->start);
        } else {
            sub_out(x, link);
        }
    }
    GR_PAUSE(GR_PAUSE_JOINED);
    gr_rail_unlock(link->rail->dev);
    if (other)
        rail_run(other);
    core_wake(core);
}

/* ---- Notifications for Go: sent, moved to another link, and taken from a link of an ended session for the next session. */

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
