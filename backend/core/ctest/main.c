/* Random test of the core. It does in random order what the engine may do: posts, aborts, notifications, fences, ends of
 * sessions. The fake fabric refuses, delays, reorders and fails. Every outcome is checked; the sanitizers check the rest.
 *
 *     ctest SEED STEPS      one thread and a clock of its own: the same seed gives the same run
 *     ctest SEED STEPS t    with the cores' own threads, and two more that poll
 *     ctest SEED STEPS s    without memory for events; also ts
 *     ctest NAME            one scenario: see scenario.c
 */
#include <errno.h>
#include <string.h>

#include "world.h"

enum { MAX_OPS = 12 };
enum { IDLE, RUNNING, ENDED };

typedef struct slot {
    gr_xfer *x;
    uint64_t handle, note, sum; /* note: its notification, 0: none; sum: checksum of the local bytes at the end */
    int op, state, aborted;
} slot;

static world w;
static slot slots[SLOTS];
static uint64_t rng, next_handle = 1, done_count, failed_count, reposts;

static unsigned char *local(int i) { return w.a.mem + i * SLOT_SIZE; }
static unsigned char *far_end(int i) { return w.b.mem + i * SLOT_SIZE; }

static uint64_t sum(const unsigned char *p)
{
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < SLOT_SIZE; i += 8) {
        uint64_t v;
        memcpy(&v, p + i, 8);
        h = (h ^ v) * 1099511628211u;
    }
    return h;
}

static void fill(unsigned char *p)
{
    for (int i = 0; i < SLOT_SIZE; i += 8) {
        uint64_t v = fake_random(&rng);
        memcpy(p + i, &v, 8);
    }
}

static void ended_well(slot *s, int i)
{
    CHECK(memcmp(local(i), far_end(i), SLOT_SIZE) == 0, "slot %d: the bytes differ", i);
    done_count++;
    if (s->note)
        note_require(s->note, w.session);
}

/* Handles an event: the transfer ended in an error, which Go finalizes. */
static void on_end(world *unused, uint64_t handle, int code)
{
    (void)unused;
    if (repost_ended(handle, code))
        return;
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].handle == handle && slots[i].state == RUNNING && code) {
            CHECK((atomic_load(&slots[i].x->state) & 0xff) == GR_XFER_FAILED, "state %d", slots[i].x->state);
            atomic_store(&slots[i].x->state, code);
            slots[i].state = ENDED;
            slots[i].sum = sum(local(i));
            failed_count++;
            return;
        }
    CHECK(!code, "an event for no transfer");
}

static void check_slot(int i)
{
    slot *s = &slots[i];
    if (s->state != RUNNING)
        return;
    int st = gr_check(w.a.core, s->x, s->handle);
    if (st == 1)
        return;
    CHECK(st == 0, "slot %d: status %d before Go has finalized the transfer", i, st);
    s->state = ENDED;
    ended_well(s, i);
    s->sum = sum(local(i));
}

static void prepare(slot *s, int i)
{
    uint64_t nops = 1 + below(&rng, MAX_OPS), at = 0;
    s->handle = next_handle++;
    s->op = (int)below(&rng, 2);
    int rail = below(&rng, 3) == 0 ? (int)below(&rng, (uint64_t)w.rails) : -1;
    if (below(&rng, 2)) { /* as if the plan had first been made for other memory */
        CHECK((s->x = gr_xfer_new(w.a.core, s->handle, s->op, below(&rng, MAX_OPS), rail < 0 ? 0 : -1)), "out of memory");
        CHECK(gr_xfer_resize(w.a.core, s->x, 0, nops, rail) == 0, "out of memory");
    } else {
        CHECK((s->x = gr_xfer_new(w.a.core, s->handle, s->op, nops, rail)), "out of memory");
    }
    for (uint64_t k = 0; k < nops; k++) {
        uint64_t len = k + 1 == nops ? SLOT_SIZE - at : below(&rng, (SLOT_SIZE - at) / 2 + 1);
        s->x->ops[k] =
            (gr_op){.local = (uintptr_t)local(i) + at, .remote = (uintptr_t)far_end(i) + at, .len = len, .lregion = LOCAL, .rregion = REMOTE};
        at += len;
    }
    s->x->bytes = at;
    const uint32_t here = LOCAL, there = REMOTE;
    if (rail >= 0)
        CHECK(gr_xfer_bulk(s->x, &here, 1, &there, 1) == 0, "out of memory");
}

static void post(int i)
{
    slot *s = &slots[i];
    if (s->state == RUNNING)
        return;
    if (s->x) {
        CHECK(s->sum == sum(local(i)), "slot %d: memory was changed after the transfer had ended", i);
        if (below(&rng, 4) == 0) {
            drop_cached(s->x);
            gr_xfer_free(w.a.core, s->x);
            CHECK(gr_check(w.a.core, s->x, s->handle) == -4, "a stale handle");
            s->x = NULL;
        }
    }
    if (!s->x)
        prepare(s, i);
    fill(local(i));
    fill(far_end(i));
    uint32_t len = 0;
    s->note = 0;
    s->aborted = 0;
    char *body = below(&rng, 3) ? note_new(w.session, 0, &rng, &len, &s->note) : NULL;
    s->state = RUNNING;
    int may = atomic_load(&s->x->cached) == GR_CACHED_VALID && atomic_load(&s->x->state) == 0;
    int rc = gr_repost(w.a.core, s->x, s->handle, body != NULL, body, len);
    CHECK((rc != GR_NOT_TAKEN) == may, "%d", rc);
    reposts += may != 0;
    if (!may) {
        drop_cached(s->x);
        atomic_store(&s->x->state, GR_XFER_RUNNING);
        gr_xfer_post(w.a.core, s->x, w.a.link, (uint32_t)w.rails, below(&rng, (uint32_t)w.rails + 1), body != NULL, body, len);
        atomic_store(&s->x->cached, GR_CACHED_VALID);
    }
    free(body);
}

static void change(void)
{
    repost_change();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].x)
            drop_cached(slots[i].x);
}

/* Finds a transfer with a cached post, if there is one. */
static int cached(int from)
{
    for (int n = 0; n < SLOTS; n++) {
        int i = (from + n) % SLOTS;
        if (slots[i].state == ENDED && atomic_load(&slots[i].x->cached) && !atomic_load(&slots[i].x->state))
            return i;
    }
    return from;
}

static int running(int from)
{
    for (int n = 0; n < SLOTS; n++)
        if (slots[(from + n) % SLOTS].state == RUNNING)
            return (from + n) % SLOTS;
    return from;
}

static void cancel(int i)
{
    slot *s = &slots[i];
    if (s->state != RUNNING || below(&rng, 3))
        return;
    s->aborted = 1;
    drop_cached(s->x);
    int over = gr_xfer_abort(w.a.core, s->x, -11);
    if (below(&rng, 2) && gr_xfer_wait(w.a.core, s->x, 100000))
        over = 1;
    CHECK(!over || (atomic_load(&s->x->state) & 0xff) != GR_XFER_RUNNING, "the transfer is still running");
}

static void notify(void)
{
    uint32_t len;
    uint64_t id;
    char *body = note_new(w.session, 1, &rng, &len, &id);
    int rc = gr_notify(w.a.link[w.notif_rail], body, len);
    CHECK(rc == 0 || rc == -EAGAIN, "%d", rc);
    if (rc == 0)
        note_require(id, w.session);
    free(body);
}

static void restart(void)
{
    notes_unrequire(); /* notifications that have not arrived may be lost with the session */
    world_restart(&w, -10);
    for (int i = 0; i < SLOTS; i++)
        check_slot(i);
    world_events(&w);
    for (int i = 0; i < SLOTS; i++)
        CHECK(slots[i].state != RUNNING, "slot %d: the transfer still runs after the end of its session", i);
}

static void step(void)
{
    int i = (int)below(&rng, SLOTS);
    int rail = (int)below(&rng, (uint64_t)w.rails);
    switch (below(&rng, 40)) {
    case 0: set_faults(&w, &w.a, rail, &rng); break;
    case 1: set_faults(&w, &w.b, rail, &rng); break;
    case 2:
        set_faults(&w, &w.a, rail, NULL);
        set_faults(&w, &w.b, rail, NULL);
        break;
    case 3:
        if (below(&rng, 3) == 0)
            world_fence(&w, rail);
        break;
    case 4:
        if (below(&rng, 10) == 0)
            restart();
        break;
    case 5:
    case 6: cancel(running(i)); break;
    case 7:
    case 8:
    case 9:
    case 10: notify(); break;
    case 11:
    case 12:
    case 13: post(i); break;
    case 14:
    case 15: post(cached(i)); break;
    case 16: repost_one(below(&rng, REPOSTED)); break;
    case 17:
    case 18: notes_take(w.b.core); break;
    case 19:
        if (below(&rng, 4) == 0)
            toggle_rail(&w, &rng);
        break;
    default: check_slot(i);
    }
    world_events(&w);
    if (w.broken[rail] && below(&rng, 3) == 0)
        world_fence(&w, rail);
}

/* Running transfers may use a link that has come up again. */
static void on_up(gr_link *link)
{
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].state == RUNNING)
            gr_xfer_join(w.a.core, slots[i].x, link);
}

static int all_done(void)
{
    notes_take(w.b.core);
    gr_notif_free(w.a.core, gr_notif_take(w.a.core)); /* makes progress */
    for (int i = 0; i < SLOTS; i++) {
        check_slot(i);
        if (slots[i].state == RUNNING)
            return 0;
    }
    return repost_done() && notes_all() && gr_sess_queued(w.a.sess) == 0;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return scenario(argv[1]);
    CHECK(argc >= 3, "usage: ctest SEED STEPS [t][s], ctest NAME");
    uint64_t seed = strtoull(argv[1], NULL, 10), steps = strtoull(argv[2], NULL, 10);
    int threads = argc > 3 && strchr(argv[3], 't'), hungry = argc > 3 && strchr(argv[3], 's');
    rng = seed;
    if (hungry)
        starve((int)(seed % 3));
    if (!threads)
        clock_given(seed);
    world_open(&w, (int)(seed & 1), 1 + (int)(seed / 2 % WORLD_RAILS), threads, seed);
    w.callbacks.ended = on_end;
    w.callbacks.link_up = on_up;
    w.callbacks.change = change;
    repost_open(&w, seed);
    for (uint64_t i = 0; i < steps; i++)
        step();
    for (int i = 0; i < w.rails; i++) {
        fake_rail_down(w.a.rail[i], 0);
        set_faults(&w, &w.a, i, NULL);
        set_faults(&w, &w.b, i, NULL);
    }
    repost_stop();
    for (uint64_t end = gr_now_ns() + 30000000000u; !all_done();) {
        CHECK(gr_now_ns() < end, "30 s have passed and transfers or notifications are unfinished");
        world_events(&w);
        for (int i = 0; i < w.rails; i++)
            if (w.broken[i])
                world_fence(&w, i);
    }
    uint64_t threaded = repost_close();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].x) {
            drop_cached(slots[i].x);
            gr_xfer_free(w.a.core, slots[i].x);
        }
    world_close(&w);
    CHECK(w.bulks > steps / 100, "%lu bulks", (unsigned long)w.bulks);
    CHECK(!hungry || starved_events() > (threads ? 0 : steps / 500), "%lu events without memory", (unsigned long)starved_events());
    printf("%lu transfers well, %lu in error, %lu notifications, %lu events, %lu and %lu reposts, %lu bulks, %lu stopped, trace %016lx\n",
           (unsigned long)done_count, (unsigned long)failed_count, (unsigned long)notes_arrived(), (unsigned long)w.xfer_events,
           (unsigned long)reposts, (unsigned long)threaded, (unsigned long)w.bulks, (unsigned long)w.stops, (unsigned long)traced());
    return 0;
}
