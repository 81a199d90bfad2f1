/* Links: a session's share of one rail. Posting within credits and window, completions, failure and rebirth. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void list_add(gr_link *link, part *p, int which)
{
    p->listed = (uint8_t)which;
    p->next = p->prev = NULL;
    if (which == 2) {
        p->next = link->waiting;
        if (p->next)
            p->next->prev = p;
        link->waiting = p;
    } else if (link->todo) {
        p->prev = link->todo_tail;
        link->todo_tail->next = p;
        link->todo_tail = p;
    } else {
        link->todo = link->todo_tail = p;
    }
}

static void list_del(part *p)
{
    gr_link *link = p->link;
    if (!p->listed)
        return;
    if (p->next)
        p->next->prev = p->prev;
    else if (p->listed == 1)
        link->todo_tail = p->prev;
    if (p->prev)
        p->prev->next = p->next;
    else if (p->listed == 1)
        link->todo = p->next;
    else
        link->waiting = p->next;
    p->listed = 0;
}

static void part_end(part *p)
{
    list_del(p);
    xfer_part_end(p); /* p may be gone now */
}

/* Gives up what is not posted; the part ends here or with its last completion. */
void part_drop(part *p)
{
    p->posted = p->count;
    if (p->inflight == 0) {
        part_end(p);
    } else if (p->listed == 1) {
        list_del(p);
        list_add(p->link, p, 2);
    }
}

void link_add_part(gr_link *link, part *p)
{
    if (link->state == LINK_DEAD)
        xfer_fail(p->x, link->dead_err, 0);
    list_add(link, p, 1);
    if (p->count == 0 || atomic_load(&p->x->pub.err))
        part_drop(p);
}

/* Fills seg with the next operations of the part that fit one work request. Returns their number, or a negative
 * errno when a region is gone. */
static int build(gr_link *link, part *p, gr_seg *seg, uint64_t *bytes)
{
    gr_core *core = link->rail->core;
    gr_rail *dev = link->rail->dev;
    const gr_op *op = p->x->pub.ops + p->first + p->posted;
    uint64_t left = p->count - p->posted, sum = 0;
    int n = 0;
    for (; n < (int)dev->iov_limit && (uint64_t)n < left; n++, op++) {
        if (n && (sum + op->len > COMBINE || sum + op->len > dev->max_msg))
            break;
        gr_region *l = gr_region_at(core, op->lregion), *r = gr_region_at(core, op->rregion);
        gr_rkey *lk = &l->rail[link->rail->index], *rk = &r->rail[link->peer_rail];
        if (!atomic_load(&l->live) || !atomic_load(&r->live) || !lk->ok || !rk->ok)
            return -ESTALE;
        seg[n] = (gr_seg){op->local, op->remote - r->addr + rk->base, op->len, lk->desc, rk->key};
        sum += op->len;
    }
    *bytes = sum;
    return n;
}

/* Posts one work request of the part. 0 posted, 1 no room now, 2 the part cannot go on. */
static int post_one(gr_link *link, part *p, uint64_t *bytes)
{
    rail_st *rail = link->rail;
    gr_seg seg[GR_MAX_IOV];
    if (link->inflight_ops + TX_RESERVE >= rail->dev->tx_depth)
        return 1;
    int n = build(link, p, seg, bytes);
    if (n < 0) {
        xfer_fail(p->x, ST_BACKEND, -n);
        return 2;
    }
    if (link->inflight_ops && link->inflight_bytes + *bytes > link->window) {
        link->limited = 1;
        return 1;
    }
    ctx *c = rail_ctx(rail, link, CTX_RMA);
    if (!c)
        return 1;
    c->part = p;
    c->bytes = *bytes;
    c->nops = (uint32_t)n;
    int rc = rail->dev->ops->rma(rail->dev, link->ep, p->x->op, (uint32_t)n, seg, &c->base);
    if (rc != 0) {
        rail_ctx_done(rail, c);
        if (rc == -EAGAIN) {
            rail->starved = 1;
            link->eagain++;
            COUNT(rail->core, GR_C_EAGAIN, 1);
        } else {
            p->failed = 1;
            p->blamed = link->state == LINK_UP;
            atomic_store(&p->x->pub.wire_err, -rc);
            link_error(link, -rc, 0);
        }
        return 1;
    }
    link->inflight_ops++;
    link->inflight_bytes += *bytes;
    link->wrs++;
    p->inflight++;
    p->posted += (uint64_t)n;
    COUNT(rail->core, GR_C_WRS, 1);
    return 0;
}

/* Posts messages, then parts in turn, until credits, window or budget end. */
void link_pump(gr_link *link, uint64_t budget)
{
    msg_pump(link);
    while (link->state == LINK_UP && link->todo && budget) {
        part *p = link->todo;
        uint64_t turn = 0, bytes = 0;
        int rc = 0;
        if (atomic_load(&p->x->pub.err)) {
            part_drop(p);
            continue;
        }
        while (p->posted < p->count && turn < QUANTUM && (rc = post_one(link, p, &bytes)) == 0)
            turn += bytes < WR_COST ? WR_COST : bytes;
        budget -= turn < budget ? turn : budget;
        if (rc == 2) {
            part_drop(p);
            continue;
        }
        if (p->posted == p->count) {
            list_del(p);
            list_add(link, p, 2);
            xfer_try_pipeline(p);
        } else if (turn >= QUANTUM && p->next) { /* the next part's turn */
            list_del(p);
            list_add(link, p, 1);
        }
        if (rc == 1)
            break;
    }
    if (link->cur)
        msg_pump(link);
}

/* First failure: no more posts, and Go is asked what to do. */
void link_error(gr_link *link, int err, int prov_err)
{
    (void)prov_err;
    if (link->state == LINK_UP)
        link->state = LINK_STOPPED;
    if (link->reported)
        return;
    link->reported = 1;
    gr_event ev = {.kind = GR_EV_LINK, .code = err, .id = link->id, .seq = link->rebinds};
    core_event(link->rail->core, &ev, NULL);
}

/* The window follows the rate while it is what limits the link: rate x window_ns, at most doubled a step. A probe on
 * loopback settles near 16 MiB, a 1 Gbit/s link near 480 KiB. */
static void measure(gr_link *link, uint64_t bytes)
{
    const gr_core_cfg *cfg = &link->rail->core->cfg;
    uint64_t now = link->rail->now;
    if (link->meas_ns == 0) { /* idle before: a new measurement */
        link->meas_ns = now;
        link->meas_bytes = 0;
        return;
    }
    link->meas_bytes += bytes;
    uint64_t dt = now - link->meas_ns;
    if (dt < 2000000) {
        if (link->inflight_ops == 0)
            link->meas_ns = 0;
        return;
    }
    uint64_t rate = (uint64_t)((double)link->meas_bytes * 1e9 / (double)dt);
    link->rate = link->rate ? (link->rate * 3 + rate) / 4 : rate;
    if (link->limited) {
        uint64_t w = (uint64_t)((double)link->rate * (double)cfg->window_ns / 1e9);
        if (w > link->window * 2)
            w = link->window * 2;
        link->window = w < cfg->window_min ? cfg->window_min : w > cfg->window_max ? cfg->window_max : w;
    }
    link->limited = 0;
    link->meas_ns = link->inflight_ops ? now : 0;
    link->meas_bytes = 0;
}

void link_rma_done(ctx *c, int err)
{
    gr_link *link = c->link;
    part *p = c->part;
    xfer *x = p->x;
    link->inflight_ops--;
    link->inflight_bytes -= c->bytes;
    p->inflight--;
    if (err) {
        p->failed = 1;
        p->blamed |= c->first;
        atomic_store(&x->pub.wire_err, err);
    } else {
        link->tx_bytes += c->bytes;
        atomic_fetch_add_explicit(&x->pub.done, c->bytes, memory_order_relaxed);
        atomic_store_explicit(&x->pub.last_ns, link->rail->now, memory_order_relaxed);
        COUNT(link->rail->core, x->op == GR_WRITE ? GR_C_WRITE_BYTES : GR_C_READ_BYTES, c->bytes);
        measure(link, c->bytes);
    }
    if (p->inflight == 0 && p->posted == p->count && (!p->failed || atomic_load(&x->pub.err)))
        part_end(p);
}

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
    link->window = core->cfg.window_min * 4;
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

int gr_link_up(gr_link *link)
{
    gr_rail_lock(link->rail->dev);
    int up = link->state == LINK_UP;
    gr_rail_unlock(link->rail->dev);
    return up;
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
    gr_rail_unlock(rail->dev);
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
        list_del(p);
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
        list_add(link, p, 1);
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
    link->owed = link->owed_posted = 0;
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
