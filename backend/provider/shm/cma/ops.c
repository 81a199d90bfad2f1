/* Posting and polling: the ops table. The core holds the rail's lock around every call here, except assist. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cma.h"

/* Bytes that posts copy inline between two polls. The pool copies the rest. 64 KiB take 6 .. 10 us, a hand-over to a
 * thread 5. */
enum {
    INLINE_MAX = 64 << 10,
    RING_MAX = 8 << 10,
    /* smaller pieces of mapped memory take the ring: its owner copies by addresses, and would have to answer a question anyway */
    VIEW_MIN = 32 << 10,
};

void cma_complete(cma_rail *rail, gr_ctx *ctx, int err, uint64_t len) { gr_ready_put(&rail->ready, (gr_comp){.ctx = ctx, .err = err, .len = len}); }

/* -EAGAIN until the peer has connected, and while completions lack room. */
static int ops_room(cma_rail *rail, cma_ep *ep)
{
    if (ep->err)
        return -ep->err;
    if (!ep->connecting)
        return -ENOTCONN;
    cma_rouse(ep); /* an answer may come soon */
    ep->doze.active = 1;
    return !ep->peer.shm || gr_ready_full(&rail->ready) ? -EAGAIN : 0;
}

void cma_ring_add(cma_rail *rail, cma_job *job, int inlined)
{
    pthread_mutex_lock(&rail->pool.mu);
    cma_chunks_add(&rail->pool, job);
    if (inlined)
        cma_chunks_send(&rail->pool, job);
    pthread_mutex_unlock(&rail->pool.mu);
    if (!inlined && !atomic_load_explicit(&rail->base.app_polls, memory_order_relaxed))
        cma_wake(rail);
}

/* Whether a job goes through the peer's ring: if we may not access the peer's memory and it is not mapped, and a small one while the peer
 * spins, which then makes the copy into its memory. Both copies were memcpy when that was measured: 64 bytes 0.6 us instead of 2.4, 4 KiB
 * 1.0 instead of 2.5, 8 KiB 1.4 instead of 2.8. Guarded ones take as long end to end on two cores (gorail bench: 64 bytes and 4 KiB 1.3 us). */
static int by_ring(const cma_rail *rail, cma_ep *ep, int on, int op, uint32_t n, const gr_seg *seg, uint64_t bytes)
{
    if (on)
        return bytes < VIEW_MIN || !cma_mapped(ep, op != GR_READ, n, seg);
    return bytes <= RING_MAX && ep->ring.mem && cma_may_offload(rail, ep) &&
           atomic_load_explicit(&ep->peer.shm->assists, memory_order_relaxed) == CMA_SPINS && (!ep->ring.direct_ns || cma_now() > ep->ring.direct_ns);
}

static int rma(gr_rail *base, void *opaque, int op, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    cma_rail *rail = (cma_rail *)base;
    cma_ep *ep = opaque;
    uint64_t bytes = 0;
    if (n == 0 || n > base->limit.iov_limit)
        return -EINVAL;
    int rc = ops_room(rail, ep);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        bytes += seg[i].len;
    int inlined = rail->inline_bytes + bytes <= INLINE_MAX, on = ep->ring.on, ring = by_ring(rail, ep, on, op, n, seg, bytes), ask = -1;
    if (ep->posted >= CMA_OPS || (on && !ring && (ask = cma_ask_take(ep)) < 0))
        return -EAGAIN;
    if (inlined)
        rail->inline_bytes += (uint32_t)bytes;
    if (inlined && !ring && ask < 0) {
        int err = cma_copy(ep, 0, op != GR_READ, n, seg);
        if (!cma_by_ring(ep, err)) {
            gr_ready_owe(&rail->ready);
            cma_complete(rail, ctx, err, 0);
            return 0;
        }
        ring = 1;
    }
    cma_job *job = rail->free_job;
    if (job)
        rail->free_job = job->next;
    else if (!(job = GR_ALLOC(cma_job, malloc(sizeof(*job))))) {
        if (ask >= 0)
            cma_ask_give(ep, (uint32_t)ask);
        return -EAGAIN;
    }
    job->ep = ep;
    job->ctx = ctx;
    job->write = op != GR_READ;
    job->ask = ask;
    job->copied = job->by_ring = 0;
    job->n = n;
    job->bytes = bytes;
    job->err = 0;
    job->offload = NULL;
    job->kept = 0;
    memcpy(job->seg, seg, n * sizeof(*seg)); /* ours */
    gr_ready_owe(&rail->ready);
    ep->posted++;
    if (ask >= 0)
        cma_asking_add(rail, job, inlined);
    else if (ring)
        cma_ring_add(rail, job, inlined);
    else
        cma_pool_add(rail, job);
    return 0;
}

static int send_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    cma_rail *rail = (cma_rail *)base;
    cma_ep *ep = opaque;
    (void)desc;
    int rc = len > CMA_MSG ? -EMSGSIZE : ops_room(rail, ep);
    if (rc)
        return rc;
    cma_shm *out = ep->peer.shm;
    /* the peer writes `taken`, and its core's cache holds the line: read it only when the ring seems full */
    if (ep->peer.put - ep->peer.taken >= CMA_SLOTS) {
        uint32_t taken = atomic_load_explicit(&out->taken, memory_order_acquire);
        if (ep->peer.put - taken >= CMA_SLOTS)
            return ep->peer.put - taken == CMA_SLOTS ? -EAGAIN : -EPROTO;
        ep->peer.taken = taken;
    }
    cma_slot *slot = &out->slot[ep->peer.put % CMA_SLOTS];
    slot->len = (uint32_t)len;
    memcpy(slot->data, buf, len); /* ours */
    atomic_store(&out->put, ++ep->peer.put); /* before cma_ring_asleep */
    if (wake || atomic_load(&out->sleeping) == CMA_DOZES)
        cma_ring_asleep(ep);
    gr_ready_owe(&rail->ready);
    cma_complete(rail, ctx, atomic_load(&out->closed) || atomic_load(&ep->peer.gone) ? ECONNRESET : 0, len);
    return 0;
}

static int recv_msg(gr_rail *base, void *opaque, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    cma_rail *rail = (cma_rail *)base;
    cma_ep *ep = opaque;
    (void)desc;
    if (ep->err)
        return -ep->err;
    if (ep->in.tail - ep->in.head >= CMA_RECVS || gr_ready_full(&rail->ready))
        return -EAGAIN;
    ep->in.recv[ep->in.tail++ % CMA_RECVS] = (cma_recv){ctx, buf, len};
    gr_ready_owe(&rail->ready);
    return 0;
}

/* The connection is unusable: all posted receives fail. */
static void fail(cma_ep *ep, int err)
{
    ep->err = err;
    while (ep->in.head != ep->in.tail)
        cma_complete(ep->rail, ep->in.recv[ep->in.head++ % CMA_RECVS].ctx, err, 0);
}

static uint32_t arrived(cma_ep *ep)
{
    uint32_t n = atomic_load(&ep->shm->put) - ep->in.taken;
    if (n > CMA_SLOTS && !ep->err) /* more messages than the ring has slots */
        fail(ep, EPROTO);
    return ep->err ? 0 : n;
}

void cma_take(cma_ep *ep)
{
    if (ep->err) { /* the handshake has failed */
        fail(ep, ep->err);
        return;
    }
    for (uint32_t n = arrived(ep); n && ep->in.head != ep->in.tail; n--) {
        const cma_slot *slot = &ep->shm->slot[ep->in.taken % CMA_SLOTS];
        uint32_t len = *(const volatile uint32_t *)&slot->len; /* read once: the peer may change it meanwhile */
        cma_recv *r = &ep->in.recv[ep->in.head % CMA_RECVS];
        if (len > CMA_MSG) {
            fail(ep, EPROTO);
            return;
        }
        if (len <= r->len)
            memcpy(r->buf, slot->data, len); /* ours */
        ep->in.head++;
        atomic_store_explicit(&ep->shm->taken, ++ep->in.taken, memory_order_release);
        cma_complete(ep->rail, r->ctx, len <= r->len ? 0 : EMSGSIZE, len);
    }
}

void cma_job_end(cma_rail *rail, cma_job *j, int err)
{
    if (j->ask >= 0)
        cma_ask_give(j->ep, (uint32_t)j->ask);
    j->ep->posted--;
    cma_complete(rail, j->ctx, err, 0);
    j->next = rail->free_job;
    rail->free_job = j;
}

/* Reports the completions of the pool's finished jobs. */
static void jobs_finish(cma_rail *rail)
{
    for (cma_job *j = cma_pool_done(rail), *next; j; j = next) {
        next = j->next;
        if (j->ask >= 0 && !j->err && !j->by_ring)
            cma_asking_copied(rail, j);
        else
            cma_job_end(rail, j, j->err);
    }
}

static int poll_rail(gr_rail *base, gr_comp *out, int max)
{
    cma_rail *rail = (cma_rail *)base;
    rail->inline_bytes = 0;
    rail->handshake_event = 0;
    jobs_finish(rail);
    if (rail->asking)
        cma_asking_poll(rail);
    if (rail->gpu.bulks || rail->gpu.kept)
        cma_bulk_poll(rail);
    cma_doze_poll(rail);
    for (cma_ep *ep = LIST_FIRST(&rail->doze.polled); ep; ep = LIST_NEXT(ep, doze.entry))
        cma_take(ep);
    cma_assist_update(rail);
    cma_serve_update(rail);
    return gr_ready_take(&rail->ready, out, max);
}

/* Polling threads copy meanwhile, without the rail's lock. */
static int assist(gr_rail *base) { return cma_pool_assist((cma_rail *)base); }

/* Lets the peer ring. */
static void sleep_beside(cma_ep *ep)
{
    cma_ep_settle(ep, 0);
    atomic_store(&ep->shm->assists, (uint32_t)(ep->assists = 0));
    atomic_store(&ep->shm->sleeping, CMA_SLEEPS);
}

/* Tells peers once to ring, then looks for work that came before they could see that. A poll by another thread does
 * not undo this: the thread that called arm still sleeps. The peers of dozing endpoints have been told. */
static int arm(gr_rail *base)
{
    cma_rail *rail = (cma_rail *)base;
    struct epoll_event ev[16];
    uint64_t rings;
    atomic_store(&rail->asleep, 1);
    atomic_store(&rail->assist.assists, 0);
    for (cma_ep *ep = LIST_FIRST(&rail->doze.polled); ep; ep = LIST_NEXT(ep, doze.entry))
        sleep_beside(ep);
    int n = epoll_wait(base->wait_fd, ev, 16, 0);
    for (int i = 0; i < n; i++) {
        if (!ev[i].data.ptr) {
            (void)!read(rail->doorbell_fd, &rings, sizeof(rings)); /* no peer has this descriptor, so the read may not block */
            continue;
        }
        cma_ep *ep = ev[i].data.ptr;
        cma_drain_doorbell(ep);
        if (ep->doze.on) {
            cma_rouse(ep);
            sleep_beside(ep); /* the peer has cleared it */
        }
    }
    if (n == 16 || rail->handshake_event || cma_bulk_busy(rail) || cma_asking_ready(rail) || !gr_ready_empty(&rail->ready) || atomic_load(&rail->pool.done) ||
        atomic_load(&rail->pool.queued) || cma_offload_ready(&rail->pool) || cma_chunks_ready(&rail->pool))
        return 1;
    for (cma_ep *ep = LIST_FIRST(&rail->doze.polled); ep; ep = LIST_NEXT(ep, doze.entry))
        if (cma_requested(ep) || (ep->in.head != ep->in.tail && (arrived(ep) || ep->err)))
            return 1;
    return 0;
}

/* Messages are copied, so their buffers need no registration. */
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

const gr_rail_ops cma_ops = {
    .rma = rma,
    .send = send_msg,
    .recv = recv_msg,
    .poll = poll_rail,
    .arm = arm,
    .reg = reg,
    .unreg = unreg,
    .assist = assist,
};
const gr_rail_bulk cma_bulk_ops = {.post = cma_bulk_post, .stop = cma_bulk_stop, .ops_alloc = cma_ops_alloc, .ops_free = cma_ops_free};

int cma_cancel(cma_ep *ep)
{
    cma_asking_cancel(ep);
    int rc = cma_pool_drain(ep->rail, ep), kept = cma_bulk_drain(ep);
    jobs_finish(ep->rail);
    cma_asking_cancel(ep); /* copies of the pool that have ended since */
    cma_take(ep);
    if (!ep->err)
        fail(ep, ECANCELED);
    return kept ? kept : rc;
}
