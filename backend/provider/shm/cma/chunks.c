/* An initiator that may not access its peer's memory copies through the peer's ring: WRITEs into chunks, READs out of them.
 * The peer copies between the chunks and its own memory (serve.c). A work request is cut, so that both sides copy at once. */
#define _GNU_SOURCE
#include <errno.h>

#include "cma.h"

enum {
    PARTS = 2, /* chunks of a work request of 32 to 512 KiB: 256 KiB took 17 us, in four 28; 128 KiB 16, in one 13 */
    PART_MIN = 16 << 10,
    PAGE = 4 << 10,
    IN_TURN = 64 << 10,
    LATE_NS = 20000,        /* a peer that spins begins within a microsecond, unless another process has its core */
    DIRECT_NS = 2000000,    /* no small jobs for the ring after a request was taken back: the peer does not spin */
    MOST_ERRNO = 4096,
    REAP_MAX = 16 << 10,    /* bytes of a READ that a poll copies under the rail's lock: 2 us */
};

static void list(cma_pool *pool, cma_ep *ep)
{
    if (ep->ring.listed)
        return;
    TAILQ_INSERT_TAIL(&pool->chunked, ep, ring.entry);
    ep->ring.listed = 1;
    atomic_fetch_add(&pool->nchunked, 1);
}

static void unlist(cma_pool *pool, cma_ep *ep)
{
    TAILQ_REMOVE(&pool->chunked, ep, ring.entry);
    ep->ring.listed = 0;
    atomic_fetch_sub(&pool->nchunked, 1);
}

static void unlist_idle(cma_pool *pool, cma_ep *ep)
{
    if (ep->ring.listed && !ep->ring.head && !ep->ring.busy)
        unlist(pool, ep);
}

static void end_if_done(cma_pool *pool, cma_job *job)
{
    if (job->given == job->bytes && !job->chunks)
        cma_pool_put_done(pool, job);
}

/* Takes the queue's first job off, when all its bytes have had chunks or have failed. */
static void unqueue(cma_ep *ep)
{
    cma_job *job = ep->ring.head;
    ep->ring.head = job->next;
    if (!ep->ring.head)
        ep->ring.tail = &ep->ring.head;
    job->next = NULL;
}

/* The rest of the job gets no chunks. */
static void fail(cma_ep *ep, cma_job *job, int err)
{
    if (!job->err)
        job->err = err;
    if (job->given == job->bytes)
        return;
    job->given = job->bytes;
    if (ep->ring.head == job) /* jobs behind it have had no chunk, and fail by themselves */
        unqueue(ep);
}

static void end_chunk(cma_pool *pool, cma_ep *ep, uint32_t i, int err)
{
    cma_job *job = ep->ring.part[i].job;
    ep->ring.busy &= ~(1u << i);
    job->chunks--;
    if (err)
        fail(ep, job, err);
    end_if_done(pool, job);
}

/* Asks the peer to serve a chunk. */
static void request(cma_ep *ep, uint32_t i, uint32_t n)
{
    cma_shm *out = ep->peer.shm;
    out->chunk[i].write = (uint32_t)ep->ring.part[i].job->write;
    out->chunk[i].n = n;
    atomic_store_explicit(&out->chunk[i].ended, CMA_UNDER_WAY, memory_order_relaxed);
    atomic_fetch_or(&out->requested, 1u << i); /* before cma_ring_asleep */
    cma_ring_asleep(ep);
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Bytes of the job's next part. */
static uint64_t part_len(const cma_ep *ep, const cma_job *job)
{
    uint64_t even = (job->bytes / PARTS + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    return least(least(even > PART_MIN ? even : PART_MIN, ep->ring.size), job->bytes - job->given);
}

/* A free chunk. Large jobs take chunks in turn: the peer reads a chunk that has left the caches of our core in half the time (WRITEs of 1 MiB
 * took 108 us over the lowest free chunks, 43 us in turn). Small ones stay in few lines of the cache. */
static uint32_t free_chunk(cma_ep *ep, const cma_job *job)
{
    if (job->bytes <= IN_TURN)
        return (uint32_t)__builtin_ctz(~ep->ring.busy);
    uint32_t i = ep->ring.next_chunk;
    while (ep->ring.busy & 1u << i)
        i = (i + 1) % CMA_CHUNKS;
    ep->ring.next_chunk = (i + 1) % CMA_CHUNKS;
    return i;
}

/* Gives the next bytes of the first job a chunk. The copy into it runs with mu unlocked. */
static void send_chunk(cma_pool *pool, cma_ep *ep)
{
    cma_job *job = ep->ring.head;
    uint32_t i = free_chunk(ep, job), bit = 1u << i;
    struct cma_part *p = &ep->ring.part[i];
    *p = (struct cma_part){job, job->given, part_len(ep, job), ep->ring.on ? 0 : cma_now() + LATE_NS};
    job->given += p->len;
    job->chunks++;
    if (job->given == job->bytes)
        unqueue(ep);
    ep->ring.busy |= bit;
    ep->ring.moving |= bit;
    ep->pool.jobs++;
    pthread_mutex_unlock(&pool->mu);
    gr_span span[GR_MAX_IOV];
    uint32_t n = cma_pieces(ep, i, span, &ep->peer.shm->chunk[i]);
    int err = job->write ? gr_guard_move(n, span) : 0;
    pthread_mutex_lock(&pool->mu);
    ep->pool.jobs--;
    ep->ring.moving &= ~bit;
    if (err || job->err)
        end_chunk(pool, ep, i, err);
    else
        request(ep, i, n);
}

/* Copies what a READ has brought. */
static void take_chunk(cma_pool *pool, cma_ep *ep, uint32_t i)
{
    gr_span span[GR_MAX_IOV];
    ep->ring.moving |= 1u << i;
    ep->pool.jobs++;
    pthread_mutex_unlock(&pool->mu);
    int err = gr_guard_move(cma_pieces(ep, i, span, NULL), span);
    pthread_mutex_lock(&pool->mu);
    ep->pool.jobs--;
    ep->ring.moving &= ~(1u << i);
    end_chunk(pool, ep, i, err);
}

/* Takes a request back that the peer has not begun in time, and makes the copy by ourselves, unless the
 * peer's memory is out of reach. The rail is locked: the first epoch is ours. */
static void take_back(cma_pool *pool, cma_ep *ep, uint32_t i)
{
    const struct cma_part *p = &ep->ring.part[i];
    _Atomic uint32_t *requested = &ep->peer.shm->requested;
    if (ep->ring.on || cma_now() < p->late_ns || !(atomic_load(requested) & 1u << i) || !(atomic_fetch_and(requested, ~(1u << i)) & 1u << i))
        return;
    ep->ring.direct_ns = cma_now() + DIRECT_NS;
    int err = p->job->err ? 0 : cma_copy_part(p->job, 0, p->from, p->from + p->len);
    if (!cma_by_ring(ep, err)) {
        end_chunk(pool, ep, i, err);
        return;
    }
    atomic_fetch_or(requested, 1u << i); /* as it was: nobody has begun */
    cma_ring_asleep(ep);
}

/* Ends the chunks whose answer needs no copy. locked: so is the rail. Returns a chunk that a READ of at most `most` bytes has filled; -1: none. */
static int take_answers(cma_pool *pool, cma_ep *ep, uint64_t most, int locked)
{
    int found = -1;
    for (uint32_t left = ep->ring.busy & ~ep->ring.moving; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(left);
        const cma_job *job = ep->ring.part[i].job;
        int ended = atomic_load(&ep->peer.shm->chunk[i].ended);
        if (ended == CMA_UNDER_WAY) {
            if (locked)
                take_back(pool, ep, i);
            continue;
        }
        if (ended != CMA_COPIED || job->write || job->err)
            end_chunk(pool, ep, i, ended == CMA_COPIED ? 0 : ended < 0 && ended > -MOST_ERRNO ? -ended : EPROTO);
        else if (found < 0 && ep->ring.part[i].len <= most)
            found = (int)i;
    }
    return found;
}

void cma_chunks_add(cma_pool *pool, cma_job *job)
{
    cma_ep *ep = job->ep;
    job->next = NULL;
    job->given = 0;
    job->chunks = 0;
    if (ep->ring.err || !job->bytes) {
        job->err = ep->ring.err;
        cma_pool_put_done(pool, job);
        return;
    }
    *ep->ring.tail = job;
    ep->ring.tail = &job->next;
    list(pool, ep);
}

static int may_send(const cma_ep *ep)
{
    return ep->ring.head && ep->ring.busy != (1u << CMA_CHUNKS) - 1 && !atomic_load(&ep->closing);
}

void cma_chunks_send(cma_pool *pool, const cma_job *job)
{
    while (job->ep->ring.head == job && may_send(job->ep))
        send_chunk(pool, job->ep);
    unlist_idle(pool, job->ep);
}

/* One copy for one endpoint; 0: there is none. */
static int copy_one(cma_pool *pool, cma_ep *ep)
{
    int i = take_answers(pool, ep, UINT64_MAX, 0), did = 1;
    if (i >= 0)
        take_chunk(pool, ep, (uint32_t)i);
    else if (may_send(ep))
        send_chunk(pool, ep);
    else
        did = 0;
    unlist_idle(pool, ep);
    return did;
}

int cma_chunks_copy(cma_pool *pool)
{
    cma_ep *ep;
    TAILQ_FOREACH(ep, &pool->chunked, ring.entry) /* an unlisted endpoint keeps its successor while mu is held */
        if (copy_one(pool, ep)) {
            if (ep->ring.listed) { /* the others come first now */
                unlist(pool, ep);
                list(pool, ep);
            }
            return 1;
        }
    return 0;
}

void cma_chunks_reap(cma_pool *pool)
{
    for (cma_ep *ep = TAILQ_FIRST(&pool->chunked), *next; ep; ep = next) {
        int i = take_answers(pool, ep, REAP_MAX, 1);
        if (i >= 0)
            take_chunk(pool, ep, (uint32_t)i);
        if (ep->ring.busy && !cma_reaches(ep))
            cma_chunks_cancel(pool, ep, ECONNRESET);
        next = TAILQ_NEXT(ep, ring.entry); /* only now: mu was unlocked */
        unlist_idle(pool, ep);
    }
}

int cma_chunks_ready(cma_pool *pool)
{
    int ready = 0;
    if (!atomic_load(&pool->nchunked))
        return 0;
    pthread_mutex_lock(&pool->mu);
    for (cma_ep *ep = TAILQ_FIRST(&pool->chunked); ep && !ready; ep = TAILQ_NEXT(ep, ring.entry)) {
        ready = may_send(ep) || !cma_reaches(ep);
        uint32_t ours = ep->ring.on ? 0 : atomic_load(&ep->peer.shm->requested); /* requests that we can take back */
        for (uint32_t left = ep->ring.busy & ~ep->ring.moving; left && !ready; left &= left - 1)
            ready = (ours & left & -left) || atomic_load(&ep->peer.shm->chunk[__builtin_ctz(left)].ended) != CMA_UNDER_WAY;
    }
    pthread_mutex_unlock(&pool->mu);
    return ready;
}

void cma_chunks_cancel(cma_pool *pool, cma_ep *ep, int err)
{
    if (!ep->ring.err)
        ep->ring.err = err;
    for (cma_job *job; (job = ep->ring.head);) {
        fail(ep, job, err);
        end_if_done(pool, job);
    }
    for (uint32_t i = 0; i < CMA_CHUNKS; i++) {
        if (!(ep->ring.busy & 1u << i))
            continue;
        if (!ep->ring.part[i].job->err)
            ep->ring.part[i].job->err = err;
        if (ep->ring.moving & 1u << i)
            continue;
        atomic_fetch_and(&ep->peer.shm->requested, ~(1u << i));
        end_chunk(pool, ep, i, err);
    }
    unlist_idle(pool, ep);
}
