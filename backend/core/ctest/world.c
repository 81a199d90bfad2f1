#include "world.h"

#include <errno.h>
#include <string.h>
#include <time.h>

uint64_t below(uint64_t *rng, uint64_t n)
{
    uint64_t v = n ? fake_random(rng) % n : 0;
    trace(v);
    return v;
}

static void region(const world *w, side *s, uint32_t idx, uint64_t addr, const uint64_t *keys, fake_mr *const *descs)
{
    gr_region *r = gr_region_at(s->core, idx);
    r->addr = addr;
    r->len = MEM_SIZE;
    for (int i = 0; i < w->rails; i++)
        r->rail[i] = (gr_rail_key){.key = keys ? keys[i] : 0, .base = 0, .desc = descs ? descs[i] : NULL, .ok = 1};
    gr_region_live(r, 1);
}

static void open_side(world *w, side *s, const fake_config *config, uint64_t key)
{
    const gr_core_cfg cfg = {.max_rails = WORLD_RAILS,
                             .window_min = 8 << 10,
                             .window_max = 64 << 10,
                             .spread_min = 2 << 10,
                             .batch_bytes = 3 << 10,
                             .notif_limit = 24 << 10};
    CHECK((s->core = gr_core_new(&cfg)), "%s", strerror(errno));
    if (!w->threads)
        gr_core_stop(s->core);
    CHECK((s->mem = malloc(MEM_SIZE)), "out of memory");
    for (int i = 0; i < w->rails; i++) {
        fake_config own = *config;
        own.worker = w->threads ? (uint8_t)(i % 3) : 0;
        s->rail[i] = fake_rail_open(w->fabric, &own);
        CHECK(gr_core_add_rail(s->core, (gr_rail *)s->rail[i]) == i, "add rail");
        CHECK(fake_mr_open(s->rail[i], (uintptr_t)s->mem, MEM_SIZE, key + (uint64_t)i, FAKE_PEERS_BOTH, &s->mr[i], &s->key[i]) == 0, "register");
    }
    region(w, s, LOCAL, (uintptr_t)s->mem, NULL, s->mr);
}

static void endpoints(world *w, int i)
{
    w->a.ep[i] = fake_ep_open(w->a.rail[i]);
    w->b.ep[i] = fake_ep_open(w->b.rail[i]);
    fake_ep_connect(w->a.ep[i], fake_ep_id(w->b.ep[i]), NULL);
    fake_ep_connect(w->b.ep[i], fake_ep_id(w->a.ep[i]), NULL);
}

static uint64_t link_id(const world *w, int rail) { return w->session * WORLD_RAILS + (uint64_t)rail; }

static void begin(world *w)
{
    w->session++;
    CHECK((w->a.sess = gr_sess_new(w->a.core, w->session, "b", 1)), "out of memory");
    CHECK((w->b.sess = gr_sess_new(w->b.core, w->session, "a", 1)), "out of memory");
    for (int i = 0; i < w->rails; i++) {
        endpoints(w, i);
        CHECK(gr_link_new(w->b.sess, i, 0, w->b.ep[i], link_id(w, i), link_id(w, i), GR_LINK_RX, 0, &w->b.link[i]) == 0, "link");
        CHECK(gr_link_new(w->a.sess, i, i, w->a.ep[i], link_id(w, i), link_id(w, i), GR_LINK_TX, 0, &w->a.link[i]) == 0, "link");
        w->broken[i] = 0;
        w->up[i] = 1;
    }
    w->notif_rail = 0;
    gr_sess_set_notif_link(w->a.sess, w->a.link[0]);
}

void world_open(world *w, int ordered, int rails, int threads, uint64_t seed)
{
    const int shared = !ordered && (seed & 4);
    const fake_config config = {.shared = (uint8_t)shared,
                                .ordered = (uint8_t)ordered,
                                .chained = (uint8_t)ordered,
                                .gather = seed & 1,
                                .by_processor = seed >> 1 & 1,
                                .delivery = 1,
                                .local_desc = !ordered,
                                .key_size = 8,
                                .iov_limit = ordered ? 4 : 1,
                                .tx_depth = 24,
                                .rx_depth = shared ? 128 : 40,
                                .msg_size = 1 << 20,
                                .max_msg = 1 << 30};
    memset(w, 0, sizeof *w);
    w->ordered = ordered;
    w->shared = shared;
    w->rails = rails;
    w->threads = threads;
    w->fabric = fake_fabric_new(seed);
    open_side(w, &w->a, &config, 1);
    open_side(w, &w->b, &config, 100);
    region(w, &w->a, REMOTE, (uintptr_t)w->b.mem, w->b.key, NULL);
    CHECK((w->poll_xfer = gr_xfer_new(w->b.core, 1, GR_READ, 0, -1)), "out of memory");
    atomic_store(&w->poll_xfer->state, GR_XFER_RUNNING);
    begin(w);
}

void world_progress(world *w)
{
    gr_notif_free(w->a.core, gr_notif_take(w->a.core));
    if (!w->not_receiving)
        notes_take(w->b.core);
    else
        (void)gr_check(w->b.core, w->poll_xfer, 1);
}

/* Waits until the posted operations have completed. On a shared endpoint they cannot be cancelled. */
static void drain(world *w, side *s, int i)
{
    gr_link_stats st;
    uint64_t end = gr_now_ns() + 30000000000u;
    while (gr_link_stats_get(s->link[i], &st), st.inflight_ops) {
        CHECK(gr_now_ns() < end, "30 s have passed and %u operations have not ended", st.inflight_ops);
        world_progress(w);
    }
}

static void quiesce(world *w, side *s, int i)
{
    gr_link_stats st;
    gr_link_stop(s->link[i]);
    gr_link_stop(s->link[i]); /* repeated calls are safe */
    gr_link_stats_get(s->link[i], &st);
    CHECK(st.state != GR_LINK_STATE_UP && st.state != GR_LINK_STATE_PROBING, "a stopped link may still post on a closing endpoint");
    if (w->shared) {
        drain(w, s, i);
        return;
    }
    if (s->ep[i])
        fake_ep_close(s->ep[i]);
    s->ep[i] = NULL;
    gr_link_reap(s->link[i]);
    gr_link_stats_get(s->link[i], &st);
    CHECK(st.inflight_ops == 0 && st.inflight_bytes == 0, "%u operations, %lu bytes in flight after reap", st.inflight_ops,
          (unsigned long)st.inflight_bytes);
}

static int other_up(const world *w, int rail)
{
    for (int i = 0; i < w->rails; i++)
        if (i != rail && w->up[i] && !w->broken[i])
            return i;
    return -1;
}

void world_fence(world *w, int rail)
{
    uint64_t handed, next;
    w->callbacks.change();
    quiesce(w, &w->a, rail);
    quiesce(w, &w->b, rail);
    if (w->shared)
        gr_link_finalize(w->a.link[rail]);
    do
        world_events(w);
    while (next = gr_sess_next_seq(w->b.sess, &handed), handed != w->order.handled);
    uint64_t have[256];
    gr_proof none = {0}, proof = {next > w->order.next ? next : w->order.next, have, assembler_have(&w->order, have, 256)};
    if (w->shared)
        proof = none;
    w->broken[rail] = 0;
    int other = other_up(w, rail);
    if (other >= 0) {
        if (w->notif_rail == rail) {
            w->notif_rail = other;
            gr_sess_set_notif_link(w->a.sess, w->a.link[other]);
        }
        gr_link_hand_back(w->a.link[rail], &proof);
    }
    if (!w->shared)
        endpoints(w, rail);
    CHECK(gr_link_rebind(w->b.link[rail], w->b.ep[rail], 0, &none, 0) == 0, "rebind");
    w->up[rail] = other < 0;
    CHECK(gr_link_rebind(w->a.link[rail], w->a.ep[rail], 0, &proof, other >= 0) == 0, "rebind");
}

/* A notification for a link that has just died ends at once. */
static void notify_dead(const world *w, side *s)
{
    for (int i = 0; s == &w->a && i < w->rails; i++)
        CHECK(gr_notify(s->link[i], "late", 4) == 0, "refused");
}

static void end(world *w, side *s, int err)
{
    for (int i = 0; i < w->rails; i++)
        quiesce(w, s, i);
    for (int i = 0; w->shared && i < w->rails; i++) {
        gr_link_reap(s->link[i]);
        fake_ep_close(s->ep[i]);
        s->ep[i] = NULL;
    }
    for (int i = 0; i < w->rails; i++)
        gr_link_fail(s->link[i], err);
    notify_dead(w, s);
    for (int i = 0; i < 1000 && gr_sess_queued(s->sess) != 0; i++) { /* another thread may still hold the last messages */
        struct timespec delay = {.tv_nsec = 1000000};
        nanosleep(&delay, NULL);
    }
    CHECK(gr_sess_queued(s->sess) == 0, "%lu bytes still count as queued", (unsigned long)gr_sess_queued(s->sess));
    for (int i = 0; i < w->rails; i++) {
        gr_tally t;
        gr_link_tally(s->link[i], &t);
        for (int k = 0; k < GR_N_COUNT; k++)
            s->freed_links[i].count[k] += t.count[k];
        gr_link_free(s->link[i]);
    }
}

/* Checks that a rail has counted what its links counted, except the receives of a shared endpoint, and that nothing is in
 * flight. */
static void tally(const world *w, const side *s, int i)
{
    gr_tally t;
    gr_rail_tally(s->core, i, &t);
    CHECK(t.links == 0 && t.inflight == 0, "%u links, %lu bytes in flight", t.links, (unsigned long)t.inflight);
    for (int k = 0; k < GR_N_COUNT; k++)
        CHECK(t.count[k] == s->freed_links[i].count[k] || (w->shared && k == GR_N_COMPLETIONS), "counter %d: %lu, its links %lu", k,
              (unsigned long)t.count[k], (unsigned long)s->freed_links[i].count[k]);
    CHECK(t.count[GR_N_RETRIES] <= t.count[GR_N_WRS] + t.count[GR_N_MSGS_SENT], "more retries than posts");
}

void world_restart(world *w, int err)
{
    w->callbacks.change();
    end(w, &w->a, err);
    end(w, &w->b, err);
    world_events(w);
    gr_sess_free(w->a.sess);
    gr_sess_free(w->b.sess);
    assembler_clear(&w->order);
    begin(w);
}

void world_close(world *w)
{
    side *sides[2] = {&w->a, &w->b};
    for (int i = 0; i < 2; i++)
        end(w, sides[i], -3);
    world_events(w);
    assembler_clear(&w->order);
    gr_xfer_free(w->b.core, w->poll_xfer);
    for (int i = 0; i < 2; i++) {
        side *s = sides[i];
        gr_sess_free(s->sess);
        gr_core_stop(s->core);
        for (int k = 0; k < w->rails; k++)
            tally(w, s, k);
        gr_core_drop_rails(s->core);
        for (int k = 0; k < w->rails; k++) {
            fake_counters n;
            fake_rail_counters(s->rail[k], &n);
            w->bulks += n.bulks;
            w->stops += n.stops;
            fake_mr_close(s->rail[k], s->mr[k]);
            CHECK(fake_rail_close(s->rail[k]) == 0, "endpoints or regions are left open");
        }
        gr_core_free(s->core);
        free(s->mem);
    }
    CHECK(fake_fabric_free(w->fabric) == 0, "rails are left open");
}
