/* What chance seldom brings about, step by step. */
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "msg_wire.h"
#include "pause.h"
#include "world.h"

void (*gr_pause)(int where);

static world w;
static _Atomic int32_t *failing;

static void ended(world *unused, uint64_t handle, int code)
{
    (void)unused;
    CHECK(!code, "transfer %lu ended with %d", (unsigned long)handle, code);
}

static void failed(world *unused, uint64_t handle, int code)
{
    (void)unused;
    CHECK(handle == 1 && code, "transfer %lu ended with %d", (unsigned long)handle, code);
    atomic_store(failing, code);
}

static void came_up(gr_link *link) { (void)link; }
static void change(void) {}

static void open_world(int ordered, int rails, uint64_t seed)
{
    world_open(&w, ordered, rails, 0, seed);
    w.ended = ended;
    w.came_up = came_up;
    w.change = change;
}

static void progress(void)
{
    world_progress(&w);
    world_events(&w);
}

/* Progress until it is so. */
#define UNTIL(cond)                                                                   \
    for (uint64_t end_ = gr_now_ns() + 60000000000u; !(cond); progress())             \
        CHECK(gr_now_ns() < end_, "a minute has passed")

/* A WRITE of one operation, in a place of its own. */
static gr_xfer *write_of(uint64_t handle, uint64_t len)
{
    uint64_t at = handle % SLOTS * SLOT_SIZE;
    gr_xfer *x = gr_xfer_new(w.a.core, handle, GR_WRITE, 1);
    CHECK(x, "out of memory");
    x->ops[0] = (gr_op){.local = (uintptr_t)w.a.mem + at, .remote = (uintptr_t)w.b.mem + at, .len = len, .lregion = LOCAL, .rregion = REMOTE};
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
    open_world(1, 2, 0);
    joins = write_of(SLOTS, 4096);
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
    UNTIL(!running(joins) && notes_all());
    CHECK(memcmp(w.a.mem, w.b.mem, 4096) == 0, "the bytes differ");
    gr_xfer_free(w.a.core, joins);
    world_close(&w);
}

/* ---- credits where peers share an endpoint: nothing is made anew after an error ---- */

enum { SHARED_SEED = 4, RX = 32, BATCH = 8 /* receives, and how many of them come back at a time */ };

static void mend(void)
{
    for (int i = 0; i < w.rails; i++)
        if (w.broken[i])
            world_fence(&w, i);
}

static uint32_t credits(int rail)
{
    gr_link_stats st;
    gr_link_stats_get(w.a.link[rail], &st);
    return st.credits;
}

/* Of six SENDs one fails, of either side; half of those that fail have arrived. */
static void lost_sends(void)
{
    enum { TRANSFERS = 10000, AT_ONCE = 12 };
    const fake_script lossy = {.fail_sends = 6, .fail_lands = 1, .fail_errno = EIO, .seed = 5}, fine = {0};
    gr_xfer *x[AT_ONCE] = {0};
    uint64_t note[AT_ONCE], done = 0, posted = 0;
    open_world(0, 1, SHARED_SEED);
    fake_rail_script(w.a.rail[0], &lossy);
    fake_rail_script(w.b.rail[0], &lossy);
    for (uint64_t end = gr_now_ns() + 60000000000u; done < TRANSFERS; mend()) {
        CHECK(gr_now_ns() < end, "a minute has passed, %lu transfers are done", (unsigned long)done);
        for (uint64_t i = 0; i < AT_ONCE; i++) {
            if (x[i] && !running(x[i])) {
                CHECK(atomic_load(&x[i]->state) == 0, "state %d", x[i]->state);
                note_must(note[i], w.session);
                gr_xfer_free(w.a.core, x[i]);
                x[i] = NULL;
                done++;
            }
            if (!x[i] && posted < TRANSFERS) {
                x[i] = write_of(posted++, 4096);
                post(x[i], w.a.link, 1, &note[i]);
            }
        }
        progress();
    }
    fake_rail_script(w.a.rail[0], &fine);
    fake_rail_script(w.b.rail[0], &fine);
    UNTIL((mend(), notes_all()));
    UNTIL((mend(), credits(0) > RX - BATCH));
    world_close(&w);
}

/* It may be that nothing is left to send a probe with: it comes back all the same. */
static void probe_without_credit(void)
{
    const fake_script fails = {.fail_at = 1, .fail_errno = EIO};
    uint64_t rng = 9, id;
    uint32_t len;
    open_world(0, 2, SHARED_SEED);
    for (int i = 0; i < 40; i++) { /* SENDs that are lost */
        char *body = note_new(w.session, 1, &rng, &len, &id);
        fake_rail_script(w.a.rail[0], &fails);
        CHECK(gr_notify(w.a.link[0], body, len) == 0, "refused");
        note_must(id, w.session);
        free(body);
        UNTIL(w.broken[0]);
        world_fence(&w, 0);
        UNTIL(w.up[0]);
        UNTIL(notes_all());
        w.home = 0;
        gr_sess_home(w.a.sess, w.a.link[0]);
    }
    w.deaf = 1; /* credits that do not come back: nobody takes what was sent */
    for (int i = 0; credits(0); i++) {
        char *body = note_new(w.session, 1, &rng, &len, &id);
        int rc = gr_notify(w.a.link[0], body, len);
        CHECK(rc == 0 || rc == -EAGAIN, "%d", rc);
        free(body);
        progress();
        CHECK(i < 10000, "there is no end of credits");
    }
    fake_rail_script(w.a.rail[0], &fails);
    gr_xfer *x = write_of(1, 4096);
    atomic_store(&x->state, GR_XFER_RUNNING);
    w.ended = failed;
    failing = &x->state;
    gr_xfer_post(w.a.core, x, w.a.link, 1, 0, 0, NULL, 0);
    UNTIL(w.broken[0]);
    world_fence(&w, 0);
    UNTIL(w.up[0]);
    CHECK(!credits(0), "credits have come back: this shows nothing");
    UNTIL(!running(x));
    gr_xfer_free(w.a.core, x);
    w.deaf = 0;
    UNTIL(credits(0) > RX - BATCH);
    world_close(&w);
}

/* ---- a peer that sends more than it has credits for ---- */

static fake_rail *stranger_rail;
static fake_ep *stranger;

static void send_raw(uint32_t slot, uint64_t seq)
{
    static struct { header h; char body[5]; } m[1024];
    static gr_ctx ctx[1024];
    static int n;
    gr_comp comp[16];
    int i = n++ % 1024;
    m[i].h = (header){.magic = MAGIC, .version = VERSION, .kind = KIND_NOTIF, .parts = 1, .total = 5, .seq = seq, .count = slot, .to = 77};
    gr_rail *dev = (gr_rail *)stranger_rail;
    gr_rail_lock(dev);
    CHECK(fake_ops.send(dev, stranger, &m[i], HDR + 5, NULL, 1, &ctx[i]) == 0, "send");
    gr_rail_unlock(dev);
    for (int k = 0; k < 4; k++) {
        progress();
        gr_rail_lock(dev);
        (void)fake_ops.poll(dev, comp, 16);
        gr_rail_unlock(dev);
    }
}

/* What slots do to a link of its own, at an endpoint that others use, too; how many messages were taken. */
static uint64_t taken(const uint32_t *slots, int n)
{
    gr_link *link;
    gr_link_stats st;
    gr_tally t;
    gr_sess *sess = gr_sess_new(w.b.core, 1000, "x", 1);
    fake_ep *ep = fake_ep_open(w.b.rail[0]);
    CHECK(sess && gr_link_new(sess, 0, 0, ep, 77, 78, GR_LINK_RX, 0, &link) == 0, "link");
    stranger = fake_ep_open(stranger_rail);
    fake_ep_connect(stranger, fake_ep_id(w.b.ep[0]));
    fake_ep_connect(ep, fake_ep_id(stranger));
    for (int i = 0; i < n; i++)
        send_raw(slots[i], 1000000 + (uint64_t)i); /* out of order: handed on, and not ours to take */
    gr_link_stats_get(link, &st);
    gr_link_tally(link, &t);
    CHECK((st.state == GR_LINK_STATE_UP) == (t.count[GR_N_MSGS_RECEIVED] == (uint64_t)n), "state %d", st.state);
    gr_link_stop(link);
    gr_link_reap(link);
    fake_ep_close(ep);
    fake_ep_close(stranger);
    for (int k = 0; k < GR_N_COUNT; k++)
        w.b.gone[0].count[k] += t.count[k];
    gr_link_fail(link, -3);
    gr_link_free(link);
    gr_sess_free(sess);
    return t.count[GR_N_MSGS_RECEIVED];
}

static void too_many(void)
{
    const fake_config config = {.delivery = 1, .key_size = 8, .iov_limit = 1, .tx_depth = 600, .rx_depth = 64, .msg_size = 4096, .max_msg = 4096};
    uint32_t slots[1000];
    uint64_t rng = 3, id;
    open_world(0, 1, SHARED_SEED);
    stranger_rail = fake_rail_open(w.fabric, &config);
    const uint32_t before = w.b.rail[0]->hub->rx_out;
    for (uint32_t i = 0; i < 1000; i++)
        slots[i] = i;
    CHECK(taken(slots, 1000) == 1000, "all in turn");
    slots[0] = 31, slots[31] = 0;
    CHECK(taken(slots, 32) == 32, "in another order");
    slots[0] = 32;
    CHECK(taken(slots, 1) == 0, "beyond its credits");
    slots[0] = 31, slots[1] = 32;
    CHECK(taken(slots, 2) == 1, "beyond its credits: the first is missing");
    slots[0] = UINT32_MAX;
    CHECK(taken(slots, 1) == 0, "before the first");
    memset(slots, 0, sizeof slots);
    CHECK(taken(slots, 20) == 20, "one that came again");
    CHECK(taken(slots, 1000) < 300, "and no end of it");
    for (int i = 0; i < 200; i++) { /* whom that was none of */
        uint32_t len;
        char *body = note_new(w.session, 1, &rng, &len, &id);
        while (gr_notify(w.a.link[0], body, len) != 0)
            progress();
        note_must(id, w.session);
        free(body);
    }
    UNTIL(notes_all());
    CHECK(w.b.rail[0]->hub->rx_out == before, "%u receives, %u before", w.b.rail[0]->hub->rx_out, before);
    CHECK(!w.broken[0], "a link of somebody else has failed");
    fake_rail_close(stranger_rail);
    world_close(&w);
}

int scenario(const char *name)
{
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"late_join", late_join}, {"lost_sends", lost_sends}, {"probe_without_credit", probe_without_credit}, {"too_many", too_many},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(all[i].name, name)) {
            all[i].run();
            return 0;
        }
    CHECK(0, "no scenario %s", name);
}
