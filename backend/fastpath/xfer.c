/* Transfers inside the core, and sessions' lives. */
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

static void data_done(xfer *x, gr_link *link)
{
    msg *m = &x->msg;
    if (atomic_load(&x->pub.err)) {
        if (m->listed && !m->numbered) {
            msg_end(m, atomic_load(&x->pub.err)); /* ends x too */
            return;
        }
        if (m->listed) { /* the peer waits for the rest of it; without memory, its last completion ends x */
            msg_part(m, atomic_load(&x->pub.err));
            return;
        }
        if (m->numbered && !m->done) { /* the peer waits for that number */
            if (msg_gap(m) != 0) {
                m->skip = 1;
                msg_queue(link, m);
            } else {
                xfer_end(x);
            }
            msg_pump(link);
            return;
        }
        if (x->has_notif && !m->done)
            atomic_fetch_sub(&link->sess->tx_queued, m->len + OVERHEAD);
        xfer_end(x);
    } else if (!x->has_notif || (x->pipelined && m->done)) {
        xfer_end(x);
    } else if (m->listed && m->posted) {
        msg_part(m, 0); /* without memory, its completion ends x */
    } else if (!m->listed) {
        msg_queue(link, m);
        msg_pump(link);
    }
}

void xfer_part_end(part *p)
{
    xfer *x = p->x;
    gr_link *link = p->link;
    atomic_store(&p->ended, 1);
    if (atomic_fetch_sub(&x->pub.parts_left, 1) == 1)
        data_done(x, link);
}

void xfer_msg_end(xfer *x, int err)
{
    if (err)
        xfer_fail(x, err, 0);
    if (atomic_load(&x->pub.parts_left) == 0)
        xfer_end(x);
}

/* On an ordered link the notification needs no wait: its receive proves the data before it. */
void xfer_try_pipeline(part *p)
{
    xfer *x = p->x;
    if (!x->has_notif || x->nparts != 1 || x->op != GR_WRITE || !p->link->rail->dev->ordered || x->msg.listed)
        return;
    x->pipelined = 1;
    msg_queue(p->link, &x->msg);
}

static void start_part(rail_st *rail, cmd *self)
{
    (void)rail;
    part *p = (part *)(void *)((char *)self - offsetof(part, start));
    gr_link *link = p->link;
    link_add_part(link, p); /* may end p */
    enum { IN_POST = 1 << 20 }; /* bytes posted inside the caller's postXfer; the rest goes out with completions */
    link_pump(link, IN_POST);
}

static int prepare(xfer *x, const gr_part_spec *spec, uint32_t nparts, int has_notif, const void *body, size_t len)
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
    x->msg.x = x;
    for (uint32_t i = 0; i < nparts; i++) {
        x->parts[i].start.run = start_part;
        x->parts[i].x = x;
        x->parts[i].link = spec[i].link;
        x->parts[i].first = spec[i].first;
        x->parts[i].count = spec[i].count;
    }
    return 0;
}

void gr_xfer_post(gr_core *core, gr_xfer *pub, const gr_part_spec *spec, uint32_t nparts, int has_notif, const void *body,
                  size_t len)
{
    xfer *x = (xfer *)pub;
    atomic_store(&pub->err, 0);
    atomic_store(&pub->wire_err, 0);
    atomic_store(&pub->done, 0);
    uint64_t now = gr_now_ns();
    atomic_store(&pub->posted_ns, now);
    atomic_store(&pub->last_ns, now);
    COUNT(core, GR_C_TO_C_POST, 1);
    x->has_notif = has_notif != 0;
    x->pipelined = 0;
    x->attempts = x->replays = 0;
    x->nparts = nparts;
    if (prepare(x, spec, nparts, has_notif, body, len) != 0) {
        x->nparts = 0;
        xfer_fail(x, ST_BACKEND, ENOMEM);
        xfer_end(x);
        return;
    }
    if (has_notif)
        atomic_fetch_add(&spec[0].link->sess->tx_queued, len + OVERHEAD);
    atomic_store(&x->pub.parts_left, nparts);
    /* With the last push x may end and be posted again: nothing of it is touched after that. */
    for (uint32_t i = 0; i < nparts; i++)
        rail_push(spec[i].link->rail, &x->parts[i].start);
    for (uint32_t i = 0; i < nparts; i++) {
        rail_run(spec[i].link->rail);
        rail_unstarve(spec[i].link->rail);
    }
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
        if (!atomic_load(&p->ended))
            part_drop(p);
        msg *m = &x->msg;
        if (m->listed && m->link->rail->dev == dev) {
            if (!m->numbered)
                msg_end(m, err);
            else if (atomic_load(&pub->parts_left) == 0)
                msg_part(m, err);
        }
        gr_rail_unlock(dev);
    }
    return (atomic_load(&pub->state) & 0xff) != GR_XFER_RUNNING;
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

int gr_check(gr_core *core, gr_xfer *slot, uint64_t handle)
{
    if (atomic_load(&slot->handle) != handle)
        return ST_NOT_FOUND;
    int s = atomic_load(&slot->state);
    if (s > 0) {
        core_progress(core);
        s = atomic_load(&slot->state);
    }
    return s > 0 ? 1 : s;
}

gr_sess *gr_sess_new(gr_core *core, uint64_t id, const char *name, size_t name_len)
{
    gr_sess *s = calloc(1, sizeof *s + name_len);
    if (!s)
        return NULL;
    s->core = core;
    s->id = id;
    s->name_len = name_len;
    memcpy(s->name, name, name_len);
    pthread_mutex_init(&s->rx_mu, NULL);
    atomic_init(&s->refs, 1);
    return s;
}

void sess_unref(gr_sess *sess)
{
    if (atomic_fetch_sub(&sess->refs, 1) != 1)
        return;
    pthread_mutex_destroy(&sess->rx_mu);
    free(sess);
}

void gr_sess_free(gr_sess *sess)
{
    sess_unref(sess);
}

void gr_sess_resume(gr_sess *sess, uint64_t next_seq, uint64_t handled)
{
    pthread_mutex_lock(&sess->rx_mu);
    if (sess->slow && handled == sess->handed) {
        sess->slow = 0;
        sess->rx_next = next_seq;
    }
    pthread_mutex_unlock(&sess->rx_mu);
}

uint64_t gr_sess_next_seq(gr_sess *sess, uint64_t *handed)
{
    pthread_mutex_lock(&sess->rx_mu);
    uint64_t n = sess->rx_next;
    *handed = sess->handed;
    pthread_mutex_unlock(&sess->rx_mu);
    return n;
}

uint64_t gr_sess_queued(gr_sess *sess)
{
    return atomic_load(&sess->tx_queued);
}
