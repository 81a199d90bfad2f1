/* What an initiator offers of its copies to a target that polls: its core spins anyway, and two cores copy nearly twice as fast as one. What
 * the target has not begun when there is nothing else to copy is taken back; what it has begun is its own until it says that it has ended,
 * or has done so beyond doubt. */
#include <errno.h>
#include <sys/syscall.h>

#include "cma.h"

enum { LONG_NS = 5000000 }; /* for a copy: what is the matter with whoever makes it? */

static uint32_t bit_of(const cma_job *job) { return 1u << (job->offload - job->ep->peer.shm->offer); }

/* Offers that were given up, and of which their peer has said its last meanwhile. */
static void recover(cma_ep *ep)
{
    for (uint32_t i = 0; i < CMA_OFFERS; i++)
        if ((ep->pool.lost & 1u << i) && atomic_load(&ep->peer.shm->offer[i].ended) != CMA_UNDER_WAY) {
            ep->pool.lost &= ~(1u << i);
            ep->pool.lent &= ~(1u << i);
        }
}

int cma_may_lend(const cma_rail *rail, const cma_ep *ep)
{
    return ep->peer.same_user && !ep->pool.declined && atomic_load_explicit(&ep->peer.shm->assists, memory_order_relaxed) &&
           atomic_load_explicit(&rail->base.app_polls, memory_order_relaxed);
}

int cma_lend(cma_rail *rail, cma_job *job, uint64_t kept)
{
    cma_ep *ep = job->ep;
    cma_shm *out = ep->peer.shm;
    uint64_t at = 0; /* of the job's bytes, where the segment begins */
    uint32_t n = 0;  /* ours: what is in the shm is anybody's */
    if (ep->pool.lost)
        recover(ep);
    if (!cma_may_lend(rail, ep) || ep->pool.lent == (1u << CMA_OFFERS) - 1 || atomic_load(&ep->closing))
        return 0;
    cma_offer *o = &out->offer[__builtin_ctz(~ep->pool.lent)];
    o->write = (uint32_t)job->write;
    atomic_store_explicit(&o->who, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < job->n; at += job->seg[i++].len) {
        const gr_seg *s = &job->seg[i];
        uint64_t skip = kept > at ? kept - at : 0;
        if (skip >= s->len)
            continue;
        o->piece[n].key = s->rkey;
        o->piece[n].here = s->raddr + skip;
        o->piece[n].there = s->laddr + skip;
        o->piece[n++].len = s->len - skip;
    }
    o->n = n;
    atomic_store_explicit(&o->ended, CMA_UNDER_WAY, memory_order_relaxed);
    job->offload = o;
    job->kept = kept;
    job->long_ns = 0;
    ep->pool.lent |= bit_of(job);
    atomic_fetch_or(&out->offered, bit_of(job));
    return 1;
}

int cma_copy_part(const cma_job *job, uint32_t epoch, uint64_t from, uint64_t to)
{
    gr_seg seg[GR_MAX_IOV];
    uint64_t at = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n && at < to; at += job->seg[i++].len) {
        uint64_t skip = from > at ? from - at : 0, end = to - at < job->seg[i].len ? to - at : job->seg[i].len;
        if (skip >= end)
            continue;
        seg[n] = job->seg[i];
        seg[n].laddr += skip;
        seg[n].raddr += skip;
        seg[n++].len = end - skip;
    }
    return n ? cma_copy(job->ep, epoch, job->write, n, seg) : 0;
}

void cma_offload_wait(cma_pool *pool, cma_job *job)
{
    job->next = pool->lent;
    pool->lent = job;
    atomic_fetch_add(&pool->nlent, 1);
}

/* The offer may be used for another; unsaid: not before its peer has said its last of this one. */
static void unlink_offload(cma_pool *pool, cma_job **at, int unsaid)
{
    cma_job *job = *at;
    *at = job->next;
    job->next = NULL;
    if (unsaid)
        job->ep->pool.lost |= bit_of(job);
    else
        job->ep->pool.lent &= ~bit_of(job);
    job->offload = NULL;
    atomic_fetch_sub(&pool->nlent, 1);
}

/* Under way, as far as the peer says, and nothing of it will be touched any more. */
static int over_unsaid(cma_job *job)
{
    uint64_t now = cma_now();
    if (!cma_alive(job->ep))
        return 1;
    if (!job->long_ns)
        job->long_ns = now + LONG_NS;
    if (now < job->long_ns)
        return 0;
    job->long_ns = 0;
    return cma_stopped(job->ep->peer.pid, atomic_load(&job->offload->who), job->write ? SYS_process_vm_readv : SYS_process_vm_writev);
}

/* Whoever finds the bit set and clears it has the offer. */
static int take_back(const cma_job *job)
{
    _Atomic uint32_t *offered = &job->ep->peer.shm->offered; /* which the peer polls */
    return (atomic_load(offered) & bit_of(job)) && (atomic_fetch_and(offered, ~bit_of(job)) & bit_of(job));
}

void cma_offload_reap(cma_pool *pool)
{
    for (cma_job **at = &pool->lent, *job; (job = *at);) {
        if (atomic_load(&job->offload->ended) != CMA_COPIED) {
            at = &job->next;
            continue;
        }
        unlink_offload(pool, at, 0);
        atomic_store_explicit(&pool->by_peers, pool->by_peers + job->bytes - job->kept, memory_order_relaxed);
        cma_pool_put_done(pool, job);
    }
}

cma_job *cma_offload_back(cma_pool *pool)
{
    for (cma_job **at = &pool->lent, *job; (job = *at); at = &job->next) {
        int ended = atomic_load(&job->offload->ended), unsaid = 0;
        if (ended == CMA_COPIED || (ended == CMA_UNDER_WAY && !take_back(job) && !(unsaid = over_unsaid(job))))
            continue;
        if (ended < 0 && ended != -EACCES && ended != -ERANGE) /* nor will it be able to the next time */
            job->ep->pool.declined = 1;
        unlink_offload(pool, at, unsaid);
        job->ep->pool.jobs++;
        return job;
    }
    return NULL;
}

int cma_offload_over(cma_pool *pool)
{
    int over = 0;
    if (!atomic_load(&pool->nlent))
        return 0;
    pthread_mutex_lock(&pool->mu);
    for (cma_job *job = pool->lent; job; job = job->next)
        over |= atomic_load(&job->offload->ended) != CMA_UNDER_WAY || (atomic_load(&job->ep->peer.shm->offered) & bit_of(job));
    pthread_mutex_unlock(&pool->mu);
    return over;
}

uint32_t cma_offload_cancel(cma_pool *pool, cma_ep *ep, int all)
{
    uint32_t left = 0;
    for (cma_job **at = &pool->lent, *job; (job = *at);) {
        if (job->ep != ep) {
            at = &job->next;
            continue;
        }
        int ended = atomic_load(&job->offload->ended), back = ended == CMA_UNDER_WAY && take_back(job);
        int at_it = ended == CMA_UNDER_WAY && !back && !over_unsaid(job);
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
