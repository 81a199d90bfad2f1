/* The pool's threads copy, so that a post returns at once and several cores share one transfer, near its memory. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cma.h"
#include "gr_thread.h"

typedef struct worker {
    cma_rail *rail;
    uint32_t epoch;
    int node; /* NUMA node that the thread is bound to, as index in the pool's nodes; -1: none */
} worker;

int cma_node_of(const cma_pool *pool, uint64_t addr)
{
    int status = -1;
    if (pool->nodes.n == 0)
        return -1;
    void *page = (void *)(uintptr_t)(addr & ~(uint64_t)(sysconf(_SC_PAGESIZE) - 1));
    if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0) != 0)
        return -1;
    for (uint32_t i = 0; i < pool->nodes.n; i++)
        if (pool->nodes.node[i].id == status)
            return (int)i;
    return -1;
}

/* Moves the calling thread to the processors of a node. The thread stays where it is if the system refuses. */
static void go_near(worker *me, int node)
{
    cpu_set_t set;
    if (node < 0 || node == me->node)
        return;
    _Static_assert(sizeof(set) == CMA_CPUS / 8, "as many bits");
    memcpy(&set, me->rail->pool.nodes.node[node].cpus, sizeof(set)); /* ours */
    (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
    me->node = node;
}

static void *work(void *arg)
{
    worker me = *(worker *)arg;
    cma_pool *pool = &me.rail->pool;
    gr_signal_stack signals;
    free(arg);
    gr_thread_begin(&signals);
    pthread_setname_np(pthread_self(), "gorail-copy");
    pthread_mutex_lock(&pool->mu);
    while (!pool->stop) {
        cma_job *list = cma_pool_take(me.rail);
        if (!list) {
            pool->copiers.waiting++;
            pthread_cond_wait(&pool->work, &pool->mu);
            pool->copiers.waiting--;
            continue;
        }
        pthread_mutex_unlock(&pool->mu);
        go_near(&me, list->node);
        cma_pool_copy(me.rail, list, me.epoch);
        pthread_mutex_lock(&pool->mu);
    }
    pthread_mutex_unlock(&pool->mu);
    gr_thread_end();
    return NULL;
}

/* If the thread cannot be made, polling threads copy in its place. */
void cma_copier_start(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    worker *w = GR_ALLOC(cma_worker, malloc(sizeof(*w)));
    if (!w)
        return;
    *w = (worker){rail, pool->copiers.started + 1, -1};
    if (GR_CALL(cma_thread, gr_thread_create(&pool->copiers.thread[pool->copiers.started], work, w)) == 0)
        pool->copiers.started++;
    else
        free(w);
}
