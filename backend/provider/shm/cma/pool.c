/* Copies and the threads that make them: pool threads (copier.c), polling threads, and peers (offload.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cma.h"

enum {
    BATCH = 64,         /* segments of one system call */
    BATCH_BYTES = 256 << 10,
    OFFLOAD_MIN = 64 << 10,  /* bytes that are worth an offer: 128 KiB took 9.3 us in halves, 10.4 us in one */
    OFFLOAD_MAX = 512 << 10, /* bytes that keep the peer's poll for 50 to 150 us, which is acceptable */
};

/* Polling threads copy up to CMA_UNSPLIT bytes, which fit in a core's cache. A thread that must be woken comes too
 * late, and takes a core from the polling threads. */
static int poller_copies(const cma_rail *rail)
{
    return rail->pool.bytes <= CMA_UNSPLIT && atomic_load_explicit(&rail->base.app_polls, memory_order_relaxed);
}

/* Takes the queue's jobs from the first to `last`. With mu. */
static void unqueue(cma_pool *pool, cma_job *last, uint32_t jobs, uint64_t bytes)
{
    pool->head = last->next;
    if (!pool->head)
        pool->tail = &pool->head;
    last->next = NULL;
    pool->bytes -= bytes;
    atomic_fetch_sub(&pool->queued, jobs);
}

/* Takes jobs for one copy from the queue: the first one, and the next ones of the same endpoint and direction. Offers
 * small jobs before the last one whole to the peer, and half of a large job. With mu. */
static cma_job *pool_take(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    for (cma_job *j; (j = pool->head) && j->next && j->bytes >= OFFLOAD_MIN && j->bytes <= OFFLOAD_MAX && cma_offload_offer(rail, j, 0);) {
        unqueue(pool, j, 1, j->bytes);
        cma_offload_wait(pool, j);
    }
    cma_job *first = pool->head, *last = first;
    if (!first)
        return NULL;
    uint64_t bytes = first->bytes, most = poller_copies(rail) ? CMA_UNSPLIT : BATCH_BYTES; /* leave some for other threads */
    uint32_t segs = first->n, jobs = 1;
    for (cma_job *j = first->next; j && j->ep == first->ep && j->write == first->write; j = j->next) {
        if (segs + j->n > BATCH || bytes + j->bytes > most)
            break;
        segs += j->n;
        bytes += j->bytes;
        jobs++;
        last = j;
    }
    unqueue(pool, last, jobs, bytes);
    first->ep->pool.jobs += jobs;
    if (jobs == 1 && bytes >= 2 * OFFLOAD_MIN) /* of at most CMA_UNSPLIT bytes */
        (void)cma_offload_offer(rail, first, bytes / 2);
    return first;
}

cma_job *cma_pool_take(cma_rail *rail)
{
    cma_job *list = pool_take(rail);
    return list ? list : cma_offload_reclaim(&rail->pool);
}

/* Copies our part. One copy serves all jobs; if it fails, one copy per job finds the failing one. */
static void pool_copy(cma_job *list, uint32_t epoch)
{
    if (!list->next) {
        if (!list->err)
            list->err = list->offload ? cma_copy_part(list, epoch, 0, list->kept) : cma_copy_part(list, epoch, list->kept, list->bytes);
        return;
    }
    gr_seg seg[BATCH];
    uint32_t n = list->n;
    memcpy(seg, list->seg, n * sizeof(*seg)); /* ours */
    for (cma_job *j = list->next; j; n += j->n, j = j->next)
        memcpy(&seg[n], j->seg, j->n * sizeof(*seg)); /* ours */
    int err = cma_copy(list->ep, epoch, list->write, n, seg);
    for (cma_job *j = list; j; j = j->next)
        j->err = err ? cma_copy(j->ep, epoch, j->write, j->n, j->seg) : 0;
}

void cma_pool_end(cma_pool *pool, cma_job *j)
{
    if (cma_by_ring(j->ep, j->err)) { /* all of it: what was copied is copied again */
        j->err = 0;
        j->by_ring = 1;
        cma_chunks_add(pool, j);
    } else {
        cma_pool_put_done(pool, j);
    }
}

static void pool_finish(cma_pool *pool, cma_job *list)
{
    cma_ep *ep = list->ep;
    uint32_t n = 0;
    pthread_mutex_lock(&pool->mu);
    for (cma_job *j = list, *next; j; j = next) {
        next = j->next;
        n++;
        if (j->offload) /* the peer may be at its part */
            cma_offload_wait(pool, j);
        else
            cma_pool_end(pool, j);
    }
    ep->pool.jobs -= n;
    pthread_mutex_unlock(&pool->mu);
}

void cma_pool_copy(cma_rail *rail, cma_job *list, uint32_t epoch)
{
    pool_copy(list, epoch);
    pool_finish(&rail->pool, list);
    cma_wake(rail);
}

/* Whether this process has only two processors: the polling threads here and at the assisting peer keep them busy.
 * With mu. */
static int few_cpus(const cma_rail *rail)
{
    const cma_job *first = rail->pool.head;
    return rail->cpus && rail->cpus <= 2 && first && cma_may_offload(rail, first->ep);
}

/* Wakes a sleeping thread for each queued job, or starts one more thread. Wakes none if polling threads have copied
 * most of the queue meanwhile. */
static void wake_copiers(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    pthread_mutex_lock(&pool->mu);
    uint32_t queued = poller_copies(rail) || few_cpus(rail) ? 0 : atomic_load(&pool->queued),
             wake = pool->copiers.waiting < queued ? pool->copiers.waiting : queued;
    if (!pool->copiers.waiting && pool->copiers.started < pool->copiers.most && queued > pool->copiers.started)
        cma_copier_start(rail);
    pthread_mutex_unlock(&pool->mu);
    while (wake--)
        pthread_cond_signal(&pool->work);
}

/* While the application polls, its next poll wakes threads. A thread that a post wakes would keep the post's core for
 * a whole time slice, while other cores go on polling (64 MiB, two cores: the post took 15 us, or 400). */
void cma_pool_add(cma_rail *rail, cma_job *job)
{
    cma_pool *pool = &rail->pool;
    job->next = NULL;
    job->node = cma_node_of(pool, job->seg[0].laddr);
    pthread_mutex_lock(&pool->mu);
    *pool->tail = job;
    pool->tail = &job->next;
    atomic_fetch_add(&pool->queued, 1);
    pool->bytes += job->bytes;
    int call = !poller_copies(rail), later = call && atomic_load_explicit(&rail->base.app_polls, memory_order_relaxed);
    pthread_mutex_unlock(&pool->mu);
    if (later)
        atomic_store(&pool->wake_on_poll, 1);
    else if (call)
        wake_copiers(rail);
}

/* Copies jobs; if half of a job was offered, also the other half, unless the peer has begun. */
static int copy_own(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    uint32_t epoch;
    int did = 0;
    if (!atomic_load_explicit(&pool->queued, memory_order_relaxed) && !atomic_load_explicit(&pool->noffloaded, memory_order_relaxed))
        return 0;
    if (atomic_load_explicit(&pool->wake_on_poll, memory_order_relaxed) && atomic_exchange(&pool->wake_on_poll, 0))
        wake_copiers(rail);
    if (!cma_epoch_take(pool, &epoch))
        return 0;
    for (int more = 1; more && did < 2; did++) {
        pthread_mutex_lock(&pool->mu);
        cma_job *list = cma_pool_take(rail);
        pthread_mutex_unlock(&pool->mu);
        if (!list)
            break;
        more = list->offload != NULL;
        cma_pool_copy(rail, list, epoch);
    }
    cma_epoch_give(pool, epoch);
    return did > 0;
}

static int copy_chunks(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    if (!atomic_load_explicit(&pool->nchunked, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&pool->mu);
    int did = cma_chunks_copy(pool);
    pthread_mutex_unlock(&pool->mu);
    if (did)
        cma_wake(rail); /* it may have been the last copy of a job */
    return did;
}

int cma_pool_assist(cma_rail *rail) { return cma_serve(rail) | copy_chunks(rail) | copy_own(rail) || cma_assist(rail); }

cma_job *cma_pool_done(cma_rail *rail)
{
    if (atomic_load_explicit(&rail->pool.noffloaded, memory_order_relaxed)) {
        pthread_mutex_lock(&rail->pool.mu);
        cma_offload_reap(&rail->pool);
        pthread_mutex_unlock(&rail->pool.mu);
    }
    if (atomic_load_explicit(&rail->pool.nchunked, memory_order_relaxed)) {
        pthread_mutex_lock(&rail->pool.mu);
        cma_chunks_reap(&rail->pool);
        pthread_mutex_unlock(&rail->pool.mu);
    }
    if (!atomic_load_explicit(&rail->pool.done, memory_order_relaxed))
        return NULL;
    return atomic_exchange(&rail->pool.done, NULL);
}

/* Sleeps with the rail and mu unlocked. Both are locked at entry and exit. */
static void sleep_unlocked(cma_rail *rail)
{
    pthread_mutex_unlock(&rail->pool.mu);
    gr_rail_unlock(&rail->base);
    nanosleep(&(struct timespec){.tv_nsec = CMA_SLEEP_US * 1000}, NULL);
    gr_rail_lock(&rail->base);
    pthread_mutex_lock(&rail->pool.mu);
}

int cma_pool_drain(cma_rail *rail, cma_ep *ep)
{
    cma_pool *pool = &rail->pool;
    uint64_t end = 0; /* time limit; starts when only the peer still copies */
    uint32_t left;
    pthread_mutex_lock(&pool->mu);
    if (atomic_load(&pool->assist) == ep)
        atomic_store(&pool->assist, NULL);
    if (atomic_load(&pool->serve) == ep)
        atomic_store(&pool->serve, NULL);
    cma_chunks_cancel(pool, ep, ECANCELED);
    pool->tail = &pool->head;
    for (cma_job *j = pool->head, *next; j; j = next) {
        next = j->next;
        if (j->ep != ep) {
            *pool->tail = j;
            pool->tail = &j->next;
            continue;
        }
        atomic_fetch_sub(&pool->queued, 1);
        pool->bytes -= j->bytes;
        j->err = ECANCELED;
        cma_pool_put_done(pool, j);
    }
    *pool->tail = NULL;
    while ((left = cma_offload_cancel(pool, ep, 0)) || ep->pool.jobs) {
        if (!ep->pool.jobs && end && cma_now() > end)
            break;
        if (!ep->pool.jobs && !end)
            end = cma_now() + (uint64_t)CMA_WAIT_MS * 1000000;
        sleep_unlocked(rail);
    }
    if (left)
        left = cma_offload_cancel(pool, ep, 1);
    pthread_mutex_unlock(&pool->mu);
    if (left)
        cma_note_late(rail, ep->peer.pid);
    return left ? -ETIMEDOUT : 0;
}

void cma_pool_open(cma_pool *pool, uint32_t threads, const cma_nodes *nodes)
{
    pool->nodes = *nodes;
    pthread_mutex_init(&pool->mu, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->tail = &pool->head;
    TAILQ_INIT(&pool->chunked);
    _Static_assert(CMA_COPIERS == 32 && CMA_THREADS < CMA_COPIERS - 1, "a bit each, and some to lend");
    pool->copiers.most = threads < CMA_THREADS ? threads : CMA_THREADS;
    atomic_init(&pool->epochs, ~((2u << pool->copiers.most) - 1));
}

void cma_pool_close(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    pthread_mutex_lock(&pool->mu);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mu);
    for (uint32_t i = 0; i < pool->copiers.started; i++)
        pthread_join(pool->copiers.thread[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mu);
}
