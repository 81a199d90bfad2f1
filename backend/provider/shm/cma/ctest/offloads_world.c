#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "offloads.h"

void begin(pair *p, int op, uint64_t at, uint64_t len, gr_ctx *c) { CHECK(post_end(&p->me, op, &p->peer, at, at, len, c) == 0); }

cma_job *take_half(cma_rail *rail)
{
    pthread_mutex_lock(&rail->pool.mu);
    cma_job *job = cma_pool_take(rail);
    pthread_mutex_unlock(&rail->pool.mu);
    CHECK(job && job->offload);
    return job;
}

void wait_assists(pair *p)
{
    atomic_store(&p->me.rail->base.app_polls, 1);
    CHECK(rma(&p->me, GR_WRITE, &p->peer, 0, 0, 1) == 0);
    for (uint64_t stop = limit(); !atomic_load(&p->me.ep->peer.shm->assists); poll_end(&p->me))
        CHECK(cma_now() < stop);
    p->me.done = 0;
}

int copied_by_peer(const pair *p)
{
    int n = 0;
    for (int i = 0; i < CMA_OFFERS; i++)
        n += atomic_load(&p->me.ep->peer.shm->offer[i].tid) != 0;
    return n;
}

void forget_offers(pair *p)
{
    for (int i = 0; i < CMA_OFFERS; i++)
        atomic_store(&p->me.ep->peer.shm->offer[i].tid, 0);
}

void until_taken(pair *p)
{
    cma_shm *out = p->me.ep->peer.shm;
    for (uint64_t stop = limit(); !copied_by_peer(p);) {
        CHECK(cma_now() < stop);
        int before = p->me.done;
        begin(p, GR_WRITE, 0, MEM / 4, &ctx[0]);
        gr_rail_lock(&p->me.rail->base); /* only half of the post */
        cma_job *job = take_half(p->me.rail);
        for (uint64_t wait = cma_now() + 100000000; atomic_load(&out->offered) && cma_now() < wait;)
            ;
        cma_pool_copy(p->me.rail, job, CMA_COPIERS - 1);
        gr_rail_unlock(&p->me.rail->base);
        for (uint64_t wait = cma_now() + 100000000; !atomic_load(&out->offered) && !copied_by_peer(p) && cma_now() < wait;)
            ;
        if (!copied_by_peer(p))
            wait_done(&p->me, before + 1);
    }
}

uint32_t await_offer(pair *p)
{
    cma_shm *shm = p->me.ep->shm;
    for (uint64_t stop = limit();; poll_end(&p->me)) {
        CHECK(cma_now() < stop);
        uint32_t bits = atomic_load(&shm->offered);
        for (uint32_t i = 0; i < CMA_OFFERS; i++)
            if ((bits & 1u << i) && (atomic_fetch_and(&shm->offered, ~(1u << i)) & 1u << i))
                return i;
    }
}

void claims_to_assist(pair *p)
{
    for (uint64_t stop = limit(); !p->me.ep->peer.shm; poll_end(&p->me))
        CHECK(cma_now() < stop);
    p->me.ep->peer.same_user = 0; /* so that our own polls serve none of its offers */
    atomic_store(&p->me.ep->shm->assists, 1);
}

void answering(pair *p)
{
    claims_to_assist(p);
    pipe_put(p, 'c');
    for (char c; (c = pipe_get(p)) != 'q';) {
        uint32_t i = await_offer(p);
        atomic_store(&p->me.ep->shm->offer[i].tid, (int32_t)syscall(SYS_gettid));
        if (c == 's')
            raise(SIGSTOP);
        if (c == 'k')
            raise(SIGKILL);
        if (c == 'w') {
            pipe_put(p, 't');
            CHECK(pipe_get(p) == 'g');
        }
        atomic_store(&p->me.ep->shm->offer[i].ended, c == 'p' ? -EPERM : -EACCES);
    }
}
