/* Two processes: copies between them, and closes, kills and stops during copies. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

void copies(uint32_t threads)
{
    pair p = split(threads, wait_target);
    uint8_t *want = malloc(MEM);
    CHECK(want);
    memset(want, 0, MEM);
    int n = times(400);
    for (int i = 0; i < n; i++) {
        uint64_t len = (uint64_t)rand() % (i % 2 ? 4096 : 700000) + 1, from = (uint64_t)rand() % (MEM - len), to = (uint64_t)rand() % (MEM - len);
        uint32_t byte = (uint32_t)rand();
        for (uint64_t k = 0; k < len; k++)
            p.me.mem[from + k] = (uint8_t)((byte = byte * 1664525 + 1013904223) >> 24);
        memcpy(want + to, p.me.mem + from, len);
        CHECK(rma(&p.me, GR_WRITE, &p.peer, from, to, len) == 0);
    }
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM) == 0);
    CHECK(memcmp(want, p.me.mem, MEM) == 0);
    CHECK(!files || atomic_load(&p.me.rail->mapper.viewed) >= MEM);
    free(want);
    pipe_put(&p, 'q');
    finish(&p);
}

void inline_copies(void) { copies(0); }
void pool_copies(void) { copies(2); }

/* Lets the peer's memory be mapped, if that is a file. The peer polls. */
static void see(pair *p)
{
    memset(p->me.mem, 0, 64);
    if (files)
        CHECK(rma(&p->me, GR_WRITE, &p->peer, 64, 64, 64 << 10) == 0);
    wait_mapper(&p->me);
}

/* Writes until a WRITE fails with one of the expected errors. */
static void writer(pair *p)
{
    int err = 0;
    see(p);
    memset(p->me.mem, 0xee, MEM);
    pipe_put(p, 'w');
    while (!(err = rma(&p->me, GR_WRITE, &p->peer, 0, 0, MEM)))
        ;
    CHECK(err == EACCES || err == ECONNRESET);
    CHECK(!files || atomic_load(&p->me.rail->mapper.viewed));
    pipe_put(p, 'd');
}

static int zero(const uint8_t *m) { return m[0] == 0 && memcmp(m, m + 1, MEM - 1) == 0; }

/* Nothing lands in the memory after its region or endpoint was closed. */
void close_during_writes(int by_endpoint)
{
    for (int i = 0; i < 10; i++) {
        pair p = split(i % 3, writer);
        poll_until(&p, 'w');
        while (!p.me.mem[0] && !p.me.mem[MEM - 1])
            poll_end(&p.me);
        if (by_endpoint)
            CHECK(close_ep(&p.me) == 0);
        else
            CHECK(close_region(p.me.rail, p.me.key) == 0);
        memset(p.me.mem, 0, MEM);
        if (by_endpoint)
            p.me.ep = NULL;
        else
            p.me.key = 0;
        poll_until(&p, 'd'); /* a ring needs the target for its answer */
        CHECK(zero(p.me.mem));
        finish(&p);
    }
}

void region_closed(void) { close_during_writes(0); }
void endpoint_closed(void) { close_during_writes(1); }

void write_for_ever(pair *p)
{
    see(p);
    pipe_put(p, 'w');
    for (;;)
        CHECK(rma(&p->me, GR_WRITE, &p->peer, 0, 0, MEM) == 0);
}

/* The number of starts and ends of copies in the peer's epochs. */
static uint64_t turns(const end *e)
{
    uint64_t n = 0;
    for (int i = 0; i < CMA_EPOCHS; i++)
        n += atomic_load(&e->ep->shm->epoch[i].turn);
    return n;
}

/* Closing a region is bounded in time if a writer is killed or stopped. */
void signal_writer(int sig)
{
    pair p = split(2, write_for_ever);
    poll_until(&p, 'w');
    for (uint64_t stop = limit(); turns(&p.me) < 100;) { /* the writer is busy */
        CHECK(cma_now() < stop);
        if (files) /* it asks before it copies */
            poll_end(&p.me);
    }
    CHECK(kill(p.child, sig) == 0);
    int status;
    CHECK(waitpid(p.child, &status, WUNTRACED) == p.child);
    uint64_t begin = cma_now();
    int rc = close_region(p.me.rail, p.me.key);
    CHECK(rc == 0 || (sig == SIGSTOP && rc == -ETIMEDOUT));
    CHECK(rc == 0 || cma_late(p.me.rail) == ((uint64_t)p.child << 8 | 'T'));
    p.me.key = 0;
    CHECK(cma_now() - begin < UINT64_C(3000000000));
    if (sig == SIGKILL)
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 4096) == ECONNRESET);
    close_end(&p.me);
    kill(p.child, SIGKILL);
}

/* Closing a region does not wait for a peer that is known to have ended: by its pidfd, or by a failed handshake that
 * gave no process number. */
void ended_unseen(void)
{
    for (int numbered = 0; numbered < 2; numbered++) {
        end e = open_end(0);
        atomic_store(&e.ep->shm->epoch[0].turn, 1); /* a copy under way */
        pid_t child = numbered ? fork() : 0;
        if (numbered && child == 0)
            _exit(0);
        if (numbered) {
            cma_ep_identified(e.ep, child, (int)syscall(SYS_pidfd_open, child, 0), 0);
            CHECK(waitpid(child, NULL, 0) == child);
        } else {
            CHECK(close_region(e.rail, e.key) == -ETIMEDOUT);
            CHECK((e.key = open_region(&e, (uint64_t)(uintptr_t)e.mem, MEM, NULL)) != 0);
            cma_ep_fail(e.ep, ECONNRESET, 1);
        }
        CHECK(close_region(e.rail, e.key) == 0);
        e.key = 0;
        close_end(&e);
    }
}

void killed(void) { signal_writer(SIGKILL); }
void stopped(void) { signal_writer(SIGSTOP); }

static void at_a_copy(pair *p)
{
    while (!p->me.ep->peer.shm)
        poll_end(&p->me);
    atomic_store(&p->me.ep->peer.shm->epoch[0].turn, 1);
    pipe_put(p, 'c');
    pipe_get(p);
}

/* A running process without progress is reported as late, and not as stopped. */
void slow(void)
{
    pair p = split(0, at_a_copy);
    CHECK(pipe_get(&p) == 'c');
    CHECK(close_region(p.me.rail, p.me.key) == -ETIMEDOUT);
    uint64_t late = cma_late(p.me.rail);
    CHECK(late >> 8 == (uint64_t)p.child && (late & 0xff) != 'T' && (late & 0xff) != 't' && (late & 0xff) != 0);
    CHECK(kill(p.child, SIGSTOP) == 0 && waitpid(p.child, NULL, WUNTRACED) == p.child);
    CHECK(close_ep(&p.me) == -ETIMEDOUT && cma_late(p.me.rail) == ((uint64_t)p.child << 8 | 'T'));
    p.me.key = 0;
    p.me.ep = NULL;
    CHECK(kill(p.child, SIGKILL) == 0 && waitpid(p.child, NULL, 0) == p.child);
    close_end(&p.me);
}

static void with_holes(pair *p)
{
    CHECK(munmap(p->me.mem + (1 << 20), 4096) == 0);
    CHECK(mprotect(p->me.mem + (2 << 20), 4096, PROT_READ) == 0);
    pipe_put(p, 'h');
    wait_target(p);
}

/* A copy fails alone, whatever the copies before it did. */
void holes(void)
{
    pair p = split(1, with_holes);
    CHECK(pipe_get(&p) == 'h');
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 1 << 20) == 0);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, (1 << 20) + 1) == EFAULT);
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 1 << 20, 64) == EFAULT);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 2 << 20, 64) == EFAULT);
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 2 << 20, 64) == 0);
    region_info out = p.peer;
    CHECK(rma(&p.me, GR_WRITE, &out, 0, MEM - 63, 64) == ERANGE);
    out.key += UINT64_C(1) << 32;
    CHECK(rma(&p.me, GR_WRITE, &out, 0, 0, 64) == EACCES);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 64) == 0);
    pipe_put(&p, 'q');
    finish(&p);
}
