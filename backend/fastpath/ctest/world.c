#include "world.h"

#include <errno.h>
#include <string.h>
#include <time.h>

uint64_t below(uint64_t *rng, uint64_t n)
{
    return n ? fake_random(rng) % n : 0;
}

static void region(side *s, uint32_t idx, uint64_t addr, uint64_t key, void *desc)
{
    gr_region *r = gr_region_at(s->core, idx);
    r->addr = addr;
    r->len = SLOTS * SLOT_SIZE;
    r->rail[0] = (gr_rkey){.key = key, .base = 0, .desc = desc, .ok = 1};
    gr_region_live(r, 1);
}

static void open_side(world *w, side *s, const fake_config *config, uint64_t key)
{
    const gr_core_cfg cfg = {.max_rails = 2, .window_min = 8 << 10, .window_max = 64 << 10, .window_ns = 4000000,
                             .spin_ns = 20000, .notif_limit = 24 << 10};
    CHECK((s->core = gr_core_new(&cfg)), "%s", strerror(errno));
    if (!w->threads)
        gr_core_stop(s->core);
    s->rail = fake_rail_open(w->fabric, config);
    CHECK(gr_core_add_rail(s->core, (gr_rail *)s->rail) == 0, "add rail");
    CHECK((s->mem = malloc(SLOTS * SLOT_SIZE)), "out of memory");
    CHECK(fake_mr_open(s->rail, (uintptr_t)s->mem, SLOTS * SLOT_SIZE, key, &s->mr, &s->key) == 0, "register");
    region(s, LOCAL, (uintptr_t)s->mem, 0, s->mr);
}

static void endpoints(world *w)
{
    w->a.ep = fake_ep_open(w->a.rail);
    w->b.ep = fake_ep_open(w->b.rail);
    fake_ep_connect(w->a.ep, fake_ep_id(w->b.ep));
    fake_ep_connect(w->b.ep, fake_ep_id(w->a.ep));
}

static void begin(world *w)
{
    w->session++;
    endpoints(w);
    CHECK((w->a.sess = gr_sess_new(w->a.core, w->session, "b", 1)), "out of memory");
    CHECK((w->b.sess = gr_sess_new(w->b.core, w->session, "a", 1)), "out of memory");
    CHECK(gr_link_new(w->b.sess, 0, 0, w->b.ep, w->session, GR_LINK_RX, &w->b.link) == 0, "link");
    CHECK(gr_link_new(w->a.sess, 0, 0, w->a.ep, w->session, GR_LINK_TX, &w->a.link) == 0, "link");
    w->broken = 0;
}

void world_open(world *w, int ordered, int threads, uint64_t seed)
{
    const fake_config config = {.ordered = (uint8_t)ordered, .chained = (uint8_t)ordered, .delivery = 1, .local_desc = !ordered, .key_size = 8,
                                .iov_limit = ordered ? 4 : 1, .tx_depth = 24, .rx_depth = 40, .msg_size = 1 << 20, .max_msg = 1 << 30};
    memset(w, 0, sizeof *w);
    w->ordered = ordered;
    w->threads = threads;
    w->fabric = fake_fabric_new(seed);
    open_side(w, &w->a, &config, 1);
    open_side(w, &w->b, &config, 2);
    region(&w->a, REMOTE, (uintptr_t)w->b.mem, w->b.key, NULL);
    begin(w);
}

static void quiesce(side *s)
{
    gr_link_stop(s->link);
    gr_link_stop(s->link); /* again does no harm */
    if (s->ep)
        fake_ep_close(s->ep);
    s->ep = NULL;
    gr_link_reap(s->link);
    gr_link_stats st;
    gr_link_stats_get(s->link, &st);
    CHECK(st.inflight_ops == 0 && st.inflight_bytes == 0, "%u operations, %lu bytes in flight after reap", st.inflight_ops,
          (unsigned long)st.inflight_bytes);
}

static void handle(world *w, side *s, gr_event *ev)
{
    switch (ev->kind) {
    case GR_EV_XFER:
        w->xfer_events++;
        w->ended(w, ev->id, ev->code);
        break;
    case GR_EV_LINK:
        if (ev->id == w->session)
            w->broken = 1;
        break;
    case GR_EV_MSG:
        if (ev->id == w->session)
            assembler_add(&w->order, s->sess, ev);
        break;
    }
    free(ev->data);
}

void world_events(world *w)
{
    side *sides[2] = {&w->a, &w->b};
    gr_event ev[16];
    for (int i = 0; i < 2; i++)
        for (int n; (n = gr_events_take(sides[i]->core, ev, 16)) > 0;)
            for (int k = 0; k < n; k++)
                handle(w, sides[i], &ev[k]);
}

void world_fence(world *w)
{
    uint64_t handed, next;
    quiesce(&w->a);
    quiesce(&w->b);
    do
        world_events(w);
    while (next = gr_sess_next_seq(w->b.sess, &handed), handed != w->order.handled);
    next = next > w->order.next ? next : w->order.next;
    assembler_drop_partial(&w->order);
    w->broken = 0;
    endpoints(w);
    CHECK(gr_link_rebind(w->b.link, w->b.ep, 0) == 0, "rebind");
    CHECK(gr_link_rebind(w->a.link, w->a.ep, next) == 0, "rebind");
}

static void end(side *s, int err)
{
    quiesce(s);
    gr_link_fail(s->link, err);
    CHECK(gr_sess_queued(s->sess) == 0, "%lu bytes still count as queued", (unsigned long)gr_sess_queued(s->sess));
    gr_link_free(s->link);
}

void world_restart(world *w, int err)
{
    end(&w->a, err);
    end(&w->b, err);
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
        end(sides[i], -3);
    world_events(w);
    assembler_clear(&w->order);
    for (int i = 0; i < 2; i++) {
        side *s = sides[i];
        gr_sess_free(s->sess);
        gr_core_stop(s->core);
        gr_core_drop_rails(s->core);
        fake_mr_close(s->rail, s->mr);
        CHECK(fake_rail_close(s->rail) == 0, "endpoints or regions are left open");
        gr_core_free(s->core);
        free(s->mem);
    }
    CHECK(fake_fabric_free(w->fabric) == 0, "rails are left open");
}
