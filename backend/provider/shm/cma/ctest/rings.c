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
    gr_rail_lock(&e->rail->base);
    int again = cma_ops.arm(&e->rail->base);
    gr_rail_unlock(&e->rail->base);
    struct pollfd f = {.fd = e->rail->base.wait_fd, .events = POLLIN};
    if (!again)
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

static _Atomic int over;

static void *poller(void *arg)
{
    end *e = arg;
    while (!atomic_load(&over))
        cma_unlocked.assist(&e->rail->base);
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

static int answer(end *b, const cma_chunk *c)
{
    for (uint64_t stop = limit(); !atomic_load(&c->ended); poll_end(b))
        CHECK(cma_now() < stop);
    return atomic_load(&c->ended);
}

/* Requests that make no sense are refused, and touch nothing. */
void hostile_chunks(void)
{
    rings = 1;
    end a = open_end(0), b = open_end(0);
    join(&a, &b);
    uint64_t base = (uint64_t)(uintptr_t)b.mem;
    const struct {
        uint32_t write, n;
        uint64_t key, addr, len;
        int want;
    } bad[] = {
        {1, 0, b.key, base, 64, EPROTO},
        {1, GR_MAX_IOV + 1, b.key, base, 64, EPROTO},
        {0, UINT32_MAX, b.key, base, 64, EPROTO},
        {1, 1, b.key, base, RING / CMA_CHUNKS + 1, EMSGSIZE},
        {0, 2, b.key, base, UINT64_MAX / 2 + 1, EMSGSIZE},
        {1, 1, b.key + 1, base, 64, EACCES},
        {1, 1, UINT32_MAX, base, 64, EACCES},
        {1, 1, b.key, base - 1, 64, ERANGE},
        {0, 1, b.key, base + MEM - 63, 64, ERANGE},
        {7, 2, b.key, base, 64, 0},
    };
    cma_shm *out = a.ep->peer.shm;
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cma_chunk *c = &out->chunk[i % CMA_CHUNKS];
        atomic_store(&c->ended, 0);
        c->write = bad[i].write;
        c->n = bad[i].n;
        for (int k = 0; k < GR_MAX_IOV; k++) {
            c->piece[k].key = bad[i].key;
            c->piece[k].addr = bad[i].addr;
            c->piece[k].len = bad[i].len;
        }
        atomic_fetch_or(&out->requested, 1u << (i % CMA_CHUNKS));
        CHECK(answer(&b, c) == (bad[i].want ? -bad[i].want : CMA_COPIED));
    }
    atomic_store(&out->requested, UINT32_MAX << CMA_CHUNKS); /* bits without a chunk */
    for (int i = 0; i < 100; i++)
        poll_end(&b);
    region_info to = own_region(&b);
    CHECK(post_end(&a, GR_WRITE, &to, 0, 0, 64, &ctx[0]) == 0);
    for (uint64_t stop = limit(); !a.done; poll_end(&a), poll_end(&b))
        CHECK(cma_now() < stop);
    CHECK(a.err == 0);
    close_end(&a);
    close_end(&b);
}

/* Answers that make no sense end the operation with an error. */
void hostile_answers(void)
{
    const int32_t bad[] = {INT32_MIN, -4096, 2, INT32_MAX, -EFAULT};
    rings = 1;
    end a = open_end(0), b = open_end(0);
    join(&a, &b);
    region_info to = own_region(&b);
    for (int i = 0; i < 5; i++) {
        CHECK(post_end(&a, i % 2 ? GR_READ : GR_WRITE, &to, 0, 0, 64, &ctx[0]) == 0);
        atomic_store(&b.ep->shm->requested, 0);
        for (uint32_t k = 0; k < CMA_CHUNKS; k++)
            if (a.ep->ring.busy & 1u << k)
                atomic_store(&b.ep->shm->chunk[k].ended, bad[i]);
        wait_done(&a, i + 1);
        CHECK(a.err == (bad[i] == -EFAULT ? EFAULT : EPROTO));
    }
    close_end(&a);
    close_end(&b);
}
