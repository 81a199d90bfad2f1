/* Transfers: their notification and their end, their slots, their times. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>

/* Ends a running transfer. After the exchange of state the application and Go own the transfer. */
void xfer_end(xfer *x)
{
    gr_core *core = x->core;
    int err = atomic_load(&x->pub.err);
    gr_event ev = {.kind = GR_EV_XFER, .code = err, .id = atomic_load(&x->pub.handle)};
    COUNT(core, err ? GR_C_XFERS_FAILED : GR_C_XFERS_DONE, 1);
    if (atomic_load_explicit(&core->trace, memory_order_relaxed))
        xfer_trace(x);
    int old = atomic_exchange(&x->pub.state, err ? GR_XFER_FAILED : 0);
    if (err || (old & GR_XFER_WANT))
        core_event(core, &ev, &x->owed, &x->pub.handle);
}

/* Records the first error; sub-transfers end as their posted operations complete. */
void xfer_fail(xfer *x, int err, int wire_err)
{
    int32_t none = 0;
    if (atomic_compare_exchange_strong(&x->pub.err, &none, err) && wire_err)
        atomic_store(&x->pub.wire_err, wire_err);
}

/* The data is done. Sends the transfer's notification, or ends the transfer. Runs on the notification link's rail. */
static void finish(xfer *x, gr_link *notif_link)
{
    msg *m = &x->msg;
    int err = atomic_load(&x->pub.err);
    if (!err) {
        msg_queue(notif_link, m);
        msg_pump(notif_link);
    } else if (m->number.given && !m->done) { /* the peer waits for that number */
        m->link = notif_link;
        if (msg_skip(m) != 0) {
            m->skip = 1;
            msg_queue(notif_link, m);
        } else {
            xfer_end(x);
        }
        msg_pump(notif_link);
    } else {
        if (!m->done)
            atomic_fetch_sub(&x->sess->tx_queued, m->len + OVERHEAD);
        xfer_end(x);
    }
}

void xfer_cmd_fin(rail_st *rail, cmd *self)
{
    xfer *x = (xfer *)(void *)((char *)self - offsetof(xfer, fin));
    gr_link *notif_link = atomic_load(&x->sess->notif_link);
    if (notif_link->rail == rail) {
        finish(x, notif_link);
        return;
    }
    rail_push(notif_link->rail, self); /* the session has another notification link now */
    rail_wake(notif_link->rail);
}

/* All sub-transfers have left. link is the last one's; its rail is locked. */
void xfer_data_done(xfer *x, gr_link *link)
{
    msg *m = &x->msg;
    rail_st *rail = link->rail;
    int err = atomic_load(&x->pub.err);
    if (!err)
        xfer_time(x, rail);
    if (x->queue.returned)
        queue_drop(x, rail);
    if (!x->has_notif || (!err && m->done)) {
        xfer_end(x);
    } else if (m->listed && err && !m->number.given) {
        msg_end(m, err); /* ends x too */
    } else if (m->listed) { /* pipelined on this link; if msg_detach lacks memory, the message's last completion ends x */
        if (err || m->sent.posted)
            msg_detach(m, err);
    } else {
        gr_link *notif_link = atomic_load(&x->sess->notif_link);
        if (notif_link->rail == rail) {
            finish(x, notif_link);
            return;
        }
        x->fin.run = xfer_cmd_fin;
        rail_push(notif_link->rail, &x->fin);
        rail_kick(notif_link->rail->dev); /* only tries the lock; a thread that holds the lock runs the command */
    }
}

void xfer_msg_ended(msg *m, int err)
{
    xfer *x = (xfer *)m->xfer;
    if (err)
        xfer_fail(x, err, 0);
    if (atomic_load(&x->pub.subs_left) == 0)
        xfer_end(x);
}

static uint32_t exclusive_mark(const subxfer *p) { return EXCLUSIVE | (uint32_t)(p - p->x->subs) << EXCLUSIVE_SHIFT; }

/* Whether the sub-transfer's link alone has done the transfer, up to the last batch, and will send the notification behind
 * it. The peer then needs no other proof than the link's order. The answer stays 1 while operations of the last batch are
 * posted. */
int xfer_exclusive(subxfer *p)
{
    xfer *x = p->x;
    uint32_t none = 0;
    if (p->exclusive)
        return 1;
    if (!x->has_notif || atomic_load(&x->shared) || x->op != GR_WRITE || !p->link->rail->dev->is.ordered || queue_has(x))
        return 0;
    if (p->link != atomic_load(&x->sess->notif_link) && atomic_load(&x->sess->tx_queued) > x->msg.len + OVERHEAD)
        return 0; /* earlier messages wait on the notification link */
    p->exclusive = atomic_compare_exchange_strong(&x->shared, &none, exclusive_mark(p)); /* from here on no other link may join */
    return p->exclusive;
}

/* Ends the exclusive state. The last batch returns to the work queue: unposted (now is 0), or posted on a failed link (now
 * is SHARED). */
void xfer_not_exclusive(subxfer *p, uint32_t now)
{
    uint32_t exclusive = exclusive_mark(p);
    if (p->exclusive)
        atomic_compare_exchange_strong(&p->x->shared, &exclusive, now);
    p->exclusive = 0;
}

/* On an ordered link the notification goes out at once: its receive proves the data before it. */
void xfer_try_pipeline(subxfer *p)
{
    xfer *x = p->x;
    if (x->msg.listed || !xfer_exclusive(p))
        return;
    x->msg.pipelined = 1;
    msg_queue(p->link, &x->msg);
}

/* ---- Transfer slots. Their memory is recycled, and not unmapped while the core lives. */

/* Takes a free slot. Slots come in blocks that live as long as the core. A stale pointer of the shim then reads an outdated
 * handle, never freed memory. */
static xfer *slot_take(gr_core *core)
{
    pthread_mutex_lock(&core->slots.mu);
    if (!core->slots.xfers) {
        enum { N = sizeof(((struct xfer_block *)0)->x) / sizeof(xfer) };
        struct xfer_block *b = core_event_nodes(core, N * XFER_EVENTS) ? NULL : GR_ALLOC(core_slots, calloc(1, sizeof *b));
        if (b) {
            b->next = core->slots.blocks;
            core->slots.blocks = b;
            for (size_t i = 0; i < N; i++) {
                pthread_mutex_init(&b->x[i].queue.mu, NULL);
                b->x[i].free_next = core->slots.xfers;
                core->slots.xfers = &b->x[i];
            }
        }
    }
    xfer *x = core->slots.xfers;
    if (x)
        core->slots.xfers = x->free_next;
    pthread_mutex_unlock(&core->slots.mu);
    return x;
}

gr_xfer *gr_xfer_new(gr_core *core, uint64_t handle, int op, uint64_t nops, int rail)
{
    ops_mem mem;
    if (ops_new(core, rail, nops, &mem))
        return NULL;
    xfer *x = slot_take(core);
    if (!x) {
        ops_free(core, &mem);
        return NULL;
    }
    COUNT(core, GR_C_TO_C_PREP, 1);
    x->core = core;
    x->op = op;
    x->room = mem.room;
    x->pub.ops = mem.ops;
    x->pub.nops = nops;
    x->pub.bytes = 0;
    x->queue.next = 0;
    x->queue.returned = NULL;
    atomic_store(&x->pub.state, 0);
    atomic_store(&x->pub.posted_ns, 0);
    atomic_store(&x->pub.reposts, 0);
    x->nsubs = 0;
    x->sess_id = 0;
    x->bulk.rail = mem.rail;
    x->bulk.regions = NULL;
    x->prove = 0;
    x->msg.number.given = 0;
    atomic_store(&x->pub.err, 0);
    atomic_store(&x->pub.wire_err, 0);
    atomic_store(&x->pub.subs_left, 0);
    atomic_store(&x->pub.handle, handle);
    return &x->pub;
}

void gr_xfer_free(gr_core *core, gr_xfer *pub)
{
    xfer *x = (xfer *)pub;
    atomic_store(&pub->handle, 0);
    ops_drop(x);
    pub->nops = 0;
    pthread_mutex_lock(&core->slots.mu);
    x->free_next = core->slots.xfers;
    core->slots.xfers = x;
    pthread_mutex_unlock(&core->slots.mu);
}

/* ---- How long transfers take: a histogram of each rail, and the notes of a trace. */

struct trace {
    _Atomic uint64_t next; /* notes that were begun; those from GR_TRACE_MAX on found no room */
    struct {
        _Atomic uint32_t written;
        gr_traced t;
    } notes[GR_TRACE_MAX];
};

/* Counts a transfer whose data is done. rail completed the last of it, and is locked. A coarse time is four milliseconds off
 * at most, so long times still find their bucket. */
void xfer_time(xfer *x, rail_st *rail)
{
    static const uint64_t sizes[GR_TIME_CLASSES - 1] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
    const uint64_t exact = 64000000; /* ns from which a coarse time will do */
    uint64_t posted = atomic_load_explicit(&x->pub.posted_ns, memory_order_relaxed), now = rail_now(rail);
    uint64_t ns = now > posted ? now - posted : 0;
    int class = 0, bucket = 0;
    while (class < GR_TIME_CLASSES - 1 && x->pub.bytes > sizes[class])
        class++;
    if (ns < exact && atomic_load_explicit(&x->pub.coarse, memory_order_relaxed))
        bucket = GR_TIME_COARSE;
    else
        for (uint64_t us = ns / 1000; us && bucket < GR_TIME_COARSE - 1; us >>= 1)
            bucket++;
    counter_add(&rail->times[class][bucket], 1);
}

/* Notes a transfer that ends, while its state is still running. */
void xfer_trace(xfer *x)
{
    struct trace *tr = atomic_load_explicit(&x->core->trace, memory_order_acquire);
    uint64_t n = tr ? atomic_fetch_add_explicit(&tr->next, 1, memory_order_relaxed) : GR_TRACE_MAX;
    if (n >= GR_TRACE_MAX)
        return;
    gr_traced *t = &tr->notes[n].t;
    *t = (gr_traced){.posted_ns = atomic_load(&x->pub.posted_ns),
                     .ended_ns = gr_now_ns(),
                     .handle = atomic_load(&x->pub.handle),
                     .bytes = x->pub.bytes,
                     .sess = x->sess_id,
                     .op = x->op,
                     .err = atomic_load(&x->pub.err),
                     .coarse = atomic_load(&x->pub.coarse)};
    for (uint32_t i = 0; i < x->nsubs && atomic_load(&x->pub.done); i++) /* done is 0: the last round's sub-transfers may be there */
        if (atomic_load_explicit(&x->subs[i].bytes, memory_order_relaxed))
            t->rails |= (uint64_t)1 << x->subs[i].own;
    atomic_store_explicit(&tr->notes[n].written, 1, memory_order_release);
}

int gr_trace_start(gr_core *core)
{
    int rc = 0;
    pthread_mutex_lock(&core->slots.mu);
    struct trace *tr = core->traces;
    if (atomic_load(&core->trace))
        rc = -EBUSY;
    else if (!tr && !(tr = core->traces = GR_ALLOC(core_trace, malloc(sizeof *tr))))
        rc = -ENOMEM;
    else {
        for (uint64_t i = 0; i < GR_TRACE_MAX; i++)
            atomic_store_explicit(&tr->notes[i].written, 0, memory_order_relaxed);
        atomic_store(&tr->next, 0);
        atomic_store_explicit(&core->trace, tr, memory_order_release);
    }
    pthread_mutex_unlock(&core->slots.mu);
    return rc;
}

/* A thread that saw the trace just before may still write a note. It is not taken: it is not written yet. */
uint64_t gr_trace_stop(gr_core *core, gr_traced *out, uint64_t *lost)
{
    uint64_t n = 0;
    *lost = 0;
    pthread_mutex_lock(&core->slots.mu);
    struct trace *tr = atomic_exchange(&core->trace, NULL);
    uint64_t begun = tr ? atomic_load(&tr->next) : 0;
    for (uint64_t i = 0; i < begun && i < GR_TRACE_MAX; i++)
        if (atomic_load_explicit(&tr->notes[i].written, memory_order_acquire))
            out[n++] = tr->notes[i].t;
    if (begun > GR_TRACE_MAX)
        *lost = begun - GR_TRACE_MAX;
    pthread_mutex_unlock(&core->slots.mu);
    return n;
}
