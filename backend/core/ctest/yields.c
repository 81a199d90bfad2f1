/* Large transfers leave the first thread's link to small ones while other threads have links. */
#include <string.h>
#include <time.h>

#include "scenario.h"

enum { LINKS = 3, OPS = 60 /* more than SMALL */, EACH = 3 << 10, RECENT_NS = 8000000, IDLE_NS = 20000000 };

/* Makes a WRITE of many operations. */
static gr_xfer *large_of(uint64_t handle)
{
    gr_xfer *x = gr_xfer_new(w.a.core, handle, GR_WRITE, OPS, -1);
    CHECK(x, "out of memory");
    for (uint64_t i = 0; i < OPS; i++)
        x->ops[i] = (gr_op){.local = (uintptr_t)w.a.mem + i * EACH, .remote = (uintptr_t)w.b.mem + i * EACH, .len = EACH, .lregion = LOCAL, .rregion = REMOTE};
    x->bytes = (uint64_t)OPS * EACH;
    return x;
}

static void start(gr_xfer *x, uint32_t links)
{
    atomic_store(&x->state, GR_XFER_RUNNING);
    gr_xfer_post(w.a.core, x, w.a.link, links, 0, 0, NULL, 0);
}

static void finish(gr_xfer *x)
{
    UNTIL(!running(x));
    CHECK(!failing, "failed");
}

static uint64_t bytes_of(int link)
{
    gr_tally t;
    gr_link_tally(w.a.link[link], &t);
    return t.count[GR_N_WRITE_BYTES];
}

static void idle(void)
{
    const struct timespec ns = {.tv_nsec = IDLE_NS};
    nanosleep(&ns, NULL);
}

/* Returns the bytes that the first thread's link has written of the large transfer. recent: a small transfer is posted just before. -1:
 * the machine was so slow that the small one is no longer recent. */
static int64_t share(gr_xfer *small, gr_xfer *large, int recent)
{
    idle();
    uint64_t before = bytes_of(0), began = gr_now_ns();
    if (recent) {
        start(small, 1);
        finish(small);
    }
    start(large, LINKS);
    finish(large);
    CHECK(memcmp(w.a.mem, w.b.mem, (size_t)OPS * EACH) == 0, "the bytes differ");
    if (recent && gr_now_ns() - began > RECENT_NS)
        return -1;
    return (int64_t)(bytes_of(0) - before - (recent ? small->bytes : 0));
}

void yields(void)
{
    enum { TRIES = 500 };
    world_open(&w, 1, LINKS, 1, 2);
    gr_xfer *small = write_of(1, 1024), *large = large_of(2);
    memset(w.a.mem, 7, (size_t)OPS * EACH);
    int64_t n = -1;
    for (int i = 0; i < TRIES && n < 0; i++)
        n = share(small, large, 1);
    CHECK(n == 0, "%ld bytes over the first thread's link, beside a small transfer", (long)n);
    n = 0;
    for (int i = 0; i < TRIES && n == 0; i++)
        n = share(small, large, 0);
    CHECK(n > 0, "nothing goes over the first thread's link, though no small transfer is posted");
    for (int i = 1; i < LINKS; i++)
        gr_link_stop(w.a.link[i]);
    n = share(small, large, 1);
    CHECK(n == -1 || n == (int64_t)large->bytes, "%ld bytes over the only link that is up", (long)n);
    gr_xfer_free(w.a.core, small);
    gr_xfer_free(w.a.core, large);
    world_close(&w);
}
