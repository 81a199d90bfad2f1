/* Copies through views: the peer's memory is a file that is mapped here, and neither process may access the other's memory. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

extern int view_prot, view_fails;

enum { BIG = 64 << 10 }; /* smaller pieces take the ring */

static void mapped(void) { rings = files = 1; }

void mapped_copies(void)
{
    mapped();
    copies(0);
}

void mapped_pool(void)
{
    mapped();
    copies(2);
}

void mapped_region_closed(void)
{
    mapped();
    close_during_writes(0);
}

void mapped_endpoint_closed(void)
{
    mapped();
    close_during_writes(1);
}

void mapped_killed(void)
{
    mapped();
    signal_writer(SIGKILL);
}

void mapped_stopped(void)
{
    mapped();
    signal_writer(SIGSTOP);
}

static uint64_t viewed(const end *e) { return atomic_load(&e->rail->mapper.viewed); }

/* Truncates its file and makes it whole again, until it is told to end. */
static void truncates(pair *p)
{
    for (char c = 0; c != 'q'; poll_end(&p->me)) {
        CHECK(ftruncate(p->me.fd[4], 0) == 0);
        poll_end(&p->me);
        CHECK(ftruncate(p->me.fd[4], MEM) == 0);
        if (recv(p->pipe, &c, 1, MSG_DONTWAIT) < 0)
            c = 0;
    }
    poll_until(p, 'q');
}

/* A peer that truncates its file during copies makes them go through its ring, or fail there. Nobody crashes. */
void mapped_truncated(void)
{
    mapped();
    pair p = split(1, truncates);
    int failed = 0;
    uint64_t stop = limit();
    for (cma_view *v = NULL; !v || atomic_load(&v->state) != CMA_VIEW_FAILED; v = p.me.ep->views.list[0]) {
        int err = rma(&p.me, failed % 2 ? GR_READ : GR_WRITE, &p.peer, 0, 0, MEM);
        CHECK(err == 0 || err == EFAULT);
        failed += err != 0;
        wait_mapper(&p.me);
        CHECK(cma_now() < stop);
    }
    uint64_t before = viewed(&p.me);
    pipe_put(&p, 'q');
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM) == 0 || rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM) == 0);
    CHECK(viewed(&p.me) == before);
    pipe_put(&p, 'q');
    finish(&p);
}

/* A view ends when it is forgotten, and the next transfer makes another one. */
void mapped_forgotten(void)
{
    mapped();
    pair p = split(0, wait_target);
    for (int i = 0; i < 10; i++) {
        uint64_t before = viewed(&p.me);
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, BIG) == 0);
        wait_mapper(&p.me);
        CHECK(viewed(&p.me) == before && atomic_load(&p.me.rail->mapper.views) == 1 && atomic_load(&p.me.rail->mapper.view_bytes) == MEM);
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, BIG) == 0 && viewed(&p.me) == before + BIG);
        CHECK(cma_view_drop(p.me.ep, p.peer.key) && !cma_view_drop(p.me.ep, p.peer.key));
        wait_mapper(&p.me);
        CHECK(atomic_load(&p.me.rail->mapper.views) == 0 && atomic_load(&p.me.rail->mapper.view_bytes) == 0);
    }
    pipe_put(&p, 'q');
    finish(&p);
}

/* A view that failed for a while is made again; one that failed for good is not. */
void mapped_again(void)
{
    mapped();
    view_fails = 3;
    pair p = split(0, wait_target);
    for (int i = 0; i < 5; i++) {
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, BIG) == 0);
        wait_mapper(&p.me);
        CHECK(viewed(&p.me) == (i < 4 ? 0 : BIG) && atomic_load(&p.me.rail->mapper.views) == 1);
    }
    cma_view_fail(&p.me.ep->views, p.peer.key);
    for (int i = 0; i < 5; i++)
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, BIG) == 0);
    wait_mapper(&p.me);
    CHECK(viewed(&p.me) == BIG);
    pipe_put(&p, 'q');
    finish(&p);
}

/* WRITEs to a file that is mapped for reading take the ring. */
void mapped_readonly(void)
{
    mapped();
    view_prot = PROT_READ;
    pair p = split(0, wait_target);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM) == 0);
    wait_mapper(&p.me);
    memset(p.me.mem, 5, MEM);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM) == 0 && viewed(&p.me) == 0);
    memset(p.me.mem, 0, MEM);
    CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM) == 0 && viewed(&p.me) == MEM);
    CHECK(p.me.mem[0] == 5 && memcmp(p.me.mem, p.me.mem + 1, MEM - 1) == 0);
    pipe_put(&p, 'q');
    finish(&p);
}

static _Atomic int over;

static void *forgets(void *arg)
{
    pair *p = arg;
    while (!atomic_load(&over))
        cma_view_drop(p->me.ep, p->peer.key);
    return NULL;
}

/* Views end while threads copy. */
void mapped_threads(void)
{
    mapped();
    pair p = split(2, wait_target);
    pthread_t t;
    CHECK(pthread_create(&t, NULL, forgets, &p) == 0);
    for (int i = 1, n = times(300); i <= n; i++) {
        memset(p.me.mem, i, 1 << 20);
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 1 << 20, 1 << 20) == 0);
        CHECK(rma(&p.me, GR_READ, &p.peer, 2 << 20, 1 << 20, 1 << 20) == 0);
        CHECK(memcmp(p.me.mem, p.me.mem + (2 << 20), 1 << 20) == 0);
    }
    atomic_store(&over, 1);
    CHECK(pthread_join(t, NULL) == 0);
    pipe_put(&p, 'q');
    finish(&p);
}

enum { MANY = CMA_VIEWS + 10 };

static void many_regions(pair *p)
{
    for (int i = 1; i < MANY; i++)
        CHECK(open_region(&p->me, (uint64_t)(uintptr_t)p->me.mem, MEM, NULL) == p->me.key + (uint64_t)i);
    pipe_put(p, 'r');
    wait_target(p);
}

/* Regions beyond the bounds of an endpoint or a rail take the ring. */
void mapped_most(void)
{
    mapped();
    pair p = split(0, many_regions);
    cma_mapper *m = &p.me.rail->mapper;
    region_info to = p.peer;
    CHECK(pipe_get(&p) == 'r');
    atomic_store(&m->views, CMA_ALL_VIEWS);
    CHECK(rma(&p.me, GR_WRITE, &to, 0, 0, BIG) == 0 && atomic_load(&m->views) == CMA_ALL_VIEWS);
    atomic_store(&m->views, 0);
    atomic_store(&m->view_bytes, CMA_VIEW_BYTES - MEM + 1);
    CHECK(rma(&p.me, GR_WRITE, &to, 0, 0, BIG) == 0 && atomic_load(&m->views) == 0);
    atomic_store(&m->view_bytes, 0);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++) {
            uint64_t before = viewed(&p.me);
            to.key = p.peer.key + (uint64_t)i;
            CHECK(rma(&p.me, GR_WRITE, &to, 0, 0, BIG) == 0);
            wait_mapper(&p.me);
            CHECK(viewed(&p.me) - before == (round && i < CMA_VIEWS ? BIG : 0));
        }
    CHECK(atomic_load(&m->views) == CMA_VIEWS);
    pipe_put(&p, 'q');
    finish(&p);
}

/* Maps another file at the region's address, as an application may. */
static void replaces(pair *p)
{
    poll_until(p, 'r');
    int other = memfd_create("another", MFD_CLOEXEC);
    CHECK(other >= 0 && ftruncate(other, MEM) == 0);
    CHECK(mmap(p->me.mem, MEM, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, other, 0) == p->me.mem);
    memset(p->me.mem, 7, MEM);
    pipe_put(p, 'd');
    poll_until(p, 'c');
    for (int i = 0; i < MEM; i++)
        CHECK(p->me.mem[i] == (i < BIG ? 9 : 7));
    CHECK(atomic_load(&p->me.rail->changed) == 1);
    pipe_put(p, 'd');
    wait_target(p);
}

/* The peer maps another file over its memory. READs have the new bytes, WRITEs go there, and the old file is left alone. */
void mapped_replaced(void)
{
    mapped();
    pair p = split(0, replaces);
    uint8_t *old = mmap(NULL, MEM, PROT_READ, MAP_SHARED, p.me.peer_file, 0);
    memset(p.me.mem, 5, MEM);
    CHECK(old != MAP_FAILED && rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM) == 0);
    wait_mapper(&p.me);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, MEM) == 0 && viewed(&p.me) == MEM);
    pipe_put(&p, 'r');
    CHECK(pipe_get(&p) == 'd');
    memset(p.me.mem, 9, MEM);
    CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, BIG) == 0);
    CHECK(old[0] == 5 && memcmp(old, old + 1, MEM - 1) == 0);
    wait_mapper(&p.me);
    for (int i = 0; i < 3; i++) { /* the mapper of this test gives the old file again */
        memset(p.me.mem, 1, MEM);
        CHECK(rma(&p.me, GR_READ, &p.peer, 0, 0, MEM) == 0 && p.me.mem[0] == 9 && p.me.mem[BIG] == 7 && p.me.mem[MEM - 1] == 7);
        wait_mapper(&p.me);
    }
    pipe_put(&p, 'c');
    CHECK(pipe_get(&p) == 'd');
    munmap(old, MEM);
    pipe_put(&p, 'q');
    finish(&p);
}

static void *shuts(void *arg)
{
    cma_ep_shut(((end *)arg)->ep);
    return NULL;
}

/* The peer answers a WRITE's question while the endpoint is being closed. A copying thread holds the close up meanwhile. The WRITE ends. */
void mapped_answered_late(void)
{
    mapped();
    end a = open_end(0), b = open_end(0);
    region_info to = {(uint64_t)(uintptr_t)b.mem, b.key};
    pthread_t t;
    gr_comp comps[8];
    join(&a, &b);
    start_mapper(&a);
    start_mapper(&b);
    a.ep->peer.self = 0;
    for (uint64_t stop = limit(); !viewed(&a); wait_mapper(&a)) {
        int before = a.done;
        CHECK(post_end(&a, GR_WRITE, &to, 0, 0, BIG, &ctx[1]) == 0);
        for (; a.done == before; poll_end(&b), poll_end(&a))
            CHECK(cma_now() < stop);
    }
    int before = a.done;
    CHECK(post_end(&a, GR_WRITE, &to, 0, 0, BIG, &ctx[1]) == 0 && a.rail->asking);
    pthread_mutex_lock(&a.rail->pool.mu);
    a.ep->pool.jobs++;
    pthread_mutex_unlock(&a.rail->pool.mu);
    CHECK(pthread_create(&t, NULL, shuts, &a) == 0);
    while (!atomic_load(&a.ep->closing))
        ;
    cma_answer_all(b.ep, 3);
    gr_rail_lock(&a.rail->base);
    int n = cma_ops.poll(&a.rail->base, comps, 8);
    gr_rail_unlock(&a.rail->base);
    pthread_mutex_lock(&a.rail->pool.mu);
    a.ep->pool.jobs--;
    pthread_mutex_unlock(&a.rail->pool.mu);
    pthread_join(t, NULL);
    CHECK(atomic_load(&a.rail->pool.queued) == 0 && !a.rail->asking);
    poll_end(&a);
    CHECK(n + a.done - before == 1);
}
