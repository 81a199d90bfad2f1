/* What is to be copied, and who does it: the pool's threads, whoever polls, and peers. Functions return 0 or a negative errno. */
#ifndef GORAIL_LOCAL_POOL_H
#define GORAIL_LOCAL_POOL_H

#include <pthread.h>
#include <stdint.h>

#include "gr_provider.h"
#include "shared.h"

typedef struct lc_rail lc_rail;
typedef struct lc_ep lc_ep;

/* Where threads of the pool run while they copy from or to memory of a NUMA node. n: 0 where there is nothing to choose. */
typedef struct lc_nodes {
    uint32_t n;
    struct lc_node {
        int id;
        uint64_t cpus[LC_CPUS / 64]; /* bits */
    } node[LC_NODES];
} lc_nodes;

/* Bytes queued that wake nobody while the application polls, and go in one call then. A piece is as large: halves, of which each costs a work
 * request, made 256 KiB 8 % slower and 1 MiB 1 %. */
enum { LC_ALONE = 1 << 20 };

typedef struct lc_job {
    struct lc_job *next;
    lc_ep *ep;
    gr_ctx *ctx;
    int write, err;
    lc_offer *loan; /* the bytes from `kept` on are offered to the peer, or being copied by it; NULL: none are */
    uint64_t kept;
    uint64_t long_ns; /* when it will have taken the peer long; 0: not asked yet */
    int node; /* in the pool's nodes, of our memory; -1: unknown, or all the same */
    uint32_t n;
    uint64_t bytes;
    gr_seg seg[GR_MAX_IOV];
} lc_job;

typedef struct lc_pool {
    pthread_mutex_t mu;
    pthread_cond_t work;
    struct { /* under mu */
        pthread_t thread[LC_COPIERS];
        uint32_t most, started, waiting;
    } copiers;
    lc_nodes nodes;
    int stop;
    lc_job *head, **tail;
    _Atomic uint32_t queued;
    _Atomic int call; /* the next poll rouses threads */
    uint64_t bytes; /* queued */
    lc_job *lent; /* they wait for the peer, who copies what is missing, or may still take it */
    _Atomic uint32_t nlent;
    lc_ep *_Atomic favour; /* its peer has offered something; changed under mu or the rail's lock, to NULL under mu alone */
    _Atomic int served; /* a piece for a peer, lately */
    _Atomic uint64_t for_peers, by_peers; /* bytes; written under mu */
    lc_lane own[LC_COPIERS]; /* likewise ours, while we copy for peers */
    _Atomic uint32_t lanes; /* bits: those that nobody has */
    lc_job *_Atomic done;
} lc_pool;

/* ---- pool.c ---- */

void lc_pool_open(lc_pool *pool, uint32_t threads, const lc_nodes *nodes);
void lc_pool_close(lc_rail *rail);
void lc_pool_add(lc_rail *rail, lc_job *job);
/* What one copy can do: of the queue, or what a peer has not begun. NULL: there is nothing. With mu. */
lc_job *lc_pool_take(lc_rail *rail);
/* Copies that, but for what is lent, and hands it on. Without mu. */
void lc_pool_copy(lc_rail *rail, lc_job *list, uint32_t lane);
/* Copies what one call takes, ours or a peer's, on a lane that is lent; 0 when there was nothing to do, or no lane. Without the rail's lock. */
int lc_pool_help(lc_rail *rail);
/* Takes what is finished, in no order. */
lc_job *lc_pool_done(lc_rail *rail);
/* Ends the endpoint's jobs: those that wait with ECANCELED. With the rail locked; it is not while a peer copies, which is waited for a second
 * at most: -ETIMEDOUT, and its job has ended with ECANCELED all the same. */
int lc_pool_drain(lc_rail *rail, lc_ep *ep);

/* ---- copier.c ---- */

/* One thread more, with mu. */
void lc_copier_start(lc_rail *rail);
/* Which of the pool's nodes has the memory; -1: none, as what nobody has touched yet. */
int lc_node_of(const lc_pool *pool, uint64_t addr);

/* ---- loan.c: with pool.mu, but for lc_copy_part and lc_loan_over ---- */

/* Whether the application here and the peer both poll, and the peer takes offers. */
int lc_may_lend(const lc_rail *rail, const lc_ep *ep);
/* Offers the job's bytes from `kept` on to its peer; 0: it takes none now. */
int lc_lend(lc_rail *rail, lc_job *job, uint64_t kept);
/* Copies some of the job's bytes; 0 or an errno. */
int lc_copy_part(const lc_job *job, uint32_t lane, uint64_t from, uint64_t to);
/* Puts a job of which nothing but the loan is left among those that wait. */
void lc_loan_wait(lc_pool *pool, lc_job *job);
/* Takes what peers have copied. */
void lc_loan_reap(lc_pool *pool);
/* A job of which the bytes from `kept` on are the caller's to copy: the peer had not begun, or could not. It counts in ep->jobs. NULL: there is none. */
lc_job *lc_loan_back(lc_pool *pool);
/* Whether one of these would find something. */
int lc_loan_over(lc_pool *pool);
/* Ends the endpoint's, with ECANCELED where the peer has not copied; those that it is at only with `all`. How many these are. */
uint32_t lc_loan_cancel(lc_pool *pool, lc_ep *ep, int all);

/* ---- what all of these use ---- */

/* Needs no lock. */
static inline void lc_pool_put_done(lc_pool *pool, lc_job *job)
{
    job->next = atomic_load_explicit(&pool->done, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&pool->done, &job->next, job))
        ;
}

/* Lends a lane; 0: there is none. */
static inline int lc_lane_take(lc_pool *pool, uint32_t *lane)
{
    uint32_t free = atomic_load_explicit(&pool->lanes, memory_order_relaxed);
    do {
        if (!free)
            return 0;
        *lane = (uint32_t)__builtin_ctz(free);
    } while (!atomic_compare_exchange_weak(&pool->lanes, &free, free & ~(1u << *lane)));
    return 1;
}

static inline void lc_lane_give(lc_pool *pool, uint32_t lane) { atomic_fetch_or(&pool->lanes, 1u << lane); }

#endif
