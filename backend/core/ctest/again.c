/* Concurrent threads: two poll, and one reposts a few transfers without Go all the time. Meanwhile the main thread plays
 * Go: it drops the cached posts before links stop, go and come, and posts itself where gr_repost refused. */
#include <sched.h>
#include <string.h>
#include <time.h>

#include "world.h"

enum { FIRST_HANDLE = 1 << 30 };

static world *w;
static gr_xfer *xfers[REPOSTED];
static uint64_t rng;
static _Atomic uint64_t reposts;
static _Atomic int stop, stop_polling;
static pthread_t poster, pollers[2];

void drop_cached(gr_xfer *x)
{
    for (uint32_t v = GR_CACHED_VALID; !atomic_compare_exchange_weak(&x->cached, &v, GR_CACHED_NONE) && v != GR_CACHED_NONE; v = GR_CACHED_VALID)
        sched_yield();
}

static void *poll(void *arg)
{
    uint64_t mine = (uintptr_t)arg;
    while (!atomic_load(&stop_polling)) {
        if (below(&mine, 4) == 0)
            notes_take(w->b.core);
        gr_notif_free(w->a.core, gr_notif_take(w->a.core));
        gr_tally t;
        gr_rail_tally(w->a.core, 0, &t); /* takes no lock, and has no data race */
        struct timespec delay = {.tv_nsec = 1000 * (long)below(&mine, 50)};
        nanosleep(&delay, NULL);
    }
    return NULL;
}

static void *post_again(void *unused)
{
    uint64_t mine = 77;
    (void)unused;
    while (!atomic_load(&stop)) {
        uint64_t i = below(&mine, REPOSTED), id;
        uint32_t len = 0;
        /* of no session: it need not arrive, but must not arrive twice or damaged */
        char *body = below(&mine, 2) ? note_new(0, 0, &mine, &len, &id) : NULL;
        int rc = gr_repost(w->a.core, xfers[i], FIRST_HANDLE + i, body != NULL, body, len);
        CHECK(rc == 0 || rc == 1 || rc == GR_NOT_TAKEN, "%d", rc);
        free(body);
        if (rc != GR_NOT_TAKEN)
            atomic_fetch_add(&reposts, 1);
        CHECK(gr_repost(w->a.core, xfers[i], FIRST_HANDLE + i + REPOSTED, 0, NULL, 0) == GR_NOT_TAKEN, "another handle");
        struct timespec delay = {.tv_nsec = 1000 * (long)below(&mine, 100)};
        nanosleep(&delay, NULL);
    }
    return NULL;
}

void repost_open(world *world, uint64_t seed)
{
    w = world;
    rng = seed;
    for (uint64_t i = 0; i < REPOSTED; i++) {
        uint64_t at = (SLOTS + i) * SLOT_SIZE, nops = 1 + below(&rng, 6), len = SLOT_SIZE / nops;
        CHECK((xfers[i] = gr_xfer_new(w->a.core, FIRST_HANDLE + i, GR_WRITE, nops, i & 1 ? 0 : -1)), "out of memory");
        memset(w->a.mem + at, (int)(1 + i), SLOT_SIZE);
        for (uint64_t k = 0; k < nops; k++)
            xfers[i]->ops[k] = (gr_op){.local = (uintptr_t)w->a.mem + at + k * len,
                                       .remote = (uintptr_t)w->b.mem + at + k * len,
                                       .len = len,
                                       .lregion = LOCAL,
                                       .rregion = REMOTE};
        xfers[i]->bytes = nops * len;
        const uint32_t here = LOCAL, there = REMOTE;
        if (i & 1)
            CHECK(gr_xfer_bulk(xfers[i], &here, 1, &there, 1) == 0, "out of memory");
    }
    if (!w->threads)
        return;
    CHECK(pthread_create(&poster, NULL, post_again, NULL) == 0, "thread");
    for (uint64_t i = 0; i < 2; i++)
        CHECK(pthread_create(&pollers[i], NULL, poll, (void *)(seed + i)) == 0, "thread");
}

void repost_one(uint64_t i)
{
    gr_xfer *x = xfers[i];
    drop_cached(x);
    if (atomic_load(&x->state) > 0)
        return;
    atomic_store(&x->state, GR_XFER_RUNNING);
    gr_xfer_post(w->a.core, x, w->a.link, (uint32_t)w->rails, below(&rng, (uint32_t)w->rails + 1), 0, NULL, 0);
    atomic_store(&x->cached, GR_CACHED_VALID);
}

void repost_change(void)
{
    for (int i = 0; i < REPOSTED; i++)
        drop_cached(xfers[i]);
}

int repost_ended(uint64_t handle, int code)
{
    if (handle < FIRST_HANDLE)
        return 0;
    if (code)
        atomic_store(&xfers[handle - FIRST_HANDLE]->state, code);
    return 1;
}

void repost_stop(void)
{
    atomic_store(&stop, 1);
    if (w->threads)
        pthread_join(poster, NULL);
    for (uint64_t i = 0; i < REPOSTED; i++) /* the last round must end well */
        repost_one(i);
}

int repost_done(void)
{
    for (int i = 0; i < REPOSTED; i++) {
        if (atomic_load(&xfers[i]->state) > 0)
            return 0;
        if (atomic_load(&xfers[i]->state) < 0) {
            repost_one((uint64_t)i);
            return 0;
        }
    }
    static uint64_t past; /* nothing changes any more: makes some reposts without Go before the end, independent of the random numbers */
    int more = past < 4 * REPOSTED;
    for (uint64_t i = 0; more && i < REPOSTED; i++) {
        if (gr_repost(w->a.core, xfers[i], FIRST_HANDLE + i, 0, NULL, 0) == GR_NOT_TAKEN)
            repost_one(i);
        else
            past++;
    }
    return !more;
}

uint64_t repost_close(void)
{
    atomic_store(&stop_polling, 1);
    for (int i = 0; w->threads && i < 2; i++)
        pthread_join(pollers[i], NULL);
    for (int i = 0; i < REPOSTED; i++) {
        uint64_t at = (uint64_t)(SLOTS + i) * SLOT_SIZE;
        CHECK(memcmp(w->a.mem + at, w->b.mem + at, xfers[i]->bytes) == 0, "the bytes differ");
        drop_cached(xfers[i]);
        gr_xfer_free(w->a.core, xfers[i]);
    }
    return atomic_load(&reposts);
}
