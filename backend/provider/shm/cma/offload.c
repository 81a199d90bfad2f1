/* An initiator offers pieces of its copies to a polling target. The target's core spins anyway, and two cores copy
 * nearly twice as fast as one. The initiator withdraws an offer that the target has not begun when nothing else is
 * left to copy. An offer that the target has begun stays the target's until it reports the end, or until its thread
 * is certainly past the copy. */
#include <errno.h>
#include <sys/syscall.h>

#include "cma.h"

enum { CHECK_NS = 5000000 }; /* a copy that takes longer: check the thread that makes it */

static uint32_t bit_of(const cma_job *job) { return 1u << (job->offload - job->ep->peer.shm->offer); }

/* Frees offers that we had given up, once the peer has reported their end. */
static void recover(cma_ep *ep)
{
    for (uint32_t i = 0; i < CMA_OFFERS; i++)
        if ((ep->pool.abandoned & 1u << i) && atomic_load(&ep->peer.shm->offer[i].ended) != CMA_UNDER_WAY) {
            ep->pool.abandoned &= ~(1u << i);
            ep->pool.offers &= ~(1u << i);
        }
}

int cma_may_offload(const cma_rail *rail, const cma_ep *ep)
{
    return ep->peer.same_user && !ep->pool.declined && atomic_load_explicit(&ep->peer.shm->assists, memory_order_relaxed) &&
           atomic_load_explicit(&rail->base.app_polls, memory_order_relaxed);
}

uint32_t cma_slice(const cma_job *job, uint64_t from, uint64_t to, gr_seg *out)
{
    uint64_t at = 0; /* offset in the job's bytes of the segment */
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n && at < to; at += job->seg[i++].len) {
        uint64_t skip = from > at ? from - at : 0, end = to - at < job->seg[i].len ? to - at : job->seg[i].len;
        if (skip >= end)
            continue;
        out[n] = job->seg[i];
        out[n].laddr += skip;
        out[n].raddr += skip;
        out[n++].len = end - skip;
    }
    return n;
}

int cma_offload_offer(cma_rail *rail, cma_job *job, uint64_t kept)
{
    cma_ep *ep = job->ep;
    cma_shm *out = ep->peer.shm;
    gr_seg seg[GR_MAX_IOV];
    if (ep->pool.abandoned)
        recover(ep);
    if (!cma_may_offload(rail, ep) || ep->pool.offers == (1u << CMA_OFFERS) - 1 || atomic_load(&ep->closing))
        return 0;
    cma_offer *o = &out->offer[__builtin_ctz(~ep->pool.offers)];
    o->write = (uint32_t)job->write;
    atomic_store_explicit(&o->tid, 0, memory_order_relaxed);
    uint32_t n = cma_slice(job, kept, job->bytes, seg); /* local count: the peer can write to the shared segment */
    for (uint32_t i = 0; i < n; i++) {
        o->piece[i].key = seg[i].rkey;
        o->piece[i].here = seg[i].raddr;
        o->piece[i].there = seg[i].laddr;
        o->piece[i].len = seg[i].len;
    }
    o->n = n;
    atomic_store_explicit(&o->ended, CMA_UNDER_WAY, memory_order_relaxed);
    job->offload = o;
    job->kept = kept;
    job->check_ns = 0;
    ep->pool.offers |= bit_of(job);
    atomic_fetch_or(&out->offered, bit_of(job));
    return 1;
}

int cma_copy_part(const cma_job *job, uint32_t epoch, uint64_t from, uint64_t to)
{
    gr_seg seg[GR_MAX_IOV];
    uint32_t n = cma_slice(job, from, to, seg);
    return n ? cma_copy(job->ep, epoch, job->write, n, seg) : 0;
}

void cma_offload_wait(cma_pool *pool, cma_job *job)
{
    job->next = pool->offloaded;
    pool->offloaded = job;
    atomic_fetch_add(&pool->noffloaded, 1);
}

/* Ends the offload of a job. no_answer: the peer has not reported the end, so its offer stays in use until then. */
static void unlink_offload(cma_pool *pool, cma_job **at, int no_answer)
{
    cma_job *job = *at;
    *at = job->next;
    job->next = NULL;
    if (no_answer)
        job->ep->pool.abandoned |= bit_of(job);
    else
        job->ep->pool.offers &= ~bit_of(job);
    job->offload = NULL;
    atomic_fetch_sub(&pool->noffloaded, 1);
}

/* Whether a copy without a report has ended all the same: the peer's process is gone, or its thread is stopped past
 * the copy. Checks every CHECK_NS. */
static int peer_gone_or_stopped(cma_job *job)
{
    uint64_t now = cma_now();
    if (!cma_alive(job->ep))
        return 1;
    if (!job->check_ns)
        job->check_ns = now + CHECK_NS;
    if (now < job->check_ns)
        return 0;
    job->check_ns = 0;
    return cma_stopped(job->ep->peer.pid, atomic_load(&job->offload->tid), job->write ? SYS_process_vm_readv : SYS_process_vm_writev);
}

/* Withdraws an offer. The side that clears the bit makes the copy; 0: the peer has it. */
static int withdraw(const cma_job *job)
{
    _Atomic uint32_t *offered = &job->ep->peer.shm->offered; /* the peer polls this word */
    return (atomic_load(offered) & bit_of(job)) && (atomic_fetch_and(offered, ~bit_of(job)) & bit_of(job));
}

void cma_offload_reap(cma_pool *pool)
{
    for (cma_job **at = &pool->offloaded, *job; (job = *at);) {
        if (atomic_load(&job->offload->ended) != CMA_COPIED) {
            at = &job->next;
            continue;
        }
        unlink_offload(pool, at, 0);
        atomic_store_explicit(&pool->by_peers, pool->by_peers + job->bytes - job->kept, memory_order_relaxed);
        cma_pool_end(pool, job);
    }
}

cma_job *cma_offload_reclaim(cma_pool *pool)
{
    for (cma_job **at = &pool->offloaded, *job; (job = *at); at = &job->next) {
        int ended = atomic_load(&job->offload->ended), no_answer = 0;
        if (ended == CMA_COPIED || (ended == CMA_UNDER_WAY && !withdraw(job) && !(no_answer = peer_gone_or_stopped(job))))
            continue;
        if (ended < 0 && ended != -EACCES && ended != -ERANGE) /* the peer would fail the next time, too */
            job->ep->pool.declined = 1;
        unlink_offload(pool, at, no_answer);
        job->ep->pool.jobs++;
        return job;
    }
    return NULL;
}

int cma_offload_ready(cma_pool *pool)
{
    int over = 0;
    if (!atomic_load(&pool->noffloaded))
        return 0;
    pthread_mutex_lock(&pool->mu);
    for (cma_job *job = pool->offloaded; job; job = job->next)
        over |= atomic_load(&job->offload->ended) != CMA_UNDER_WAY || (atomic_load(&job->ep->peer.shm->offered) & bit_of(job));
    pthread_mutex_unlock(&pool->mu);
    return over;
}

uint32_t cma_offload_cancel(cma_pool *pool, cma_ep *ep, int all)
{
    uint32_t left = 0;
    for (cma_job **at = &pool->offloaded, *job; (job = *at);) {
        if (job->ep != ep) {
            at = &job->next;
            continue;
        }
        int ended = atomic_load(&job->offload->ended), back = ended == CMA_UNDER_WAY && withdraw(job);
        int at_it = ended == CMA_UNDER_WAY && !back && !peer_gone_or_stopped(job);
        left += (uint32_t)at_it;
        if (at_it && !all) {
            at = &job->next;
            continue;
        }
        unlink_offload(pool, at, 1);
        if (!job->err && ended != CMA_COPIED)
            job->err = ECANCELED;
        cma_pool_put_done(pool, job);
    }
    return left;
}
