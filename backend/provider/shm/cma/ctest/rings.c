/* Copies through rings, between processes that may not access each other's memory. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

void ring_copies(void)
{
    rings = 1;
    copies(0);
}

void ring_small(void)
{
    rings = 1;
    ring_size = CMA_CHUNKS * 4096;
    copies(1);
}

void ring_holes(void)
{
    rings = 1;
    holes();
}

void ring_region_closed(void)
{
    rings = 1;
    close_during_writes(0);
}

void ring_endpoint_closed(void)
{
    rings = 1;
    close_during_writes(1);
}

/* A peer that is killed or stopped in the middle of its WRITEs delays no deregistration, because it touches no memory of ours. */
static void signal_ring_writer(int sig)
{
    rings = 1;
    pair p = split(0, write_for_ever);
    poll_until(&p, 'w');
    p.me.mem[MEM - 1] = 1;
    for (uint64_t stop = limit(); p.me.mem[MEM - 1]; poll_end(&p.me)) /* the writer is busy */
        CHECK(cma_now() < stop);
    CHECK(kill(p.child, sig) == 0);
    int status;
    CHECK(waitpid(p.child, &status, WUNTRACED) == p.child);
    CHECK(close_region(p.me.rail, p.me.key) == 0);
    memset(p.me.mem, 0xaa, MEM);
    for (int i = 0; i < 100; i++)
        poll_end(&p.me);
    CHECK(p.me.mem[0] == 0xaa && memcmp(p.me.mem, p.me.mem + 1, MEM - 1) == 0);
    p.me.key = 0;
    CHECK(close_ep(&p.me) == 0);
    p.me.ep = NULL;
    close_end(&p.me);
    kill(p.child, SIGKILL);
}

void ring_writer_killed(void) { signal_ring_writer(SIGKILL); }
void ring_writer_stopped(void) { signal_ring_writer(SIGSTOP); }

static void idle(pair *p)
{
    pipe_put(p, 'i');
    pipe_get(p);
}

/* More than a ring holds, posted to a peer that does not serve. */
static pair stuck(void)
{
    rings = 1;
    pair p = split(0, idle);
    CHECK(pipe_get(&p) == 'i');
    for (int i = 0; i < 4; i++)
        CHECK(post_end(&p.me, i % 2 ? GR_READ : GR_WRITE, &p.peer, 0, 0, 1 << 20, &ctx[i]) == 0);
    for (int i = 0; i < 100; i++)
        poll_end(&p.me);
    CHECK(p.me.done == 0 && p.me.ep->ring.busy == (1 << CMA_CHUNKS) - 1);
    return p;
}

/* A stopped target keeps WRITEs waiting. Closing the endpoint ends them at once. */
void ring_target_stopped(void)
{
    pair p = stuck();
    CHECK(kill(p.child, SIGSTOP) == 0 && waitpid(p.child, NULL, WUNTRACED) == p.child);
    CHECK(close_ep(&p.me) == 0);
    p.me.ep = NULL;
    wait_done(&p.me, 4);
    CHECK(p.me.err == ECANCELED);
    close_end(&p.me);
    kill(p.child, SIGKILL);
}

void ring_target_killed(void)
{
    pair p = stuck();
    CHECK(kill(p.child, SIGKILL) == 0 && waitpid(p.child, NULL, 0) == p.child);
    wait_done(&p.me, 4);
    CHECK(p.me.err == ECONNRESET);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 4096) == ECONNRESET);
    close_end(&p.me);
}

/* Without a pidfd the closed socket tells that the peer is gone, to a thread that polls. */
void ring_unseen(void)
{
    pair p = stuck();
    close(p.me.ep->peer.pidfd);
    p.me.ep->peer.pidfd = -1;
    for (int i = 0; i < 100; i++)
        poll_end(&p.me);
    CHECK(p.me.done == 0);
    CHECK(kill(p.child, SIGKILL) == 0 && waitpid(p.child, NULL, 0) == p.child);
    wait_done(&p.me, 4);
    CHECK(p.me.err == ECONNRESET);
    close_end(&p.me);
}

/* Polls, and sleeps when there is nothing to do: only a doorbell wakes it. */
static void sleep_or_poll(const end *e)
{
    struct pollfd f = {.fd = e->rail->base.wait_fd, .events = POLLIN};
    if (!arm_end(e))
        CHECK(poll(&f, 1, LIMIT_S * 1000) == 1);
}

enum { NAPS = 100 };

static void naps(pair *p)
{
    char last = 0;
    p->me.mem[MEM - 1] = 0;
    pipe_put(p, 's');
    while (last < NAPS) {
        sleep_or_poll(&p->me);
        poll_end(&p->me);
        last = (char)((volatile uint8_t *)p->me.mem)[MEM - 1];
    }
    poll_until(p, 'q'); /* the answer of a READ */
}

/* Both sides sleep until the other side rings. */
void ring_asleep(void)
{
    rings = 1;
    pair p = split(0, naps);
    CHECK(pipe_get(&p) == 's');
    for (int i = 1; i <= NAPS; i++) {
        p.me.mem[MEM - 1] = (uint8_t)i;
        CHECK(post_end(&p.me, GR_WRITE, &p.peer, 0, 0, 600 << 10, &ctx[0]) == 0);
        CHECK(post_end(&p.me, GR_WRITE, &p.peer, MEM - 1, MEM - 1, 1, &ctx[1]) == 0);
        while (p.me.done < 2 * i) {
            sleep_or_poll(&p.me);
            poll_end(&p.me);
        }
        CHECK(p.me.err == 0);
    }
    pipe_put(&p, 'q');
    finish(&p);
}

static void claims_to_spin(pair *p)
{
    memset(p->me.mem, 7, MEM);
    atomic_store(&p->me.ep->shm->assists, CMA_SPINS);
    idle(p);
    CHECK(p->me.mem[0] == 9 && p->me.mem[8191] == 9 && p->me.mem[8192] == 7);
}

/* A small request to a peer whose memory we may access is taken back if the peer does not begin: it may have stopped. */
void ring_taken_back(void)
{
    pair p = split(0, claims_to_spin);
    CHECK(pipe_get(&p) == 'i');
    atomic_store(&p.me.rail->base.app_polls, 1);
    memset(p.me.mem, 9, MEM);
    CHECK(post_end(&p.me, GR_WRITE, &p.peer, 0, 0, 8192, &ctx[0]) == 0);
    CHECK(p.me.ep->ring.busy && atomic_load(&p.me.ep->peer.shm->requested));
    wait_done(&p.me, 1);
    CHECK(p.me.err == 0 && !p.me.ep->ring.busy && !atomic_load(&p.me.ep->peer.shm->requested));
    CHECK(rma(&p.me, GR_READ, &p.peer, 100, 8192, 100) == 0);
    CHECK(p.me.mem[100] == 7 && p.me.mem[199] == 7 && p.me.mem[200] == 9);
    pipe_put(&p, 'q');
    finish(&p);
}

static _Atomic int over;

static void *poller(void *arg)
{
    end *e = arg;
    while (!atomic_load(&over))
        cma_ops.assist(&e->rail->base);
    return NULL;
}

/* Several threads copy for one ring, on both sides. */
void ring_threads(void)
{
    enum { EACH = 3 };
    rings = 1;
    end a = open_end(0), b = open_end(0);
    pthread_t t[2 * EACH];
    join(&a, &b);
    for (int i = 0; i < 2 * EACH; i++)
        CHECK(pthread_create(&t[i], NULL, poller, i % 2 ? &a : &b) == 0);
    region_info to = own_region(&b);
    for (int round = 1; round <= 20; round++) {
        memset(a.mem, round, MEM / 2);
        for (int i = 0; i < 4; i++) {
            CHECK(post_end(&a, GR_WRITE, &to, (uint64_t)i * (MEM / 8), (uint64_t)i * (MEM / 8), MEM / 8, &ctx[i]) == 0);
            poll_end(&b);
        }
        for (uint64_t stop = limit(); a.done < 8 * round - 4; poll_end(&a), poll_end(&b))
            CHECK(cma_now() < stop);
        for (int i = 0; i < 4; i++)
            CHECK(post_end(&a, GR_READ, &to, MEM / 2 + (uint64_t)i * (MEM / 8), (uint64_t)i * (MEM / 8), MEM / 8, &ctx[i]) == 0);
        for (uint64_t stop = limit(); a.done < 8 * round; poll_end(&a), poll_end(&b))
            CHECK(cma_now() < stop);
        CHECK(a.err == 0 && memcmp(a.mem, a.mem + MEM / 2, MEM / 2) == 0);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < 2 * EACH; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    close_end(&a);
    close_end(&b);
}
