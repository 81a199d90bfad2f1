/* Copies and the threads that make them: pool threads, polling threads, and peers. Functions return 0 or a negative errno. */
#ifndef GORAIL_SHM_POOL_H
#define GORAIL_SHM_POOL_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "gr_guard.h"
#include "gr_provider.h"
#include "process.h"
#include "shared.h"

typedef struct cma_rail cma_rail;
typedef struct cma_ep cma_ep;

/* Processors for pool threads that copy memory of a NUMA node. n = 0: no choice. */
typedef struct cma_nodes {
    uint32_t n;
    struct cma_node {
        int id;
        uint64_t cpus[CMA_CPUS / 64]; /* bits */
    } node[CMA_NODES];
} cma_nodes;

/* Up to this many queued bytes wake no thread while the application polls; then one call copies them. A work request
 * is as large at most. Halves cost a work request each: 256 KiB took 8 % longer, 1 MiB 1 %. */
enum { CMA_UNSPLIT = 1 << 20 };

typedef struct cma_job {
    struct cma_job *next;
    cma_ep *ep;
    gr_ctx *ctx;
    int write, err;
    int ask;    /* the question that the job waits for (ask.c); -1: none */
    int copied; /* it has been copied meanwhile */
    int by_ring; /* its owner copies, so that it needs no answer */
    cma_offer *offload; /* the peer copies, or may copy, the bytes from `kept` on; NULL: no offer */
    uint64_t kept;
    uint64_t check_ns; /* time of the next check of a slow peer; 0: not set */
    uint64_t given;    /* bytes that have had a chunk of the peer's ring */
    uint32_t chunks;   /* chunks in use */
    int node;          /* of our memory, as index in the pool's nodes; -1: unknown, or no choice */
    uint32_t n;
    uint64_t bytes;
    gr_seg seg[GR_MAX_IOV];
} cma_job;

/* Until when deregistrations wait for a copy, which is one turn of an epoch. */
typedef struct cma_patience {
    uint64_t turn, end;
} cma_patience;

typedef struct cma_pool {
    pthread_mutex_t mu;
    pthread_cond_t work;
    struct { /* under mu */
        pthread_t thread[CMA_COPIERS];
        uint32_t most, started, waiting;
    } copiers;
    cma_nodes nodes;
    int stop;
    cma_job *head, **tail;
    _Atomic uint32_t queued;
    _Atomic int wake_on_poll; /* the next poll wakes threads */
    uint64_t bytes;           /* queued */
    cma_job *offloaded;       /* jobs that wait for a peer; the peer copies the rest of each, or may still take it */
    _Atomic uint32_t noffloaded;
    cma_ep *_Atomic assist;               /* an endpoint whose peer has an offer; set under the rail's lock, cleared under mu */
    cma_ep *_Atomic serve;                /* an endpoint whose peer requests a chunk; set and cleared as `assist` */
    TAILQ_HEAD(cma_ep_list, cma_ep) chunked; /* endpoints with jobs for their peers' rings */
    _Atomic uint32_t nchunked;            /* their number */
    _Atomic int assisted, served;         /* a piece was copied, a chunk was served for a peer since count_poll's last look */
    _Atomic uint64_t for_peers, by_peers; /* bytes; written under mu */
    cma_epoch own[CMA_COPIERS];           /* our own epochs, for copies that we make for peers */
    cma_patience waited[CMA_COPIERS];     /* for those copies; under the rail's lock */
    _Atomic uint32_t epochs;              /* bits: free epochs */
    cma_job *_Atomic done;
} cma_pool;

/* ---- pool.c ---- */

void cma_pool_open(cma_pool *pool, uint32_t threads, const cma_nodes *nodes);
void cma_pool_close(cma_rail *rail);
void cma_pool_add(cma_rail *rail, cma_job *job);
/* Takes jobs for one copy: from the queue, or an offer that we reclaimed. NULL: there is none. With mu. */
cma_job *cma_pool_take(cma_rail *rail);
/* Copies these jobs, except for offered bytes. Completes them, or lets them wait for the peer. Without mu. */
void cma_pool_copy(cma_rail *rail, cma_job *list, uint32_t epoch);
/* Copies as much as one call takes, for ourselves or for a peer, in a free epoch. 0: no work, or no free epoch.
 * Without the rail's lock. */
int cma_pool_assist(cma_rail *rail);
/* Takes all finished jobs, in no order. */
cma_job *cma_pool_done(cma_rail *rail);
/* Ends the endpoint's jobs; queued ones end with ECANCELED. With the rail locked; unlocks it while threads or the
 * peer still copy. Waits 1 s at most for the peer. -ETIMEDOUT: the peer may still copy; its jobs have ended with
 * ECANCELED. */
int cma_pool_drain(cma_rail *rail, cma_ep *ep);

/* ---- copier.c ---- */

/* Starts one more thread. With mu. */
void cma_copier_start(cma_rail *rail);
/* The index in the pool's nodes of the node that holds the memory; -1: none, as for memory that was never touched. */
int cma_node_of(const cma_pool *pool, uint64_t addr);

/* ---- offload.c: with pool.mu, except for cma_slice, cma_copy_part and cma_offload_ready ---- */

/* Whether the peer takes offers and the application polls on both sides. */
int cma_may_offload(const cma_rail *rail, const cma_ep *ep);
/* Offers the job's bytes from `kept` on to the peer; 0: the peer takes none now. */
int cma_offload_offer(cma_rail *rail, cma_job *job, uint64_t kept);
/* The job's bytes [from, to) as segments; returns their number. */
uint32_t cma_slice(const cma_job *job, uint64_t from, uint64_t to, gr_seg *out);
/* Copies the job's bytes [from, to); 0 or an errno. */
int cma_copy_part(const cma_job *job, uint32_t epoch, uint64_t from, uint64_t to);
/* Lets a job wait for its peer when only the offered bytes are left. */
void cma_offload_wait(cma_pool *pool, cma_job *job);
/* Completes jobs whose offered bytes the peer has copied. */
void cma_offload_reap(cma_pool *pool);
/* Takes back a job whose offered bytes we must copy: the peer has not begun, has failed, or is gone or stopped. It
 * counts in ep->pool.jobs. NULL: there is none. */
cma_job *cma_offload_reclaim(cma_pool *pool);
/* Whether cma_offload_reap or cma_offload_reclaim would find a job. */
int cma_offload_ready(cma_pool *pool);
/* Ends the endpoint's waiting jobs, with ECANCELED unless the peer has copied. Jobs that the peer is copying end only
 * with `all`. Returns their number. */
uint32_t cma_offload_cancel(cma_pool *pool, cma_ep *ep, int all);

/* ---- chunks.c: with pool.mu ---- */

/* Lists the copies between our memory and a chunk, and the peer's pieces if `remote` is not NULL; without mu. Returns their number. */
uint32_t cma_pieces(const cma_ep *ep, uint32_t chunk, gr_span *out, cma_chunk *remote);
/* Queues a job for the peer's ring. */
void cma_chunks_add(cma_pool *pool, cma_job *job);
/* Sends the job's bytes, if it is the endpoint's first job, as far as there are chunks. Unlocks mu meanwhile. */
void cma_chunks_send(cma_pool *pool, const cma_job *job);
/* Makes one copy into or out of a ring, for the endpoints in turn; 0: there is none. Unlocks mu meanwhile. */
int cma_chunks_copy(cma_pool *pool);
/* Takes answers that need no copy, and ends the jobs of peers that are gone. */
void cma_chunks_reap(cma_pool *pool);
/* Whether cma_chunks_copy or cma_chunks_reap would find work at any endpoint. */
int cma_chunks_ready(cma_pool *pool);
/* Ends the endpoint's jobs with that error. Chunks that a thread copies end with that copy: ep->pool.jobs counts it. */
void cma_chunks_cancel(cma_pool *pool, cma_ep *ep, int err);

/* A job that is copied, or has failed: it is done, or takes the ring. With mu. */
void cma_pool_end(cma_pool *pool, cma_job *job);

/* ---- helpers of all these files ---- */

/* Needs no lock. */
static inline void cma_pool_put_done(cma_pool *pool, cma_job *job)
{
    job->next = atomic_load_explicit(&pool->done, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&pool->done, &job->next, job))
        ;
}

/* Takes a free epoch; 0: there is none. */
static inline int cma_epoch_take(cma_pool *pool, uint32_t *epoch)
{
    uint32_t free = atomic_load_explicit(&pool->epochs, memory_order_relaxed);
    do {
        if (!free)
            return 0;
        *epoch = (uint32_t)__builtin_ctz(free);
    } while (!atomic_compare_exchange_weak(&pool->epochs, &free, free & ~(1u << *epoch)));
    return 1;
}

static inline void cma_epoch_give(cma_pool *pool, uint32_t epoch) { atomic_fetch_or(&pool->epochs, 1u << epoch); }

#endif
