/* The threads that copy: polling threads, and pool threads near the memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "world.h"

/* Threads that find the rail locked copy queued jobs in free epochs. There are more threads than epochs. Poll itself
 * copies nothing. */
static void *lend(void *arg)
{
    end *e = arg;
    while (atomic_load(&e->rail->pool.queued))
        cma_ops.assist(&e->rail->base);
    return NULL;
}

void poller_epochs(void)
{
    enum { PIECES = 64, LEN = MEM / PIECES, THREADS = CMA_COPIERS };
    static const uint32_t threads[] = {0, 3, CMA_THREADS};
    for (uint32_t round = 0; round < 3; round++) {
        pair p = split(threads[round], wait_target);
        end *me = &p.me;
        pthread_t t[THREADS];
        memset(me->mem, (int)round + 1, MEM);
        CHECK(rma(me, GR_WRITE, &p.peer, 0, 0, 1) == 0); /* the peer has connected */
        gr_rail_lock(&me->rail->base);
        for (uint64_t i = 0; i < PIECES; i++) {
            gr_seg seg = {.laddr = (uint64_t)(uintptr_t)me->mem + i * LEN, .raddr = p.peer.mem + i * LEN, .len = LEN, .rkey = p.peer.key};
            CHECK(cma_ops.rma(&me->rail->base, me->ep, GR_WRITE, 1, &seg, &ctx[i]) == 0);
        }
        if (!threads[round]) {
            gr_comp c;
            /* the post has copied the first one */
            CHECK(cma_ops.poll(&me->rail->base, &c, 1) == 1 && atomic_load(&me->rail->pool.queued) == PIECES - 1);
            me->done++;
        }
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&t[i], NULL, lend, me) == 0);
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_join(t[i], NULL) == 0);
        gr_rail_unlock(&me->rail->base);
        me->err = 0;
        wait_done(me, PIECES + 1);
        CHECK(me->err == 0);
        memset(me->mem, 0, MEM);
        CHECK(rma(me, GR_READ, &p.peer, 0, 0, MEM) == 0);
        for (int i = 0; i < MEM; i++)
            CHECK(me->mem[i] == round + 1);
        pipe_put(&p, 'q');
        finish(&p);
    }
}

/* Posts a piece of 512 KiB, which the post does not copy itself. */
static void post_half(pair *p, gr_ctx *c)
{
    cma_rail *rail = p->me.rail;
    gr_seg seg = {.laddr = (uint64_t)(uintptr_t)p->me.mem, .raddr = p->peer.mem, .len = 512 << 10, .rkey = p->peer.key};
    gr_rail_lock(&rail->base);
    CHECK(cma_ops.rma(&rail->base, p->me.ep, GR_WRITE, 1, &seg, c) == 0);
    gr_rail_unlock(&rail->base);
}

/* While the application polls, 1 MiB starts and wakes no pool thread. For more than that the next poll does. Without
 * polling the post does. */
void no_wakeups(void)
{
    pair p = split(1, wait_target);
    cma_rail *rail = p.me.rail;
    int n = 0;
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 1) == 0); /* the peer has connected */
    p.me.done = 0;
    atomic_store(&rail->base.app_polls, 1);
    for (int round = 0; round < 20; round++) {
        post_half(&p, &ctx[n++ % 64]);
        post_half(&p, &ctx[n++ % 64]);
        CHECK(rail->pool.copiers.started == 0 && atomic_load(&rail->pool.queued) == 2);
        while (cma_ops.assist(&rail->base))
            ;
    }
    CHECK(rail->pool.bytes == 0);
    for (int i = 0; i < 3; i++)
        post_half(&p, &ctx[n++ % 64]);
    CHECK(rail->pool.copiers.started == 0);
    cma_ops.assist(&rail->base);
    CHECK(rail->pool.copiers.started == 1);
    wait_done(&p.me, n);
    atomic_store(&rail->base.app_polls, 0);
    post_half(&p, &ctx[n++ % 64]);
    for (uint64_t stop = limit(); p.me.done < n;) { /* only the pool's thread copies */
        gr_comp c;
        gr_rail_lock(&rail->base);
        p.me.done += cma_ops.poll(&rail->base, &c, 1);
        gr_rail_unlock(&rail->base);
        CHECK(cma_now() < stop);
    }
    pipe_put(&p, 'q');
    finish(&p);
}

/* Whether one of our epochs has copied to the peer. */
static int turns_of(const end *e, int epoch) { return atomic_load(&e->ep->peer.shm->epoch[epoch].turn) > 1; }

/* Copies until the pool's only thread has copied, too, and checks the processors on which that thread may run. */
static void pool_runs_on(pair *p, const cpu_set_t *want)
{
    cpu_set_t got;
    cma_pool *pool = &p->me.rail->pool;
    for (uint64_t stop = limit();;) {
        CHECK(cma_now() < stop);
        CHECK(rma(&p->me, GR_WRITE, &p->peer, 0, 0, MEM) == 0);
        if (!turns_of(&p->me, 1))
            continue;
        CHECK(pthread_getaffinity_np(pool->copiers.thread[0], sizeof(got), &got) == 0);
        CHECK(CPU_EQUAL(&got, want));
        return;
    }
}

/* Pool threads run near the memory if nodes are given. Otherwise they run on all processors of the process. */
void near(void)
{
    cpu_set_t all, one;
    int status = -1, last = -1;
    CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
    for (int cpu = 0; cpu < CMA_CPUS; cpu++)
        if (CPU_ISSET(cpu, &all))
            last = cpu;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    for (int told = 0; told < 2; told++) {
        pair p = split(1, wait_target);
        void *page = memset(p.me.mem, 1, MEM);
        pool_runs_on(&p, told ? &one : &all);
        pipe_put(&p, 'q');
        if (syscall(SYS_move_pages, 0, 1UL, &page, NULL, &status, 0) != 0 || status < 0) {
            fprintf(stderr, "move_pages does not report the node of the memory: skipping the rest\n");
            told = 2;
        }
        finish(&p);
        nodes.n = 2;
        nodes.node[0].id = status + 1;
        memcpy(nodes.node[0].cpus, &all, sizeof(all));
        nodes.node[1].id = status;
        memcpy(nodes.node[1].cpus, &one, sizeof(one));
    }
}
