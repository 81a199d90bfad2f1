/* Pieces that we copy for peers. Peers may offer anything. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

static _Atomic int stop_polls;
static void *polls(void *arg)
{
    while (!atomic_load(&stop_polls))
        poll_end(arg);
    return NULL;
}

static void offers(pair *p)
{
    int err = 0;
    memset(p->me.mem, 0xee, MEM);
    atomic_store(&p->me.rail->base.app_polls, 1);
    for (uint64_t stop = limit(); !err; err = rma(&p->me, GR_WRITE, &p->peer, 0, 0, MEM / 4))
        CHECK(cma_now() < stop);
    CHECK(err == EACCES || err == ECONNRESET);
    pipe_put(p, 'd');
}

static uint64_t turns(cma_rail *rail)
{
    uint64_t n = 0;
    for (int i = 0; i < CMA_COPIERS; i++)
        n += atomic_load(&rail->pool.own[i].turn);
    return n;
}

/* Closing a region or an endpoint while we copy for a peer: nothing lands in the memory afterwards. */
void assist_ends(void)
{
    for (int i = 0, n = times(20); i < n; i++) {
        pair p = split(0, offers);
        pthread_t t;
        atomic_store(&stop_polls, 0);
        CHECK(pthread_create(&t, NULL, polls, &p.me) == 0);
        for (uint64_t stop = limit(); turns(p.me.rail) < 20;)
            CHECK(cma_now() < stop);
        if (i % 2)
            CHECK(close_ep(&p.me) == 0);
        else
            CHECK(close_region(p.me.rail, p.me.key) == 0);
        memset(p.me.mem, 0, MEM);
        if (i % 2)
            p.me.ep = NULL;
        else
            p.me.key = 0;
        CHECK(pipe_get(&p) == 'd');
        CHECK(p.me.mem[0] == 0 && memcmp(p.me.mem, p.me.mem + 1, MEM - 1) == 0);
        atomic_store(&stop_polls, 1);
        CHECK(pthread_join(t, NULL) == 0);
        finish(&p);
    }
}

/* Offers invalid pieces, and pieces of memory that it may not access. */
static void hostile(pair *p)
{
    static const struct {
        uint32_t n;
        uint64_t key, at, len; /* key, at: added to the valid ones */
        int want;
    } bad[] = {
        {0, 0, 0, 1, -EPROTO},
        {GR_MAX_IOV + 1, 0, 0, 1, -EPROTO},
        {1, 0, 0, CMA_UNSPLIT + 1, -EMSGSIZE},
        {8, 0, 0, CMA_UNSPLIT / 4, -EMSGSIZE},
        {8, 0, 0, UINT64_MAX / 2, -EMSGSIZE},
        {1, 1, 0, 64, -EACCES},
        {1, UINT64_C(2) << 32, 0, 64, -EACCES},
        {1, CMA_REGIONS, 0, 64, -EACCES},
        {1, 0, MEM - 63, 64, -ERANGE},
        {1, 0, UINT64_MAX - 7, 64, -ERANGE},
        {8, 0, MEM - 64, 64, CMA_COPIED},
    };
    for (uint64_t stop = limit(); !p->me.ep->peer.shm || !atomic_load(&p->me.ep->peer.shm->assists); poll_end(&p->me))
        CHECK(cma_now() < stop);
    cma_shm *out = p->me.ep->peer.shm;
    memset(p->me.mem, 0xee, MEM);
    atomic_store(&out->offered, ~((1u << CMA_OFFERS) - 1)); /* bits beyond the offers */
    for (size_t i = 0; i < 2 * sizeof(bad) / sizeof(bad[0]); i++) {
        cma_offer *o = &out->offer[i % CMA_OFFERS];
        size_t k = i / 2;
        o->n = bad[k].n;
        o->write = i % 2;
        for (uint32_t s = 0; s < GR_MAX_IOV; s++) {
            o->piece[s].key = p->peer.key + bad[k].key;
            o->piece[s].here = p->peer.mem + bad[k].at;
            o->piece[s].there = (uint64_t)(uintptr_t)p->me.mem;
            o->piece[s].len = bad[k].len;
        }
        atomic_store(&o->ended, CMA_UNDER_WAY);
        atomic_fetch_or(&out->offered, 1u << (i % CMA_OFFERS));
        for (uint64_t stop = limit(); atomic_load(&o->ended) == CMA_UNDER_WAY;)
            CHECK(cma_now() < stop);
        CHECK(atomic_load(&o->ended) == bad[k].want);
    }
    atomic_store(&p->me.ep->shm->closed, 1); /* a valid offer of a closed endpoint */
    atomic_store(&out->offer[0].ended, CMA_UNDER_WAY);
    atomic_fetch_or(&out->offered, 1);
    for (uint64_t stop = limit(); atomic_load(&out->offer[0].ended) == CMA_UNDER_WAY;)
        CHECK(cma_now() < stop);
    CHECK(atomic_load(&out->offer[0].ended) == -ECONNRESET);
    pipe_put(p, 'd');
    CHECK(pipe_get(p) == 'q');
}

void hostile_offers(void)
{
    pair p = split(0, hostile);
    poll_until(&p, 'd');
    CHECK(p.me.mem[0] == 0 && memcmp(p.me.mem, p.me.mem + 1, MEM - 65) == 0); /* the last 64 bytes were written by a valid offer */
    pipe_put(&p, 'q');
    finish(&p);
}

/* Offers a valid READ of the target's region. */
static void offer_read(pair *p)
{
    for (uint64_t stop = limit(); !p->me.ep->peer.shm; poll_end(&p->me))
        CHECK(cma_now() < stop);
    cma_offer *o = &p->me.ep->peer.shm->offer[0];
    o->n = 1;
    o->write = 0;
    o->piece[0].key = p->peer.key;
    o->piece[0].here = p->peer.mem;
    o->piece[0].there = (uint64_t)(uintptr_t)p->me.mem;
    o->piece[0].len = 4096;
    atomic_fetch_or(&p->me.ep->peer.shm->offered, 1);
}

static void of_another_user(pair *p)
{
    offer_read(p);
    pipe_put(p, 'o');
    CHECK(pipe_get(p) == 'q');
    CHECK(p->me.mem[0] == 0 && !atomic_load(&p->me.ep->peer.shm->assists));
}

/* A peer that may have fewer rights than we gets no assistance. */
void other_users_offer(void)
{
    pair p = split(0, of_another_user);
    p.me.ep->peer.same_user = 0;
    CHECK(pipe_get(&p) == 'o');
    for (uint64_t stop = limit(); !atomic_load(&p.me.rail->assist.assists); poll_end(&p.me))
        CHECK(cma_now() < stop);
    for (int i = 0; i < 1000; i++)
        poll_end(&p.me);
    CHECK(atomic_load(&p.me.ep->shm->offered) == 1);
    pipe_put(&p, 'q');
    finish(&p);
}

static void becomes_another(pair *p)
{
    offer_read(p);
    CHECK(pipe_get(p) == 'e'); /* our memory is open */
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    execl("/bin/cat", "cat", NULL);
    CHECK(0);
}

/* A peer that calls exec leaves offers behind, for memory that no longer exists. They fail. */
void another_programs_offer(void)
{
    char path[64], name[32] = "";
    int in[2];
    CHECK(pipe(in) == 0 && dup2(in[0], 0) == 0); /* cat waits for input */
    pair p = split(0, becomes_another);
    memset(p.me.mem, 8, MEM);
    pipe_put(&p, 'e');
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)p.child);
    for (uint64_t stop = limit(); strcmp(name, "cat\n") != 0;) {
        CHECK(cma_now() < stop);
        FILE *f = fopen(path, "r");
        CHECK(f && fgets(name, sizeof(name), f));
        fclose(f);
    }
    CHECK(p.me.ep->peer.same_user && poll(&(struct pollfd){.fd = p.me.ep->peer.pidfd, .events = POLLIN}, 1, 0) == 0);
    for (uint64_t stop = limit(); cma_alive(p.me.ep);) /* the process lives, but the program has ended */
        CHECK(cma_now() < stop);
    for (uint64_t stop = limit(); atomic_load(&p.me.ep->shm->offer[0].ended) == CMA_UNDER_WAY; poll_end(&p.me))
        CHECK(cma_now() < stop);
    CHECK(atomic_load(&p.me.ep->shm->offer[0].ended) == -ESRCH);
    kill(p.child, SIGKILL);
    CHECK(waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}
