/* Credits on a shared endpoint: errors do not reset it. */
#include <errno.h>
#include <string.h>

#include "base.h"
#include "scenario.h"

enum { SHARED_SEED = 4, RX = 32, BATCH = 8 /* receives of a peer; credits that return at a time */ };

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

/* One SEND in six fails on either side. Half of the failed SENDs have arrived. */
void lost_sends(void)
{
    enum { TRANSFERS = 10000, AT_ONCE = 12 };
    const fake_script lossy = {.fail_sends = 6, .fail_lands = 1, .fail_errno = EIO, .seed = 5}, fine = {0};
    gr_xfer *x[AT_ONCE] = {0};
    uint64_t note[AT_ONCE], done = 0, posted = 0;
    scene(0, 1, SHARED_SEED);
    fake_rail_script(w.a.rail[0], &lossy);
    fake_rail_script(w.b.rail[0], &lossy);
    for (uint64_t end = gr_now_ns() + 60000000000u; done < TRANSFERS; mend()) {
        CHECK(gr_now_ns() < end, "a minute has passed, %lu transfers are done", (unsigned long)done);
        for (uint64_t i = 0; i < AT_ONCE; i++) {
            if (x[i] && !running(x[i])) {
                CHECK(atomic_load(&x[i]->state) == 0, "state %d", x[i]->state);
                note_require(note[i], w.session);
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

/* No credit may be left for a probe. The probe goes out and is answered all the same. */
void probe_without_credit(void)
{
    const fake_script fails = {.fail_at = 1, .fail_errno = EIO};
    uint64_t rng = 9, id;
    uint32_t len;
    scene(0, 2, SHARED_SEED);
    for (int i = 0; i < 40; i++) { /* SENDs that are lost */
        char *body = note_new(w.session, 1, &rng, &len, &id);
        fake_rail_script(w.a.rail[0], &fails);
        CHECK(gr_notify(w.a.link[0], body, len) == 0, "refused");
        note_require(id, w.session);
        free(body);
        UNTIL(w.broken[0]);
        world_fence(&w, 0);
        UNTIL(w.up[0]);
        UNTIL(notes_all());
        w.notif_rail = 0;
        gr_sess_set_notif_link(w.a.sess, w.a.link[0]);
    }
    w.not_receiving = 1; /* no credits come back: the receiver takes no notifications */
    for (int i = 0; credits(0); i++) {
        char *body = note_new(w.session, 1, &rng, &len, &id);
        int rc = gr_notify(w.a.link[0], body, len);
        CHECK(rc == 0 || rc == -EAGAIN, "%d", rc);
        free(body);
        progress();
        CHECK(i < 10000, "the credits do not run out");
    }
    fake_rail_script(w.a.rail[0], &fails);
    gr_xfer *x = write_of(1, 4096);
    atomic_store(&x->state, GR_XFER_RUNNING);
    failing = &x->state;
    gr_xfer_post(w.a.core, x, w.a.link, 1, 0, 0, NULL, 0);
    UNTIL(w.broken[0]);
    world_fence(&w, 0);
    UNTIL(w.up[0]);
    CHECK(!credits(0), "credits have come back, so the test proves nothing");
    UNTIL(!running(x));
    gr_xfer_free(w.a.core, x);
    w.not_receiving = 0;
    UNTIL(credits(0) > RX - BATCH);
    world_close(&w);
}

/* ---- a peer that sends more than its credits allow ---- */

static fake_rail *intruder_rail;
static fake_ep *intruder;

static void send_raw(uint32_t slot, uint64_t seq)
{
    static struct {
        header h;
        char body[5];
    } m[1024];
    static gr_ctx ctx[1024], rctx[1024];
    static char credit[1024][4096];
    static int n;
    gr_comp comp[16];
    int i = n++ % 1024;
    m[i].h = (header){.magic = MAGIC, .version = VERSION, .kind = KIND_NOTIF, .subs = 1, .total = 5, .seq = seq, .count = slot, .to = 77};
    gr_rail *dev = (gr_rail *)intruder_rail;
    gr_rail_lock(dev);
    CHECK(fake_ops.send(dev, intruder, &m[i], HDR + 5, NULL, 1, &ctx[i]) == 0, "send");
    /* Receives for CREDITs. Posts beyond the fabric's limit are refused. */
    (void)fake_ops.recv(dev, intruder, credit[i], sizeof credit[i], NULL, &rctx[i]);
    gr_rail_unlock(dev);
    for (int k = 0; k < 4; k++) {
        progress();
        gr_rail_lock(dev);
        (void)fake_ops.poll(dev, comp, 16);
        gr_rail_unlock(dev);
    }
}

/* Sends messages with the given slots to a link of its own, on an endpoint that other links share. Returns how many were
 * accepted. kept: Go does not finish handling any of them. */
static uint64_t sent(const uint32_t *slots, int n, int kept)
{
    gr_link *link;
    gr_link_stats st;
    gr_tally t;
    gr_sess *sess = gr_sess_new(w.b.core, 1000, "x", 1);
    fake_ep *ep = fake_ep_open(w.b.rail[0]);
    CHECK(sess && gr_link_new(sess, 0, 0, ep, 77, 78, GR_LINK_RX, 0, &link) == 0, "link");
    w.other_sess = kept ? NULL : sess;
    intruder = fake_ep_open(intruder_rail);
    fake_ep_connect(intruder, fake_ep_id(w.b.ep[0]), NULL);
    fake_ep_connect(ep, fake_ep_id(intruder), NULL);
    for (int i = 0; i < n; i++)
        send_raw(slots[i], 1000000 + (uint64_t)i); /* out of order: handed to Go, not for the application */
    gr_link_stats_get(link, &st);
    gr_link_tally(link, &t);
    CHECK((st.state == GR_LINK_STATE_UP) == (t.count[GR_N_MSGS_RECEIVED] == (uint64_t)n), "state %d", st.state);
    gr_link_stop(link);
    gr_link_reap(link);
    fake_ep_close(ep);
    fake_ep_close(intruder);
    for (int k = 0; k < GR_N_COUNT; k++)
        w.b.freed_links[0].count[k] += t.count[k];
    gr_link_fail(link, -3);
    gr_link_free(link);
    UNTIL((world_events(&w), 1));
    w.other_sess = NULL;
    gr_sess_free(sess);
    return t.count[GR_N_MSGS_RECEIVED];
}

static uint64_t taken(const uint32_t *slots, int n) { return sent(slots, n, 0); }

void too_many(void)
{
    const fake_config config = {.delivery = 1, .key_size = 8, .iov_limit = 1, .tx_depth = 600, .rx_depth = 64, .msg_size = 4096, .max_msg = 4096};
    uint32_t slots[1000];
    uint64_t rng = 3, id;
    scene(0, 1, SHARED_SEED);
    intruder_rail = fake_rail_open(w.fabric, &config);
    const uint32_t before = w.b.rail[0]->shared->rx_out;
    for (uint32_t i = 0; i < 1000; i++)
        slots[i] = i;
    CHECK(taken(slots, 1000) == 1000, "slots in order");
    uint64_t n = sent(slots, 1000, 1);
    CHECK(n * (5 + 64) >= 24 << 10, "the peer had credits for more than %lu", (unsigned long)n);
    CHECK(n * (5 + 64) <= (24 << 10) + (RX + BATCH) * (5 + 64), "%lu messages accepted from a peer whose credits are held back", (unsigned long)n);
    slots[0] = 31, slots[31] = 0;
    CHECK(taken(slots, 32) == 32, "slots in another order");
    slots[0] = 32;
    CHECK(taken(slots, 1) == 0, "a slot beyond the credits");
    slots[0] = 31, slots[1] = 32;
    CHECK(taken(slots, 2) == 1, "a slot beyond the credits: slot 0 is missing");
    slots[0] = UINT32_MAX;
    CHECK(taken(slots, 1) == 0, "a slot before the first");
    memset(slots, 0, sizeof slots);
    CHECK(taken(slots, 20) == 20, "a slot that repeats");
    CHECK(taken(slots, 1000) < 300, "a slot that repeats without end");
    for (int i = 0; i < 200; i++) { /* the other link must be unaffected */
        uint32_t len;
        char *body = note_new(w.session, 1, &rng, &len, &id);
        while (gr_notify(w.a.link[0], body, len) != 0)
            progress();
        note_require(id, w.session);
        free(body);
    }
    UNTIL(notes_all());
    CHECK(w.b.rail[0]->shared->rx_out == before, "%u receives, %u before", w.b.rail[0]->shared->rx_out, before);
    CHECK(!w.broken[0], "the other link has failed");
    fake_rail_close(intruder_rail);
    world_close(&w);
}
