/* Tests the fake fabric itself: an ordered endpoint executes nothing behind a lost operation. Otherwise a notification
 * would arrive without its data. */
#include <errno.h>

#include "scenario.h"

typedef struct pair {
    fake_fabric *fabric;
    fake_rail *a, *b;
    fake_ep *from, *to;
    char data[8], there[8], text[8], got[8];
    fake_mr *mr;
    uint64_t key;
    gr_ctx write, send, receive;
} pair;

static gr_comp comp[4];

static int poll_rail(fake_rail *rail)
{
    gr_rail *base = (gr_rail *)rail;
    gr_rail_lock(base);
    int n = base->ops->poll(base, comp, 4);
    gr_rail_unlock(base);
    return n;
}

static void begin(pair *p)
{
    const fake_config config = {
        .ordered = 1, .gather = 1, .delivery = 1, .key_size = 8, .iov_limit = 1, .tx_depth = 8, .rx_depth = 8, .msg_size = 64, .max_msg = 64};
    *p = (pair){.fabric = fake_fabric_new(1), .data = "data", .text = "note"};
    p->a = fake_rail_open(p->fabric, &config);
    p->b = fake_rail_open(p->fabric, &config);
    p->from = fake_ep_open(p->a);
    p->to = fake_ep_open(p->b);
    fake_ep_connect(p->from, fake_ep_id(p->to), NULL);
    CHECK(fake_mr_open(p->b, (uintptr_t)p->there, sizeof p->there, 1, FAKE_PEERS_BOTH, &p->mr, &p->key) == 0, "register");
    gr_rail *b = (gr_rail *)p->b;
    gr_rail_lock(b);
    CHECK(b->ops->recv(b, p->to, p->got, sizeof p->got, NULL, &p->receive) == 0, "receive");
    gr_rail_unlock(b);
}

/* Posts a WRITE, and a message that waits for flush. The rail stays locked. */
static void post_both(pair *p)
{
    gr_rail *a = (gr_rail *)p->a;
    const gr_seg seg = {.laddr = (uintptr_t)p->data, .len = sizeof p->data, .rkey = p->key};
    gr_rail_lock(a);
    CHECK(a->ops->rma(a, p->from, GR_WRITE, 1, &seg, &p->write) == 0, "write");
    a->ops->flush(a);
    CHECK(a->ops->send(a, p->from, p->text, sizeof p->text, NULL, 1, &p->send) == 0, "send");
}

static void end(pair *p, int err)
{
    gr_rail *a = (gr_rail *)p->a;
    a->ops->flush(a);
    gr_rail_unlock(a);
    CHECK(poll_rail(p->b) == 0 && p->got[0] == 0, "the message has arrived");
    CHECK(poll_rail(p->a) == 2, "completions");
    CHECK(comp[0].ctx == &p->write && comp[0].err == err && comp[1].ctx == &p->send && comp[1].err == ECANCELED, "%d, %d", comp[0].err, comp[1].err);
    fake_ep_close(p->from);
    fake_ep_close(p->to);
    CHECK(poll_rail(p->b) == 1, "the receive");
    fake_mr_close(p->b, p->mr);
    CHECK(fake_rail_close(p->a) == 0 && fake_rail_close(p->b) == 0 && fake_fabric_free(p->fabric) == 0, "a rail, an endpoint or a region is open");
}

/* The target polls, and the WRITE fails, before the message is flushed. */
void gathered(void)
{
    const fake_script breaks = {.fail_at = 1, .fail_errno = EIO, .fail_breaks = 1};
    pair p;
    begin(&p);
    fake_rail_script(p.a, &breaks);
    post_both(&p);
    CHECK(poll_rail(p.b) == 0, "a completion");
    end(&p, EIO);
}

/* The rail goes down and comes up again before any poll. */
void down_and_up(void)
{
    pair p;
    begin(&p);
    post_both(&p);
    fake_rail_down(p.a, ENETDOWN);
    fake_rail_down(p.a, 0);
    end(&p, ENETDOWN);
}
