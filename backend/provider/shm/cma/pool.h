/* What is to be copied, and who does it: the pool's threads, whoever polls, and peers. Functions return 0 or a negative errno. */
#ifndef GORAIL_LOCAL_POOL_H
#define GORAIL_LOCAL_POOL_H

#include <pthread.h>
#include <stdint.h>

#include "gr_provider.h"
#include "shared.h"

typedef struct cma_rail cma_rail;
typedef struct cma_ep cma_ep;

/* Where threads of the pool run while they copy from or to memory of a NUMA node. n: 0 where there is nothing to choose. */
typedef struct cma_nodes {
    uint32_t n;
    struct cma_node {
        int id;
        uint64_t cpus[CMA_CPUS / 64]; /* bits */
    } node[CMA_NODES];
} cma_nodes;

/* Bytes queued that wake nobody while the application polls, and go in one call then. A piece is as large: halves, of which each costs a work
 * request, made 256 KiB 8 % slower and 1 MiB 1 %. */
enum { CMA_ALONE = 1 << 20 };

typedef struct cma_job {
    struct cma_job *next;
    cma_ep *ep;
    gr_ctx *ctx;
    int write, err;
    cma_offer *offload; /* the bytes from `kept` on are offered to the peer, or being copied by it; NULL: none are */
    uint64_t kept;
    uint64_t long_ns; /* when it will have taken the peer long; 0: not asked yet */
    int node; /* in the pool's nodes, of our memory; -1: unknown, or all the same */
    uint32_t n;
    uint64_t bytes;
    gr_seg seg[GR_MAX_IOV];
} cma_job;

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
    _Atomic int call; /* the next poll rouses threads */
    uint64_t bytes; /* queued */
    cma_job *lent; /* they wait for the peer, who copies what is missing, or may still take it */
    _Atomic uint32_t nlent;
    cma_ep *_Atomic assist; /* its peer has offered something; changed under mu or the rail's lock, to NULL under mu alone */
    _Atomic int served; /* a piece for a peer, lately */
    _Atomic uint64_t for_peers, by_peers; /* bytes; written under mu */
    cma_epoch own[CMA_COPIERS]; /* likewise ours, while we copy for peers */
    _Atomic uint32_t epochs; /* bits: those that nobody has */
    cma_job *_Atomic done;
} cma_pool;

/* ---- pool.c ---- */

void cma_pool_open(cma_pool *pool, uint32_t threads, const cma_nodes *nodes);
void cma_pool_close(cma_rail *rail);
void cma_pool_add(cma_rail *rail, cma_job *job);
/* What one copy can do: of the queue, or what a peer has not begun. NULL: there is nothing. With mu. */
cma_job *cma_pool_take(cma_rail *rail);
/* Copies that, but for what is lent, and hands it on. Without mu. */
void cma_pool_copy(cma_rail *rail, cma_job *list, uint32_t epoch);
/* Copies what one call takes, ours or a peer's, on a epoch that is lent; 0 when there was nothing to do, or no epoch. Without the rail's lock. */
int cma_pool_help(cma_rail *rail);
/* Takes what is finished, in no order. */
cma_job *cma_pool_done(cma_rail *rail);
/* Ends the endpoint's jobs: those that wait with ECANCELED. With the rail locked; it is not while a peer copies, which is waited for a second
 * at most: -ETIMEDOUT, and its job has ended with ECANCELED all the same. */
int cma_pool_drain(cma_rail *rail, cma_ep *ep);

/* ---- copier.c ---- */

/* One thread more, with mu. */
void cma_copier_start(cma_rail *rail);
/* Which of the pool's nodes has the memory; -1: none, as what nobody has touched yet. */
int cma_node_of(const cma_pool *pool, uint64_t addr);

/* ---- offload.c: with pool.mu, but for cma_copy_part and cma_offload_over ---- */

/* Whether the application here and the peer both poll, and the peer takes offers. */
int cma_may_lend(const cma_rail *rail, const cma_ep *ep);
/* Offers the job's bytes from `kept` on to its peer; 0: it takes none now. */
int cma_lend(cma_rail *rail, cma_job *job, uint64_t kept);
/* Copies some of the job's bytes; 0 or an errno. */
int cma_copy_part(const cma_job *job, uint32_t epoch, uint64_t from, uint64_t to);
/* Puts a job of which nothing but the offload is left among those that wait. */
void cma_offload_wait(cma_pool *pool, cma_job *job);
/* Takes what peers have copied. */
void cma_offload_reap(cma_pool *pool);
/* A job of which the bytes from `kept` on are the caller's to copy: the peer had not begun, or could not. It counts in ep->jobs. NULL: there is none. */
cma_job *cma_offload_back(cma_pool *pool);
/* Whether one of these would find something. */
int cma_offload_over(cma_pool *pool);
/* Ends the endpoint's, with ECANCELED where the peer has not copied; those that it is at only with `all`. How many these are. */
uint32_t cma_offload_cancel(cma_pool *pool, cma_ep *ep, int all);

/* ---- what all of these use ---- */

/* Needs no lock. */
static inline void cma_pool_put_done(cma_pool *pool, cma_job *job)
{
    job->next = atomic_load_explicit(&pool->done, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&pool->done, &job->next, job))
        ;
}

/* Lends a epoch; 0: there is none. */
static inline int cma_lane_take(cma_pool *pool, uint32_t *epoch)
{
    uint32_t free = atomic_load_explicit(&pool->epochs, memory_order_relaxed);
    do {
        if (!free)
            return 0;
        *epoch = (uint32_t)__builtin_ctz(free);
    } while (!atomic_compare_exchange_weak(&pool->epochs, &free, free & ~(1u << *epoch)));
    return 1;
}

static inline void cma_lane_give(cma_pool *pool, uint32_t epoch) { atomic_fetch_or(&pool->epochs, 1u << epoch); }

#endif
