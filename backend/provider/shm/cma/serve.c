/* A target serves the chunks of its ring: it copies between them and its own memory, for peers that may not access it
 * (chunks.c). Threads that poll make the copies, and the progress thread while nobody polls. */
#define _GNU_SOURCE
#include <errno.h>

#include "cma.h"

/* A peer's requests are served up to so many bytes before the next poll: 50 us */
enum { SERVE_BYTES = 512 << 10 };

int cma_requested(const cma_ep *ep)
{
    return ((atomic_load(&ep->shm->requested) & ((1u << CMA_CHUNKS) - 1)) || atomic_load(&ep->shm->asked)) && ep->peer.shm && !ep->err && !atomic_load(&ep->closing);
}

void cma_serve_update(cma_rail *rail)
{
    cma_ep *next = NULL;
    for (cma_ep *ep = LIST_FIRST(&rail->doze.polled); ep; ep = LIST_NEXT(ep, doze.entry)) {
        if (!cma_requested(ep))
            continue;
        if (!next || ep->number - rail->served - 1 < next->number - rail->served - 1) /* in turn */
            next = ep;
    }
    if (next) {
        rail->served = next->number;
        atomic_store(&rail->pool.serve, next);
        return;
    }
    /* not beside a request: a thread that counts as busy does not serve */
    uint64_t until = atomic_load_explicit(&rail->asked.until_ns, memory_order_relaxed);
    if (until && cma_now() < until)
        rail->base.soon = 1;
    else if (until)
        atomic_compare_exchange_strong(&rail->asked.until_ns, &until, 0);
}

/* A request, read once: later writes of the peer have no effect. */
typedef struct work {
    uint32_t n, write;
    uint64_t bytes, key[GR_MAX_IOV];
    gr_span span[GR_MAX_IOV];
} work;

static int read_request(const volatile cma_chunk *c, uint8_t *ring, uint64_t most, work *w)
{
    w->n = c->n;
    w->write = c->write;
    w->bytes = 0;
    if (w->n == 0 || w->n > GR_MAX_IOV)
        return EPROTO;
    for (uint32_t i = 0; i < w->n; i++) {
        uint64_t len = c->piece[i].len;
        if (len > most || (w->bytes += len) > most)
            return EMSGSIZE;
        w->key[i] = c->piece[i].key;
        void *here = (void *)(uintptr_t)c->piece[i].addr;
        w->span[i] = w->write ? (gr_span){here, ring, len} : (gr_span){ring, here, len};
        ring += len;
    }
    return 0;
}

/* Whether peers may do this with the region. We copy, so this is the place that can refuse; cma_allowed checks the key. */
static int may_serve(const cma_rail *rail, uint64_t key, uint32_t write)
{
    uint64_t share = (uint32_t)key < CMA_REGIONS ? atomic_load(&rail->table[(uint32_t)key].share) : 1;
    if (share && share != CMA_FILE) /* of a GPU: no processor copies there */
        return EACCES;
    return rail->rights[(uint32_t)key] & (write ? CMA_MAY_WRITE : CMA_MAY_READ) ? 0 : EACCES;
}

/* Copies within an epoch of ours: a deregistration waits for it. */
static int chunk_copy(cma_ep *ep, uint32_t epoch, uint32_t i, uint64_t *bytes)
{
    work w;
    cma_epoch *own = &ep->rail->pool.own[epoch];
    uint64_t regions = 0;
    int err = read_request(&ep->shm->chunk[i], ep->ring.own + i * ep->ring.own_size, ep->ring.own_size, &w);
    if (err)
        return err;
    *bytes += w.bytes;
    for (uint32_t k = 0; k < w.n; k++)
        regions |= cma_region_bit(w.key[k]);
    atomic_store(&own->regions, regions);
    atomic_fetch_add(&own->turn, 1); /* before the checks that follow: deregistration changes the table first and then reads the epoch */
    if (atomic_load(&ep->shm->closed) || atomic_load(&ep->closing) || atomic_load(&ep->peer.shm->closed)) /* the peer may have given up */
        err = ECONNRESET;
    for (uint32_t k = 0; !err && k < w.n; k++)
        if (!(err = may_serve(ep->rail, w.key[k], w.write)))
            err = cma_allowed(ep->rail->table, w.key[k], (uint64_t)(uintptr_t)(w.write ? w.span[k].to : w.span[k].from), w.span[k].len);
    if (!err)
        err = gr_guard_move(w.n, w.span);
    atomic_fetch_add(&own->turn, 1);
    return err;
}

/* Answers questions, and serves chunks; returns the number of chunks. An answer takes a microsecond, and counts as no work of the polling
 * application: else the progress thread would leave the rail to an application that polls seldom. */
static int chunks_serve(cma_ep *ep, uint32_t epoch)
{
    cma_shm *shm = ep->shm;
    uint64_t bytes = 0;
    uint32_t bits, n = 0;
    cma_answer_all(ep, epoch);
    while (bytes < SERVE_BYTES && n < CMA_CHUNKS && (bits = atomic_load(&shm->requested) & ((1u << CMA_CHUNKS) - 1))) {
        uint32_t i = (uint32_t)__builtin_ctz(bits);
        if (!(atomic_fetch_and(&shm->requested, ~(1u << i)) & 1u << i)) /* another thread has it */
            continue;
        n++;
        int err = chunk_copy(ep, epoch, i, &bytes);
        atomic_store(&shm->chunk[i].ended, err ? -err : CMA_COPIED); /* before cma_ring_asleep */
        cma_ring_asleep(ep);
    }
    return (int)n;
}

int cma_serve(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    uint32_t epoch;
    int did = 0;
    if (!atomic_load_explicit(&pool->serve, memory_order_relaxed) || !cma_epoch_take(pool, &epoch))
        return 0;
    pthread_mutex_lock(&pool->mu);
    cma_ep *ep = atomic_exchange(&pool->serve, NULL);
    if (ep)
        ep->pool.jobs++;
    pthread_mutex_unlock(&pool->mu);
    if (ep) {
        did = chunks_serve(ep, epoch);
        if (did && !pthread_equal(pthread_self(), rail->base.thread))
            atomic_fetch_add_explicit(&pool->served, did, memory_order_relaxed);
        pthread_mutex_lock(&pool->mu);
        ep->pool.jobs--;
        pthread_mutex_unlock(&pool->mu);
    }
    cma_epoch_give(pool, epoch);
    return did > 0;
}
