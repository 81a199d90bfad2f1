/* Posting and polling: the ops table. The core holds the rail's lock round every call here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "local.h"

/* Copied by the post itself; more between two polls goes to the pool. 64 KiB take 6 .. 10 us, a hand-over to a thread 5. */
enum { PROMPT = 64 << 10 };

void lc_tell(lc_rail *rail, gr_ctx *ctx, int err, uint64_t len)
{
    gr_ready_put(&rail->ready, (gr_comp){ .ctx = ctx, .err = err, .len = len });
}

/* -EAGAIN until the peer has connected. */
static int room(lc_rail *rail, const lc_ep *ep)
{
    if (ep->err)
        return -ep->err;
    if (!ep->named)
        return -ENOTCONN;
    return !ep->peer.box || gr_ready_full(&rail->ready) ? -EAGAIN : 0;
}

static int rma(gr_rail *base, void *opaque, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    lc_rail *rail = (lc_rail *)base;
    lc_ep *ep = opaque;
    uint64_t bytes = 0;
    if (n == 0 || n > base->limit.iov_limit)
        return -EINVAL;
    int rc = room(rail, ep);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        bytes += seg[i].len;
    if (rail->prompt + bytes <= PROMPT) {
        rail->prompt += (uint32_t)bytes;
        gr_ready_owe(&rail->ready);
        lc_tell(rail, ctx, lc_copy(ep, 0, op != GR_READ, n, seg), 0);
        return 0;
    }
    lc_job *job = rail->free_job;
    if (ep->posted >= LC_OPS)
        return -EAGAIN;
    if (job)
        rail->free_job = job->next;
    else if (!(job = malloc(sizeof(*job))))
        return -EAGAIN;
    job->ep = ep;
    job->ctx = ctx;
    job->write = op != GR_READ;
    job->n = n;
    job->bytes = bytes;
    job->err = 0;
    job->loan = NULL;
    job->kept = 0;
    memcpy(job->seg, seg, n * sizeof(*seg));
    gr_ready_owe(&rail->ready);
    ep->posted++;
    lc_pool_add(rail, job);
    return 0;
}

static int send_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    lc_rail *rail = (lc_rail *)base;
    lc_ep *ep = opaque;
    (void)desc;
    int rc = len > LC_MSG ? -EMSGSIZE : room(rail, ep);
    if (rc)
        return rc;
    lc_box *out = ep->peer.box;
    if (ep->peer.put - ep->peer.gone >= LC_SLOTS) { /* what the peer writes is in its core's cache: not looked at for every message */
        uint32_t gone = atomic_load_explicit(&out->taken, memory_order_acquire);
        if (ep->peer.put - gone >= LC_SLOTS)
            return ep->peer.put - gone == LC_SLOTS ? -EAGAIN : -EPROTO;
        ep->peer.gone = gone;
    }
    lc_slot *slot = &out->slot[ep->peer.put % LC_SLOTS];
    slot->len = (uint32_t)len;
    memcpy(slot->data, buf, len);
    atomic_store(&out->put, ++ep->peer.put); /* before the look at whether it sleeps */
    if (wake && atomic_load(&out->sleeping) && atomic_exchange(&out->sleeping, 0))
        lc_ring(ep);
    gr_ready_owe(&rail->ready);
    lc_tell(rail, ctx, atomic_load(&out->closed) ? ECONNRESET : 0, len);
    return 0;
}

static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    lc_rail *rail = (lc_rail *)base;
    lc_ep *ep = opaque;
    (void)desc;
    if (ep->err)
        return -ep->err;
    if (ep->in.tail - ep->in.head >= LC_RECVS || gr_ready_full(&rail->ready))
        return -EAGAIN;
    ep->in.recv[ep->in.tail++ % LC_RECVS] = (lc_recv){ ctx, buf, len };
    gr_ready_owe(&rail->ready);
    return 0;
}

/* The connection is of no use: whoever waits on it hears. */
static void fail(lc_ep *ep, int err)
{
    ep->err = err;
    while (ep->in.head != ep->in.tail)
        lc_tell(ep->rail, ep->in.recv[ep->in.head++ % LC_RECVS].ctx, err, 0);
}

static uint32_t arrived(lc_ep *ep)
{
    uint32_t n = atomic_load(&ep->box->put) - ep->in.taken;
    if (n > LC_SLOTS && !ep->err) /* nobody puts in more than there is room for */
        fail(ep, EPROTO);
    return ep->err ? 0 : n;
}

static void take(lc_ep *ep)
{
    if (ep->err) { /* its handshake has failed */
        fail(ep, ep->err);
        return;
    }
    for (uint32_t n = arrived(ep); n && ep->in.head != ep->in.tail; n--) {
        const lc_slot *slot = &ep->box->slot[ep->in.taken % LC_SLOTS];
        uint32_t len = *(const volatile uint32_t *)&slot->len; /* once: the peer may change it meanwhile */
        lc_recv *r = &ep->in.recv[ep->in.head % LC_RECVS];
        if (len > LC_MSG) {
            fail(ep, EPROTO);
            return;
        }
        if (len <= r->len)
            memcpy(r->buf, slot->data, len);
        ep->in.head++;
        atomic_store_explicit(&ep->box->taken, ++ep->in.taken, memory_order_release);
        lc_tell(ep->rail, r->ctx, len <= r->len ? 0 : EMSGSIZE, len);
    }
}

/* What the pool has finished becomes completions. */
static void finish(lc_rail *rail)
{
    for (lc_job *j = lc_pool_done(rail), *next; j; j = next) {
        next = j->next;
        j->ep->posted--;
        lc_tell(rail, j->ctx, j->err, 0);
        j->next = rail->free_job;
        rail->free_job = j;
    }
}

static int poll_rail(gr_rail *base, gr_comp *out, int max)
{
    lc_rail *rail = (lc_rail *)base;
    rail->prompt = 0;
    rail->news = 0;
    finish(rail);
    if (rail->gpu.bulks)
        lc_bulk_poll(rail);
    for (lc_ep *ep = rail->eps; ep; ep = ep->next)
        take(ep);
    lc_favour_look(rail);
    return gr_ready_take(&rail->ready, out, max);
}

/* Whoever waits copies meanwhile: no copy of the pool's is made under the rail's lock. */
static int help(gr_rail *base)
{
    return lc_pool_help((lc_rail *)base);
}

/* Says that peers have to ring, once, and looks again at what came before they could know. Whoever polls meanwhile takes nothing
 * back: the thread that asked still sleeps. */
static int arm(gr_rail *base)
{
    lc_rail *rail = (lc_rail *)base;
    struct epoll_event ev[16];
    uint64_t rings;
    atomic_store(&rail->asleep, 1);
    atomic_store(&rail->favour.helps, 0);
    for (lc_ep *ep = rail->eps; ep; ep = ep->next) {
        atomic_store(&ep->box->helps, (uint32_t)(ep->helps = 0));
        atomic_store(&ep->box->sleeping, 1);
    }
    int n = epoll_wait(base->wait_fd, ev, 16, 0);
    for (int i = 0; i < n; i++) {
        if (!ev[i].data.ptr)
            (void)!read(rail->bell_fd, &rings, sizeof(rings)); /* nobody else has it */
        else
            lc_hear(ev[i].data.ptr);
    }
    if (n == 16 || rail->news || rail->gpu.bulks || !gr_ready_empty(&rail->ready) || atomic_load(&rail->pool.done) || atomic_load(&rail->pool.queued) ||
        lc_loan_over(&rail->pool))
        return 1;
    for (lc_ep *ep = rail->eps; ep; ep = ep->next)
        if (ep->in.head != ep->in.tail && (arrived(ep) || ep->err))
            return 1;
    return 0;
}

/* Messages are copied: their memory needs no registration. */
static int reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    (void)base;
    (void)buf;
    (void)len;
    *mr = *desc = NULL;
    return 0;
}

static void unreg(gr_rail *base, void *mr)
{
    (void)base;
    (void)mr;
}

const gr_rail_ops lc_ops = {
    .rma = rma, .send = send_msg, .recv = recv_msg, .poll = poll_rail, .arm = arm, .reg = reg, .unreg = unreg,
};
const gr_rail_unlocked lc_unlocked = { .help = help };
const gr_rail_bulk lc_whole = { .post = lc_bulk_post, .stop = lc_bulk_stop, .ops_alloc = lc_ops_alloc, .ops_free = lc_ops_free };

int lc_cancel(lc_ep *ep)
{
    int rc = lc_pool_drain(ep->rail, ep);
    lc_bulk_drain(ep);
    finish(ep->rail);
    take(ep); /* nobody was woken for it, maybe; its sender was told that it has arrived, and sends it no more */
    if (!ep->err)
        fail(ep, ECANCELED);
    return rc;
}
