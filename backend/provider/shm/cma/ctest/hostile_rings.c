/* Requests and answers that make no sense, over a ring within one process. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

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
    uint64_t base = (uint64_t)(uintptr_t)b.mem, gpu, readable, writable;
    gr_gpu_share share = {0};
    gpu = open_region(&b, base, MEM, &share);
    rights = CMA_MAY_READ;
    readable = open_region(&b, base, MEM, NULL);
    rights = CMA_MAY_WRITE;
    writable = open_region(&b, base, MEM, NULL);
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
        {0, 1, gpu, base, 64, EACCES}, /* no processor copies memory of a GPU */
        {1, 1, readable, base, 64, EACCES},
        {0, 1, readable, base, 64, 0},
        {0, 1, writable, base, 64, EACCES},
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
    gr_rail_lock(&b.rail->base);
    CHECK(cma_ops.arm(&b.rail->base) == 0);
    gr_rail_unlock(&b.rail->base);
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

static const uint8_t *hole(end *e)
{
    uint8_t *at = e->mem + (1 << 20);
    CHECK(munmap(at, 4096) == 0);
    return at;
}

static int copy_from(const uint8_t *from)
{
    static uint8_t to[64];
    return gr_guard_move(1, &(gr_span){to, from, sizeof(to)});
}

static void *blocks_signals(void *from)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    CHECK(copy_from(from) == EFAULT);
    return NULL;
}

static void *looks(void *from)
{
    CHECK(copy_from(from) == EFAULT);
    return NULL;
}

/* Missing memory is an error also in a thread that blocks the signal, and without a handler. */
void guard_replaced(void)
{
    end e = open_end(0);
    pthread_t t;
    void *from = (void *)(uintptr_t)hole(&e);
    CHECK(copy_from(from) == EFAULT && copy_from(from) == EFAULT);
    CHECK(pthread_create(&t, NULL, blocks_signals, from) == 0 && pthread_join(t, NULL) == 0);
    signal(SIGSEGV, SIG_DFL);
    CHECK(pthread_create(&t, NULL, looks, from) == 0 && pthread_join(t, NULL) == 0);
    close_end(&e);
}

/* A request whose poster has closed its endpoint is not served: its transfer has ended. */
void ring_given_up(void)
{
    rings = 1;
    end a = open_end(0), b = open_end(0);
    join(&a, &b);
    region_info to = own_region(&b);
    a.mem[0] = 1;
    CHECK(post_end(&a, GR_WRITE, &to, 0, 0, 64, &ctx[0]) == 0);
    uint32_t posted = atomic_load(&b.ep->shm->requested);
    CHECK(posted);
    CHECK(close_ep(&a) == 0);
    a.ep = NULL;
    CHECK(!atomic_load(&b.ep->shm->requested));
    atomic_store(&b.ep->shm->requested, posted); /* as if it came later */
    for (int i = 0; i < 100; i++)
        poll_end(&b);
    CHECK(b.mem[0] == 0);
    close_end(&b);
    close_end(&a);
}

static int open_socket(void)
{
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    return s[1];
}

/* A process that serves a ring at each poll makes its own direct copies as well. */
void ring_beside_pool(void)
{
    end a = open_end(0), b = open_end(0), c = open_end(0);
    rings = 1;
    join(&a, &b);
    rings = 0;
    region_info to = own_region(&b), own = own_region(&c);
    end d = {.rail = b.rail, .mem = b.mem, .key = b.key};
    CHECK(cma_ep_open(b.rail, mmap(NULL, sizeof(cma_shm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
                      mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), RING, &d.ep) == 0);
    connect_end(&d, getpid(), c.fd, (int[2]){-1, open_socket()});
    atomic_store(&b.rail->base.app_polls, 1);
    CHECK(post_end(&d, GR_WRITE, &own, 0, 0, 512 << 10, &ctx[7]) == 0);
    int done = b.done + d.done;
    for (int i = 0; i < 2000 && b.done + d.done == done; i++) {
        CHECK(post_end(&a, GR_WRITE, &to, 0, 0, 64, &ctx[0]) == 0); /* a request waits at each poll */
        poll_end(&b);
        poll_end(&a);
    }
    CHECK(b.done + d.done == done + 1);
    CHECK(close_ep(&d) == 0);
    close_end(&a);
    close_end(&b);
    close_end(&c);
}
