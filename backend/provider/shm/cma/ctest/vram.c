/* GPU memory over a fake driver and mapper. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

static void open_pair(end *a, end *b)
{
    *a = open_end(0), *b = open_end(0);
    atomic_store(&a->rail->gpu.driver, fake_driver());
    atomic_store(&b->rail->gpu.driver, fake_driver());
    join(a, b);
    start_mapper(a);
    start_mapper(b);
}

static void close_pair(end *a, end *b)
{
    close_end(a);
    close_end(b);
    CHECK(atomic_load(&fake.mapped) == 0);
}

static double since(uint64_t ns) { return (double)(cma_now() - ns) / 1e9; }

static void done(end *e, int n)
{
    for (uint64_t stop = limit(); e->done < n && cma_now() < stop;)
        fake_poll(e);
    CHECK(e->done == n);
}

/* A transient failure is retried by the next transfer. A permanent one is not. */
void vram_again(void)
{
    end a, b;
    open_pair(&a, &b);
    a.rail->gpu.how = GR_GPU_ENGINE;
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    fake.why = GR_GPU_NO_FDS;
    fake.map_fails = 1;
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == -ENOTSUP);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    done(&a, 1);
    CHECK(a.err == 0 && fake.maps == 2 && fake.work.how == GR_GPU_ENGINE);
    uint64_t other = fake_region(&b, 2, GR_GPU_SHARE_IPC, 1);
    fake.why = GR_GPU_NO_PEER;
    fake.map_fails = 1;
    for (int i = 0; i < 3; i++)
        CHECK(fake_bulk_until(&a, 2, other, LIMIT_S) == -ENOTSUP);
    CHECK(fake.maps == 3);
    char why[256];
    fake_too_many = 1;
    CHECK(fake_bulk(&a, 1, key) == -ENOTSUP);
    fake_too_many = 0;
    cma_last_error(a.rail, why, sizeof(why));
    CHECK(strstr(why, "4294967295 operations"));
    CHECK(close_region(b.rail, key) == 0 && close_region(b.rail, other) == 0);
    close_pair(&a, &b);
}

/* A job on one region does not delay the close of another region. The close of its own region waits for it. A revoked
 * region is unmapped while other jobs of the endpoint go on. */
void vram_epochs(void)
{
    end a, b;
    open_pair(&a, &b);
    uint64_t one = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1), two = fake_region(&b, 2, GR_GPU_SHARE_IPC, 1);
    CHECK(fake_bulk_until(&a, 2, two, LIMIT_S) == 0);
    done(&a, 1);
    CHECK(atomic_load(&fake.mapped) == 1);
    atomic_store(&fake.held, 1);
    CHECK(fake_bulk_until(&a, 1, one, LIMIT_S) == 0);
    CHECK(atomic_load(&fake.mapped) == 2);
    CHECK(cma_import_drop(a.ep, 2));
    wait_mapper(&a);
    CHECK(atomic_load(&fake.mapped) == 1);
    uint64_t from = cma_now();
    CHECK(close_region(b.rail, two) == 0);
    CHECK(since(from) < 0.5);
    CHECK(cma_import_drop(a.ep, 1));
    wait_mapper(&a);
    CHECK(atomic_load(&fake.mapped) == 1);
    CHECK(close_region(b.rail, one) == -ETIMEDOUT);
    atomic_store(&fake.held, 0);
    done(&a, 2);
    wait_mapper(&a);
    CHECK(atomic_load(&fake.mapped) == 0);
    close_pair(&a, &b);
}

/* Closing an endpoint ends each of its jobs once. */
void vram_closed(void)
{
    end a, b;
    open_pair(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    for (int i = 0; i < CMA_BULKS; i++)
        CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    CHECK(fake_bulk(&a, 1, key) == -EAGAIN);
    CHECK(close_ep(&a) == 0);
    a.ep = NULL;
    poll_end(&a);
    CHECK(a.done == CMA_BULKS && a.err == ECANCELED);
    CHECK(atomic_load(&fake.mapped) == 0);
    atomic_store(&fake.held, 0);
    CHECK(close_region(b.rail, key) == 0);
    close_pair(&a, &b);
}

/* A copy to a peer whose endpoint closes is cancelled. */
void vram_peer_closes(void)
{
    end a, b;
    open_pair(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    poll_end(&a);
    CHECK(a.done == 0);
    atomic_store(&b.ep->shm->closed, 1);
    done(&a, 1);
    CHECK(a.err == ECONNRESET);
    atomic_store(&fake.held, 0);
    CHECK(close_region(b.rail, key) == 0);
    close_pair(&a, &b);
}

static void *close_it(void *e)
{
    CHECK(close_ep(e) == 0);
    return NULL;
}

/* The close of an endpoint waits for a job that does not end because the application holds the GPU. The rail stays
 * usable meanwhile. */
void vram_stuck(void)
{
    end a, b;
    pthread_t thread;
    struct timespec soon;
    open_pair(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    atomic_store(&fake.stuck, 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    CHECK(pthread_create(&thread, NULL, close_it, &a) == 0);
    while (!atomic_load(&a.ep->closing))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int i = 0; i < 20; i++) {
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        CHECK(pthread_mutex_timedlock(&a.rail->base.mu, &soon) == 0);
        pthread_mutex_unlock(&a.rail->base.mu);
    }
    CHECK(atomic_load(&fake.mapped) == 1);
    atomic_store(&fake.stuck, 0);
    CHECK(pthread_join(thread, NULL) == 0);
    a.ep = NULL;
    poll_end(&a);
    CHECK(a.done == 1 && a.err == ECANCELED);
    atomic_store(&fake.held, 0);
    CHECK(close_region(b.rail, key) == 0);
    close_pair(&a, &b);
}

/* A GPU ends neither its jobs nor their cancels: the close goes on after a second, and says so. What the jobs use stays: their mappings,
 * the operations, the peer's epochs. So a deregistration on either side reports them. A poll collects jobs that end later. */
void vram_kept(void)
{
    end a, b;
    open_pair(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1), mine = fake_region(&a, 3, GR_GPU_SHARE_IPC, 1), other = fake_region(&a, 4, GR_GPU_SHARE_IPC, 1);
    fake_local = cma_region_bit(mine);
    atomic_store(&fake.held, 1);
    atomic_store(&fake.stuck, 1);
    for (int i = 0; i < 2; i++)
        CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    CHECK(close_ep(&a) == -EINPROGRESS);
    a.ep = NULL;
    poll_end(&a);
    CHECK(a.done == 0 && atomic_load(&fake.mapped) == 1 && fake.freed == 0); /* the core ends the operations */
    CHECK(close_ep(&b) == -ETIMEDOUT); /* as ever: the peer's copies are under way */
    b.ep = NULL;
    CHECK(close_region(b.rail, key) == -ETIMEDOUT);
    CHECK(close_region(a.rail, mine) == -EINPROGRESS);
    CHECK(close_region(a.rail, other) == 0);
    uint64_t from = cma_now();
    for (int i = 0; i < 20; i++) /* a list of regions waits for a copy no more than one region */
        CHECK(close_region(b.rail, key) == -ETIMEDOUT && close_region(a.rail, mine) == -EINPROGRESS);
    CHECK(since(from) < 20);
    cma_bulk_ops.ops_free(&a.rail->base, fake_ops());
    CHECK(fake.freed == 0);
    atomic_store(&fake.stuck, 0);
    for (uint64_t stop = limit(); atomic_load(&a.rail->gpu.nkept) && cma_now() < stop;)
        poll_end(&a);
    CHECK(a.done == 0 && fake.freed == 1 && a.rail->ready.owed == 0);
    wait_mapper(&a);
    CHECK(atomic_load(&fake.mapped) == 0);
    CHECK(cma_wait_idle(a.rail, NULL, 0) == 0 && cma_wait_idle(b.rail, NULL, 0) == 0);
    atomic_store(&fake.held, 0);
    fake_local = 0;
    close_pair(&a, &b);
}

/* A rail that closes with such a job leaves the job and its stream to the driver. */
void vram_left(void)
{
    static end a; /* what is left counts as no leak */
    end b;
    open_pair(&a, &b);
    uint64_t key = fake_region(&b, 1, GR_GPU_SHARE_IPC, 1);
    atomic_store(&fake.held, 1);
    atomic_store(&fake.stuck, 1);
    CHECK(fake_bulk_until(&a, 1, key, LIMIT_S) == 0);
    CHECK(close_ep(&a) == -EINPROGRESS);
    a.ep = NULL;
    CHECK(close_region(b.rail, key) == -ETIMEDOUT);
    close_end(&a);
    close_end(&b);
    CHECK(atomic_load(&fake.mapped) == 1 && fake.jobs > 0 && fake.streams > 0);
}

/* The process that the mapping of a region comes from. */
static uint32_t source_of(end *from, end *of, int number)
{
    uint64_t key = fake_region(of, number, GR_GPU_SHARE_IPC, 1);
    int done_before = from->done;
    CHECK(fake_bulk_until(from, (uint32_t)number, key, LIMIT_S) == 0);
    done(from, done_before + 1);
    CHECK(close_region(of->rail, key) == 0);
    return fake.source;
}

/* Endpoints to one process share mappings. Peers without a number here share none, also of other rails. */
void vram_sources(void)
{
    end a, b;
    open_pair(&a, &b);
    CHECK(source_of(&a, &b, 1) == (uint32_t)getpid() && source_of(&b, &a, 2) == (uint32_t)getpid());
    close_pair(&a, &b);
    open_pair(&a, &b);
    a.ep->peer.pid = b.ep->peer.pid = 0;
    CHECK(a.ep->number == b.ep->number);
    uint32_t one = source_of(&a, &b, 1), two = source_of(&b, &a, 2);
    CHECK(one >> 31 && two >> 31 && one != two && source_of(&a, &b, 3) == one);
    close_pair(&a, &b);
}
