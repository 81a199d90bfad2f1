/* What chance seldom brings about, step by step. */
#include <sched.h>
#include <string.h>

#include "pause.h"
#include "world.h"

void (*gr_pause)(int where);

static world w;

static void ended(world *unused, uint64_t handle, int code)
{
    (void)unused;
    CHECK(!code, "transfer %lu ended with %d", (unsigned long)handle, code);
}

static void came_up(gr_link *link) { (void)link; }
static void change(void) {}

/* One step of each core. */
static void progress(void)
{
    gr_notif_free(w.a.core, gr_notif_take(w.a.core));
    notes_take(w.b.core);
    world_events(&w);
}

/* A WRITE of one operation. */
static gr_xfer *write_of(uint64_t handle, uint64_t len)
{
    gr_xfer *x = gr_xfer_new(w.a.core, handle, GR_WRITE, 1);
    CHECK(x, "out of memory");
    x->ops[0] = (gr_op){.local = (uintptr_t)w.a.mem, .remote = (uintptr_t)w.b.mem, .len = len, .lregion = LOCAL, .rregion = REMOTE};
    x->bytes = len;
    return x;
}

static void post(gr_xfer *x, gr_link *const *links, uint32_t n, uint64_t *note)
{
    uint64_t rng = x->handle;
    uint32_t len;
    char *body = note_new(w.session, 0, &rng, &len, note);
    atomic_store(&x->state, GR_XFER_RUNNING);
    gr_xfer_post(w.a.core, x, links, n, 0, 1, body, len);
    free(body);
}

static int running(const gr_xfer *x) { return (atomic_load(&x->state) & 0xff) == GR_XFER_RUNNING; }

/* ---- a link joins a transfer whose only part leaves at that moment, its notification still on its way ---- */

/* Relaxed: they order the two threads, and tell the sanitizer of no order that the core does not see to by itself. */
static _Atomic int joining, go_on, joined;
static gr_xfer *joins;

static void wait_for(_Atomic int *flag)
{
    while (!atomic_load_explicit(flag, memory_order_relaxed))
        sched_yield();
}

static void pause_join(int where)
{
    if (where == GR_PAUSE_JOIN) {
        atomic_store_explicit(&joining, 1, memory_order_relaxed);
        wait_for(&go_on);
    } else {
        atomic_store_explicit(&joined, 1, memory_order_relaxed);
    }
}

static void *join(void *link)
{
    gr_xfer_join(w.a.core, joins, link);
    return NULL;
}

static void late_join(void)
{
    pthread_t thread;
    uint64_t note;
    fake_script slow = {.per_poll = 1};
    world_open(&w, 1, 2, 0, 0);
    w.ended = ended;
    w.came_up = came_up;
    w.change = change;
    joins = write_of(1, 4096);
    memset(w.a.mem, 7, 4096);
    fake_rail_script(w.a.rail[0], &slow);
    fake_rail_stall(w.b.rail[0], 1);
    gr_link_stop(w.a.link[1]); /* so that the other takes it */
    post(joins, w.a.link, 2, &note);
    note_must(note, w.session);
    const gr_proof none = {0};
    CHECK(gr_link_rebind(w.a.link[1], w.a.ep[1], 0, &none, 0) == 0, "rebind");
    gr_pause = pause_join;
    CHECK(pthread_create(&thread, NULL, join, w.a.link[1]) == 0, "thread");
    wait_for(&joining);
    CHECK(atomic_load(&joins->parts_left) == 2, "%u parts", joins->parts_left);
    fake_rail_stall(w.b.rail[0], 0);
    while (atomic_load(&joins->parts_left) == 2) /* one operation: the WRITE */
        progress();
    fake_rail_stall(w.b.rail[0], 1);
    CHECK(running(joins), "its notification is not through");
    atomic_store_explicit(&go_on, 1, memory_order_relaxed);
    wait_for(&joined);
    fake_rail_stall(w.b.rail[0], 0);
    for (int i = 0; i < 100; i++)
        progress();
    pthread_join(thread, NULL);
    gr_pause = NULL;
    while (running(joins) || !notes_all())
        progress();
    CHECK(memcmp(w.a.mem, w.b.mem, 4096) == 0, "the bytes differ");
    gr_xfer_free(w.a.core, joins);
    world_close(&w);
}

int scenario(const char *name)
{
    static const struct { const char *name; void (*run)(void); } all[] = {{"late_join", late_join}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(all[i].name, name)) {
            all[i].run();
            return 0;
        }
    CHECK(0, "no scenario %s", name);
}
