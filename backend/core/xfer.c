/* Transfers inside the core. */
#include "core_int.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The last thing the core does to a running transfer: from the exchange on it is the application's and Go's. */
static void xfer_end(xfer *x)
{
    gr_core *core = x->core;
    int err = atomic_load(&x->pub.err);
    gr_event ev = {.kind = GR_EV_XFER, .code = err, .id = atomic_load(&x->pub.handle)};
    COUNT(core, err ? GR_C_XFERS_FAILED : GR_C_XFERS_DONE, 1);
    int old = atomic_exchange(&x->pub.state, err ? GR_XFER_FAILED : 0);
    if (err || (old & GR_XFER_WANT))
        core_event(core, &ev, NULL);
}

/* Notes the first error; parts end as they drain. */
void xfer_fail(xfer *x, int err, int wire_err)
{
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&x->pub.err, &none, err) && wire_err)
        atomic_store(&x->pub.wire_err, wire_err);
}

/* The data is done and the transfer's notification has its turn, on the home link's rail. */
static void finish(xfer *x, gr_link *home)
{
    msg *m = &x->msg;
    int err = atomic_load(&x->pub.err);
    if (!err) {
        msg_queue(home, m);
        msg_pump(home);
    } else if (m->numbered && !m->done) { /* the peer waits for that number */
        m->link = home;
        if (msg_gap(m) != 0) {
            m->skip = 1;
            msg_queue(home, m);
        } else {
            xfer_end(x);
        }
        msg_pump(home);
    } else {
        if (!m->done)
            atomic_fetch_sub(&x->sess->tx_queued, m->len + OVERHEAD);
        xfer_end(x);
    }
}

void xfer_cmd_fin(rail_st *rail, cmd *self)
{
    xfer *x = (xfer *)(void *)((char *)self - offsetof(xfer, fin));
    gr_link *home = atomic_load(&x->sess->home);
    if (home->rail == rail) {
        finish(x, home);
        return;
    }
    rail_push(home->rail, self); /* the session has moved */
    core_wake(rail->core);
}

/* Every part has left; link is the last one's, its rail held. */
void xfer_data_done(xfer *x, gr_link *link)
{
    msg *m = &x->msg;
    rail_st *rail = link->rail;
    int err = atomic_load(&x->pub.err);
    pool_drop(x, rail);
    if (!x->has_notif || (!err && m->done)) {
        xfer_end(x);
    } else if (m->listed && err && !m->numbered) {
        msg_end(m, err); /* ends x too */
    } else if (m->listed) { /* pipelined on this very link; without memory, its last completion ends x */
        if (err || m->posted)
            msg_part(m, err);
    } else {
        gr_link *home = atomic_load(&x->sess->home);
        if (home->rail == rail) {
            finish(x, home);
            return;
        }
        x->fin.run = xfer_cmd_fin;
        rail_push(home->rail, &x->fin);
        home->rail->dev->kick(home->rail->dev); /* tries the lock only; else its holder does it */
    }
}

void xfer_msg_ended(msg *m, int err)
{
    xfer *x = (xfer *)m->xfer;
    if (err)
        xfer_fail(x, err, 0);
    if (atomic_load(&x->pub.parts_left) == 0)
        xfer_end(x);
}

static uint32_t sole_mark(const part *p)
{
    return SOLE | (uint32_t)(p - p->x->parts) << SOLE_SHIFT;
}

/* Whether the part's link has done the transfer alone, up to its last run, and will send the notification behind it: then the
 * link's order is all the proof that the peer needs. Once said it stays, as long as something of that run is posted. */
int xfer_sole(part *p)
{
    xfer *x = p->x;
    uint32_t none = 0;
    if (p->sole)
        return 1;
    if (!x->has_notif || atomic_load(&x->shared) || x->op != GR_WRITE || !p->link->rail->dev->ordered || pool_has(x))
        return 0;
    if (p->link != atomic_load(&x->sess->home) && atomic_load(&x->sess->tx_queued) > x->msg.len + OVERHEAD)
        return 0; /* others wait on the home link: they were first */
    p->sole = atomic_compare_exchange_strong(&x->shared, &none, sole_mark(p)); /* from here on no other comes in */
    return p->sole;
}

/* Its last run goes back to the pool with nothing of it posted (0), or posted on a link that has failed (SHARED). */
void xfer_not_sole(part *p, uint32_t now)
{
    uint32_t sole = sole_mark(p);
    if (p->sole)
        atomic_compare_exchange_strong(&p->x->shared, &sole, now);
    p->sole = 0;
}

/* On an ordered link the notification needs no wait: its receive proves the data before it. */
void xfer_try_pipeline(part *p)
{
    xfer *x = p->x;
    if (x->msg.listed || !xfer_sole(p))
        return;
    x->msg.pipelined = 1;
    msg_queue(p->link, &x->msg);
}

static int prepare(xfer *x, gr_link *const *links, uint32_t nparts, int has_notif, const void *body, size_t len)
{
    if (nparts > x->part_cap) {
        part *parts = realloc(x->parts, nparts * sizeof *parts);
        if (!parts)
            return -ENOMEM;
        x->parts = parts;
        x->part_cap = nparts;
    }
    char *copy = NULL;
    if (has_notif && len && !(copy = malloc(len)))
        return -ENOMEM;
    free(x->msg.body);
    memset(&x->msg, 0, sizeof x->msg);
    memset(x->parts, 0, nparts * sizeof *x->parts);
    if (copy)
        memcpy(copy, body, len);
    x->msg.body = copy;
    x->msg.len = len;
    x->msg.xfer = &x->pub;
    x->msg.ended = xfer_msg_ended;
    for (uint32_t i = 0; i < nparts; i++) {
        x->parts[i].start.run = part_start;
        x->parts[i].nudge.run = part_nudge;
        x->parts[i].late.run = part_late;
        x->parts[i].idle = 1;
        x->parts[i].x = x;
        x->parts[i].link = links[i];
        x->parts[i].own = (uint8_t)links[i]->rail->index;
        x->parts[i].peer = (uint8_t)links[i]->peer_rail;
    }
    return 0;
}

/* How long the link would take, roughly: what it has to do over its speed. Measured rates count once all have one. A link
 * that is far from the memory counts double, as the distance of NUMA nodes does: it is taken when the near ones are busy. */
static double cost(const gr_link *link, uint64_t bytes, int measured, int far)
{
    uint64_t speed = measured ? link->rate_pub : atomic_load_explicit(&link->weight, memory_order_relaxed);
    double c = (double)(atomic_load_explicit(&link->load, memory_order_relaxed) + bytes) / (double)(speed ? speed : 1);
    return far ? 2 * c : c;
}

/* Marks `want` of the parts as in, the least busy links first; of equals each is first in turn. */
static uint32_t choose(xfer *x, uint32_t want)
{
    uint32_t n = x->nparts, near = x->near, from = n > 1 ? atomic_fetch_add(&x->sess->turn, 1) : 0, chosen = 0;
    int measured = 1;
    for (uint32_t i = 0; i < n; i++)
        measured &= x->parts[i].link->rate_pub != 0;
    while (chosen < want) {
        part *best = NULL;
        double least = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = (from + i) % n;
            part *p = &x->parts[k];
            if (atomic_load(&p->in) || atomic_load(&p->link->state) != LINK_UP)
                continue;
            double c = cost(p->link, x->pub.bytes, measured, near && k >= near);
            if (!best || c < least) {
                best = p;
                least = c;
            }
        }
        if (!best)
            break;
        atomic_store(&best->in, 1);
        chosen++;
    }
    if (chosen == 0) { /* none is up: the first waits until it is, or another calls it off */
        atomic_store(&x->parts[0].in, 1);
        chosen = 1;
    }
    return chosen;
}

/* A new round: what checks and deadlines look at, before it is running. */
void xfer_stamp(xfer *x, const gr_link *link)
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

void gr_xfer_post(gr_core *core, gr_xfer *pub, gr_link *const *links, uint32_t nlinks, uint32_t near, int has_notif,
                  const void *body, size_t len)
{
    xfer *x = (xfer *)pub;
    COUNT(core, GR_C_TO_C_POST, 1);
    x->near = near;
    xfer_stamp(x, links[0]);
    xfer_start(x, links, nlinks, has_notif, body, len);
}

/* With state running. */
void xfer_start(xfer *x, gr_link *const *links, uint32_t nlinks, int has_notif, const void *body, size_t len)
{
    gr_xfer *pub = &x->pub;
    x->has_notif = has_notif != 0;
    atomic_store(&x->replays, 0);
    x->nparts = nlinks;
    x->next = 0;
    x->sess = links[0]->sess;
    if (prepare(x, links, nlinks, has_notif, body, len) != 0) {
        x->nparts = 0;
        xfer_fail(x, GR_ERR_BACKEND, ENOMEM);
        xfer_end(x);
        return;
    }
    if (has_notif)
        atomic_fetch_add(&x->sess->tx_queued, len + OVERHEAD);
    uint64_t most = pub->bytes / x->core->cfg.run_bytes, runs = most < pub->nops ? most : pub->nops;
    uint32_t n = choose(x, runs < 1 || x->bulk ? 1 : runs < nlinks ? (uint32_t)runs : nlinks);
    part *in[GR_MAX_LINKS];
    rail_st *rails[GR_MAX_LINKS];
    uint32_t k = 0;
    gr_core *core = x->core; /* for when x is gone */
    for (uint32_t i = 0; i < nlinks; i++)
        if (atomic_load(&x->parts[i].in)) {
            rails[k] = links[i]->rail;
            in[k++] = &x->parts[i];
        }
    atomic_store(&x->shared, n > 1 ? SHARED : 0);
    atomic_store(&x->pub.parts_left, n);
    for (uint32_t i = 0; i < n; i++) /* with the last push x may end and be posted again */
        rail_push(rails[i], &in[i]->start);
    int settled = 1;
    for (uint32_t i = 0; i < n; i++) {
        settled &= rail_run(rails[i]);
        rail_unstarve(rails[i]);
    }
    if (settled)
        core_posted(core);
}

void gr_xfer_join(gr_core *core, gr_xfer *pub, gr_link *link)
{
    xfer *x = (xfer *)pub;
    part *p = NULL;
    rail_st *other = NULL;
    for (uint32_t i = 0; i < x->nparts; i++)
        if (x->parts[i].link == link)
            p = &x->parts[i];
    if (!p)
        return;
    gr_rail_lock(link->rail->dev);
    uint32_t was = 0, n = atomic_load(&pub->parts_left);
    while (n && !atomic_compare_exchange_weak(&pub->parts_left, &n, n + 1))
        ;
    GR_PAUSE(GR_PAUSE_JOIN);
    if (n) {
        int open = atomic_compare_exchange_strong(&x->shared, &was, SHARED) || was == SHARED;
        if (!open) {
            p->late_to = was >> SOLE_SHIFT;
            other = x->parts[p->late_to].link->rail;
            rail_push(other, &p->late); /* x may be gone from here on */
        } else if (!atomic_exchange(&p->in, 1)) {
            part_start(link->rail, &p->start);
        } else {
            part_out(x, link);
        }
    }
    GR_PAUSE(GR_PAUSE_JOINED);
    gr_rail_unlock(link->rail->dev);
    if (other)
        rail_run(other);
    core_wake(core);
}

/* Its notification, if it waits on that rail. */
static void abort_msg(xfer *x, rail_st *rail, int err)
{
    msg *m = &x->msg;
    if (atomic_load(&m->listed) != rail)
        return;
    if (!m->numbered)
        msg_end(m, err);
    else if (atomic_load(&x->pub.parts_left) == 0)
        msg_part(m, err);
}

int gr_xfer_abort(gr_core *core, gr_xfer *pub, int err)
{
    xfer *x = (xfer *)pub;
    (void)core;
    xfer_fail(x, err, 0);
    for (uint32_t i = 0; i < x->nparts; i++) {
        part *p = &x->parts[i];
        gr_rail *dev = p->link->rail->dev;
        gr_rail_lock(dev);
        rail_inbox(p->link->rail);
        if (p->listed) /* else it drops itself when it starts */
            part_drop(p);
        abort_msg(x, p->link->rail, err);
        gr_rail_unlock(dev);
    }
    gr_link *home = x->sess ? atomic_load(&x->sess->home) : NULL;
    if (home && (atomic_load(&pub->state) & 0xff) == GR_XFER_RUNNING) { /* it may be none of the parts' links */
        gr_rail_lock(home->rail->dev);
        rail_inbox(home->rail);
        abort_msg(x, home->rail, err);
        gr_rail_unlock(home->rail->dev);
    }
    return (atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING;
}

/* Runs that are given back meanwhile are not posted again: a region of theirs is gone. */
static int all_posted(xfer *x)
{
    int all = x->nparts && !pool_has(x);
    for (uint32_t i = 0; all && i < x->nparts; i++) {
        part *p = &x->parts[i];
        gr_rail_lock(p->link->rail->dev);
        rail_inbox(p->link->rail);
        for (run *r = p->runs; r; r = r->next)
            all &= r->posted == r->count && !r->failed;
        gr_rail_unlock(p->link->rail->dev);
    }
    return all && !pool_has(x);
}

int gr_xfer_abort_unposted(gr_core *core, gr_xfer *pub, int err)
{
    if (all_posted((xfer *)pub))
        return (atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING;
    return gr_xfer_abort(core, pub, err);
}

int gr_xfer_posted(gr_core *core, gr_xfer *pub, const gr_link *link)
{
    xfer *x = (xfer *)pub;
    int found = 0;
    for (uint32_t i = 0; !found && i < x->nparts; i++) {
        part *p = &x->parts[i];
        rail_st *rail = core->rails[p->own]; /* its link may be gone */
        if (link && p->link != link)
            continue;
        gr_rail_lock(rail->dev);
        for (run *r = p->runs; r; r = r->next)
            found |= r->inflight || r->weak_bytes;
        gr_rail_unlock(rail->dev);
    }
    return found;
}

void gr_xfer_prove(gr_xfer *pub) { ((xfer *)pub)->prove = 1; }

int gr_xfer_unposted(const gr_xfer *pub)
{
    const xfer *x = (const xfer *)pub;
    int idle = (atomic_load(&pub->state) & 0xff) == GR_XFER_RUNNING && atomic_load(&pub->parts_left) && !x->msg.numbered;
    for (uint32_t i = 0; idle && i < x->nparts; i++)
        idle = atomic_load(&x->parts[i].idle);
    return idle;
}

int gr_xfer_message(const gr_xfer *pub, void **body, uint64_t *len)
{
    const xfer *x = (const xfer *)pub;
    *body = x->msg.body;
    *len = x->msg.body ? x->msg.len : 0;
    return x->has_notif && (x->msg.numbered || x->msg.done) && !x->msg.skip ? -1 : x->has_notif;
}

int gr_xfer_wait(gr_core *core, gr_xfer *pub, uint64_t ns)
{
    uint64_t end = gr_now_ns() + ns;
    for (int i = 0;; i++) {
        if ((atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING)
            return 1;
        if (gr_now_ns() >= end)
            return 0;
        core_progress(core);
        if (i > 64) {
            struct timespec nap = {.tv_nsec = 20000};
            nanosleep(&nap, NULL);
        }
    }
}
