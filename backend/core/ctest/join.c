/* Links that come up: one joins a transfer at the moment when its only sub-transfer leaves, with the notification still in flight. And links that progress must look at again. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "control.h"
#include "scenario.h"

void (*gr_pause)(int where);

/* Relaxed: they order the two threads, but show the sanitizer no ordering that the core itself does not provide. */
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

/* Posts a WRITE with a notification on one link, which stalls. The other link was down at the post, and is up again. */
static gr_xfer *post_on_one(void)
{
    uint64_t note;
    gr_xfer *x = write_of(SLOTS, 4096);
    memset(w.a.mem, 7, 4096);
    fake_rail_stall(w.b.rail[0], 1);
    gr_link_stop(w.a.link[1]); /* so that the other link takes the WRITE */
    post(x, w.a.link, 2, &note);
    note_require(note, w.session);
    const gr_proof none = {0};
    CHECK(gr_link_rebind(w.a.link[1], w.a.ep[1], 0, &none, 0) == 0, "rebind");
    return x;
}

static void end_well(gr_xfer *x)
{
    UNTIL(!running(x) && notes_all());
    CHECK(memcmp(w.a.mem, w.b.mem, 4096) == 0, "the bytes differ");
    gr_xfer_free(w.a.core, x);
    world_close(&w);
}

/* A link comes up twice while another thread holds the rail on which its counts must go back. */
void join_twice(void)
{
    scene(1, 2, 0);
    gr_xfer *x = post_on_one();
    gr_rail_lock((gr_rail *)w.a.rail[0]);
    gr_xfer_join(w.a.core, x, w.a.link[1]);
    gr_xfer_join(w.a.core, x, w.a.link[1]);
    CHECK(atomic_load(&x->subs_left) == 3, "%u sub-transfers", x->subs_left);
    gr_rail_unlock((gr_rail *)w.a.rail[0]);
    CHECK(atomic_load(&x->subs_left) == 1, "%u sub-transfers", x->subs_left);
    fake_rail_stall(w.b.rail[0], 0);
    end_well(x);
}

void late_join(void)
{
    pthread_t thread;
    fake_script slow = {.per_poll = 1};
    scene(1, 2, 0);
    fake_rail_script(w.a.rail[0], &slow);
    joins = post_on_one();
    gr_pause = pause_join;
    CHECK(pthread_create(&thread, NULL, join, w.a.link[1]) == 0, "thread");
    wait_for(&joining);
    CHECK(atomic_load(&joins->subs_left) == 2, "%u sub-transfers", joins->subs_left);
    fake_rail_stall(w.b.rail[0], 0);
    while (atomic_load(&joins->subs_left) == 2) /* one operation: the WRITE */
        progress();
    fake_rail_stall(w.b.rail[0], 1);
    CHECK(running(joins), "the notification is already sent");
    atomic_store_explicit(&go_on, 1, memory_order_relaxed);
    wait_for(&joined);
    fake_rail_stall(w.b.rail[0], 0);
    for (int i = 0; i < 100; i++)
        progress();
    pthread_join(thread, NULL);
    gr_pause = NULL;
    end_well(joins);
}

/* A transfer waits on a link that has sent its probe. Progress does not look at the link, until it is up: then it posts more than fits at once. */
void probed_with_work(void)
{
    enum { OPS = 64, EACH = SLOT_SIZE / OPS };
    uint64_t note;
    scene(0, 2, 0);
    world_fence(&w, 0);
    gr_xfer *x = gr_xfer_new(w.a.core, SLOTS, GR_WRITE, OPS, -1);
    CHECK(x, "out of memory");
    for (uint64_t i = 0; i < OPS; i++) { /* the last first, so that they are not joined */
        uint64_t at = (OPS - 1 - i) * EACH;
        x->ops[i] = (gr_op){.local = (uintptr_t)w.a.mem + at, .remote = (uintptr_t)w.b.mem + at, .len = EACH, .lregion = LOCAL, .rregion = REMOTE};
    }
    x->bytes = SLOT_SIZE;
    memset(w.a.mem, 7, SLOT_SIZE);
    post(x, w.a.link, 1, &note);
    note_require(note, w.session);
    for (int i = 0; i < 10; i++)
        world_progress(&w); /* without the event that the probe was answered */
    gr_link_stats st;
    gr_link_stats_get(w.a.link[0], &st);
    CHECK(st.state == GR_LINK_STATE_PROBING && st.queued_subs == 1, "state %d, %lu waiting", (int)st.state, (unsigned long)st.queued_subs);
    end_well(x);
}

/* Receives that the fabric refuses on an idle link are posted later: progress looks at the link (check_busy). */
void refused_receives(void)
{
    enum { MANY = 100 };
    const fake_script refuses = {.recv_errno = EAGAIN};
    uint64_t rng = 5, id;
    uint32_t len;
    scene(0, 1, 0);
    for (int i = 0; i < MANY; i++) {
        char *body = note_new(w.session, 1, &rng, &len, &id);
        fake_rail_script(w.b.rail[0], &refuses);
        CHECK(gr_notify(w.a.link[0], body, len) == 0, "refused");
        note_require(id, w.session);
        free(body);
        UNTIL(notes_all());
    }
    world_close(&w);
}
