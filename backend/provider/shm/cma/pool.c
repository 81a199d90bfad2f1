/* What is to be copied, and who does it: the pool's threads (copier.c), whoever polls, and peers (loan.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "local.h"

enum {
    BATCH = 64,         /* segments that one call of the kernel's takes */
    BATCH_BYTES = 256 << 10,
    LEND = 64 << 10,    /* bytes that are worth offering to the peer: in halves 128 KiB took 9.3 us, in one 10.4 */
    MOST = 512 << 10,   /* and that keep its poll for no longer than it likes: 50 to 150 us */
};

/* What a core's cache holds is copied by whoever polls: a thread that has to be woken comes too late and takes a core from those who poll. */
static int alone(const lc_rail *rail)
{
    return rail->pool.bytes <= LC_ALONE && atomic_load_explicit(&rail->base.attended, memory_order_relaxed);
}

/* With mu: takes the jobs from the first of the queue to that one. */
static void unqueue(lc_pool *pool, lc_job *last, uint32_t jobs, uint64_t bytes)
{
    pool->head = last->next;
    if (!pool->head)
        pool->tail = &pool->head;
    last->next = NULL;
    pool->bytes -= bytes;
    atomic_fetch_sub(&pool->queued, jobs);
}

/* Takes from the queue what one copy can do: the first job, and those behind it of the same endpoint and direction. Its peer is offered half
 * of a large one, or the small ones before it. With mu. */
static lc_job *take(lc_rail *rail)
{
    lc_pool *pool = &rail->pool;
    for (lc_job *j; (j = pool->head) && j->next && j->bytes >= LEND && j->bytes <= MOST && lc_lend(rail, j, 0);) {
        unqueue(pool, j, 1, j->bytes);
        lc_loan_wait(pool, j);
    }
    lc_job *first = pool->head, *last = first;
    if (!first)
        return NULL;
    uint64_t bytes = first->bytes, most = alone(rail) ? LC_ALONE : BATCH_BYTES; /* else others take some */
    uint32_t segs = first->n, jobs = 1;
    for (lc_job *j = first->next; j && j->ep == first->ep && j->write == first->write; j = j->next) {
        if (segs + j->n > BATCH || bytes + j->bytes > most)
            break;
        segs += j->n;
        bytes += j->bytes;
        jobs++;
        last = j;
    }
    unqueue(pool, last, jobs, bytes);
    first->ep->pool.jobs += jobs;
    if (jobs == 1 && bytes >= 2 * LEND) /* at most LC_ALONE */
        (void)lc_lend(rail, first, bytes / 2);
    return first;
}

lc_job *lc_pool_take(lc_rail *rail)
{
    lc_job *list = take(rail);
    return list ? list : lc_loan_back(&rail->pool);
}

/* Our part of it. One copy for all, or one each, to find out whose fault it is. */
static void copy(lc_job *list, uint32_t lane)
{
    if (!list->next) {
        if (!list->err)
            list->err = list->loan ? lc_copy_part(list, lane, 0, list->kept) : lc_copy_part(list, lane, list->kept, list->bytes);
        return;
    }
    gr_seg seg[BATCH];
    uint32_t n = list->n;
    memcpy(seg, list->seg, n * sizeof(*seg));
    for (lc_job *j = list->next; j; n += j->n, j = j->next)
        memcpy(&seg[n], j->seg, j->n * sizeof(*seg));
    int err = lc_copy(list->ep, lane, list->write, n, seg);
    for (lc_job *j = list; j; j = j->next)
        j->err = err ? lc_copy(j->ep, lane, j->write, j->n, j->seg) : 0;
}

static void finish(lc_pool *pool, lc_job *list)
{
    lc_ep *ep = list->ep;
    uint32_t n = 0;
    pthread_mutex_lock(&pool->mu);
    for (lc_job *j = list, *next; j; j = next) {
        next = j->next;
        n++;
        if (j->loan)
            lc_loan_wait(pool, j);
        else
            lc_pool_put_done(pool, j);
    }
    ep->pool.jobs -= n;
    pthread_mutex_unlock(&pool->mu);
}

void lc_pool_copy(lc_rail *rail, lc_job *list, uint32_t lane)
{
    copy(list, lane);
    finish(&rail->pool, list);
    lc_wake(rail);
}

/* Two processors have enough to do with whoever polls here and the peer that polls and helps. With mu. */
static int crowded(const lc_rail *rail)
{
    const lc_job *first = rail->pool.head;
    return rail->cpus && rail->cpus <= 2 && first && lc_may_lend(rail, first->ep);
}

/* A thread for each job that is queued, as far as there are any: sleeping ones, or one more. None if whoever polls has done most meanwhile. */
static void rouse(lc_rail *rail)
{
    lc_pool *pool = &rail->pool;
    pthread_mutex_lock(&pool->mu);
    uint32_t queued = alone(rail) || crowded(rail) ? 0 : atomic_load(&pool->queued), wake = pool->copiers.waiting < queued ? pool->copiers.waiting : queued;
    if (!pool->copiers.waiting && pool->copiers.started < pool->copiers.most && queued > pool->copiers.started)
        lc_copier_start(rail);
    pthread_mutex_unlock(&pool->mu);
    while (wake--)
        pthread_cond_signal(&pool->work);
}

/* While the application polls its next poll rouses: a thread that a post wakes has its core for a whole turn, where the others are polled on
 * (64 MiB, two cores: 15 us in post, or 400). */
void lc_pool_add(lc_rail *rail, lc_job *job)
{
    lc_pool *pool = &rail->pool;
    job->next = NULL;
    job->node = lc_node_of(pool, job->seg[0].laddr);
    pthread_mutex_lock(&pool->mu);
    *pool->tail = job;
    pool->tail = &job->next;
    atomic_fetch_add(&pool->queued, 1);
    pool->bytes += job->bytes;
    int call = !alone(rail), later = call && atomic_load_explicit(&rail->base.attended, memory_order_relaxed);
    pthread_mutex_unlock(&pool->mu);
    if (later)
        atomic_store(&pool->call, 1);
    else if (call)
        rouse(rail);
}

/* Half of a copy, maybe, and then the other half, should its peer not have begun. */
static int copy_own(lc_rail *rail)
{
    lc_pool *pool = &rail->pool;
    uint32_t lane;
    int did = 0;
    if (!atomic_load_explicit(&pool->queued, memory_order_relaxed) && !atomic_load_explicit(&pool->nlent, memory_order_relaxed))
        return 0;
    if (atomic_load_explicit(&pool->call, memory_order_relaxed) && atomic_exchange(&pool->call, 0))
        rouse(rail);
    if (!lc_lane_take(pool, &lane))
        return 0;
    for (int more = 1; more && did < 2; did++) {
        pthread_mutex_lock(&pool->mu);
        lc_job *list = lc_pool_take(rail);
        pthread_mutex_unlock(&pool->mu);
        if (!list)
            break;
        more = list->loan != NULL;
        lc_pool_copy(rail, list, lane);
    }
    lc_lane_give(pool, lane);
    return did > 0;
}

int lc_pool_help(lc_rail *rail) { return copy_own(rail) || lc_favour(rail); }

lc_job *lc_pool_done(lc_rail *rail)
{
    if (atomic_load_explicit(&rail->pool.nlent, memory_order_relaxed)) {
        pthread_mutex_lock(&rail->pool.mu);
        lc_loan_reap(&rail->pool);
        pthread_mutex_unlock(&rail->pool.mu);
    }
    if (!atomic_load_explicit(&rail->pool.done, memory_order_relaxed))
        return NULL;
    return atomic_exchange(&rail->pool.done, NULL);
}

/* With the rail and mu locked; they are not meanwhile. */
static void nap(lc_rail *rail)
{
    pthread_mutex_unlock(&rail->pool.mu);
    gr_rail_unlock(&rail->base);
    nanosleep(&(struct timespec){ .tv_nsec = LC_NAP_US * 1000 }, NULL);
    gr_rail_lock(&rail->base);
    pthread_mutex_lock(&rail->pool.mu);
}

int lc_pool_drain(lc_rail *rail, lc_ep *ep)
{
    lc_pool *pool = &rail->pool;
    uint64_t end = 0; /* of patience: begins when the peer alone is at something */
    uint32_t left;
    pthread_mutex_lock(&pool->mu);
    if (atomic_load(&pool->favour) == ep)
        atomic_store(&pool->favour, NULL);
    pool->tail = &pool->head;
    for (lc_job *j = pool->head, *next; j; j = next) {
        next = j->next;
        if (j->ep != ep) {
            *pool->tail = j;
            pool->tail = &j->next;
            continue;
        }
        atomic_fetch_sub(&pool->queued, 1);
        pool->bytes -= j->bytes;
        j->err = ECANCELED;
        lc_pool_put_done(pool, j);
    }
    *pool->tail = NULL;
    while ((left = lc_loan_cancel(pool, ep, 0)) || ep->pool.jobs) {
        if (!ep->pool.jobs && end && lc_now() > end)
            break;
        if (!ep->pool.jobs && !end)
            end = lc_now() + (uint64_t)LC_WAIT_MS * 1000000;
        nap(rail);
    }
    if (left)
        left = lc_loan_cancel(pool, ep, 1);
    pthread_mutex_unlock(&pool->mu);
    if (left)
        lc_note_late(rail, ep->peer.pid);
    return left ? -ETIMEDOUT : 0;
}

void lc_pool_open(lc_pool *pool, uint32_t threads, const lc_nodes *nodes)
{
    pool->nodes = *nodes;
    pthread_mutex_init(&pool->mu, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->tail = &pool->head;
    _Static_assert(LC_COPIERS == 32 && LC_THREADS < LC_COPIERS - 1, "a bit each, and some to lend");
    pool->copiers.most = threads < LC_THREADS ? threads : LC_THREADS;
    atomic_init(&pool->lanes, ~((2u << pool->copiers.most) - 1));
}

void lc_pool_close(lc_rail *rail)
{
    lc_pool *pool = &rail->pool;
    pthread_mutex_lock(&pool->mu);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mu);
    for (uint32_t i = 0; i < pool->copiers.started; i++)
        pthread_join(pool->copiers.thread[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mu);
}
