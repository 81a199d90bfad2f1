/* What an initiator offers of its WRITEs to a target that polls: its core spins anyway, and two cores copy nearly twice as fast as one. What
 * the target has not begun when there is nothing else to copy is taken back. READs are not offered: a target that is stopped in the
 * middle could still write to our memory when we had given it up. */
#include <errno.h>

#include "local.h"

static uint32_t bit_of(const lc_job *job) { return 1u << (job->loan - job->ep->out->offer); }

int lc_lend(lc_rail *rail, lc_job *job, uint64_t kept)
{
    lc_ep *ep = job->ep;
    lc_box *out = ep->out;
    uint64_t at = 0; /* of the job's bytes, where the segment begins */
    if (!job->write || ep->self || ep->declined || ep->lent == (1u << LC_OFFERS) - 1 || atomic_load(&ep->closing) ||
        !atomic_load_explicit(&out->helps, memory_order_relaxed) || !atomic_load_explicit(&rail->base.attended, memory_order_relaxed))
        return 0;
    lc_offer *o = &out->offer[__builtin_ctz(~ep->lent)];
    o->n = 0;
    for (uint32_t i = 0; i < job->n; at += job->seg[i++].len) {
        const gr_seg *s = &job->seg[i];
        uint64_t skip = kept > at ? kept - at : 0;
        if (skip >= s->len)
            continue;
        o->piece[o->n].key = s->rkey;
        o->piece[o->n].to = s->raddr + skip;
        o->piece[o->n].from = s->laddr + skip;
        o->piece[o->n++].len = s->len - skip;
    }
    atomic_store_explicit(&o->ended, LC_UNDER_WAY, memory_order_relaxed);
    job->loan = o;
    job->kept = kept;
    ep->lent |= bit_of(job);
    atomic_fetch_or(&out->offered, bit_of(job));
    return 1;
}

int lc_copy_part(const lc_job *job, uint32_t lane, uint64_t from, uint64_t to)
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
    return n ? lc_copy(job->ep, lane, job->write, n, seg) : 0;
}

void lc_loan_wait(lc_pool *pool, lc_job *job)
{
    job->next = pool->lent;
    pool->lent = job;
    atomic_fetch_add(&pool->nlent, 1);
}

/* The offer may be used for another. */
static void unlink_loan(lc_pool *pool, lc_job **at)
{
    lc_job *job = *at;
    *at = job->next;
    job->next = NULL;
    job->ep->lent &= ~bit_of(job);
    job->loan = NULL;
    atomic_fetch_sub(&pool->nlent, 1);
}

/* Whoever finds the bit set and clears it has the offer. */
static int take_back(const lc_job *job)
{
    return (atomic_fetch_and(&job->ep->out->offered, ~bit_of(job)) & bit_of(job)) != 0;
}

void lc_loan_reap(lc_pool *pool)
{
    for (lc_job **at = &pool->lent, *job; (job = *at);) {
        if (atomic_load(&job->loan->ended) != LC_COPIED) {
            at = &job->next;
            continue;
        }
        unlink_loan(pool, at);
        lc_pool_put_done(pool, job);
    }
}

lc_job *lc_loan_back(lc_pool *pool)
{
    for (lc_job **at = &pool->lent, *job; (job = *at); at = &job->next) {
        int ended = atomic_load(&job->loan->ended);
        if (ended == LC_COPIED || (ended == LC_UNDER_WAY && !take_back(job) && lc_alive(job->ep)))
            continue;
        if (ended < 0 && ended != -EACCES && ended != -ERANGE) /* nor will it be able to the next time */
            job->ep->declined = 1;
        unlink_loan(pool, at);
        job->ep->jobs++;
        return job;
    }
    return NULL;
}

int lc_loan_over(lc_pool *pool)
{
    int over = 0;
    if (!atomic_load(&pool->nlent))
        return 0;
    pthread_mutex_lock(&pool->mu);
    for (lc_job *job = pool->lent; job; job = job->next)
        over |= atomic_load(&job->loan->ended) != LC_UNDER_WAY || (atomic_load(&job->ep->out->offered) & bit_of(job));
    pthread_mutex_unlock(&pool->mu);
    return over;
}

uint32_t lc_loan_cancel(lc_pool *pool, lc_ep *ep, int all)
{
    uint32_t left = 0;
    for (lc_job **at = &pool->lent, *job; (job = *at);) {
        int ended = job->ep == ep ? atomic_load(&job->loan->ended) : LC_UNDER_WAY, back = job->ep == ep && ended == LC_UNDER_WAY && take_back(job);
        int at_it = ended == LC_UNDER_WAY && !back && lc_alive(ep);
        if (job->ep != ep || (at_it && !all)) {
            left += job->ep == ep;
            at = &job->next;
            continue;
        }
        left += (uint32_t)at_it;
        unlink_loan(pool, at);
        if (!job->err && ended != LC_COPIED)
            job->err = ECANCELED;
        lc_pool_put_done(pool, job);
    }
    return left;
}
