/* The state of a link, its contexts of posted operations, its credits and its window. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The provider refused a post. -EAGAIN: the post is tried again later. Other errors end the use of this endpoint. */
void link_refused(gr_link *link, int rc)
{
    if (rc != -EAGAIN) {
        link_count(link, GR_N_REFUSED, 1);
        link_error(link, -rc);
        return;
    }
    link->rail->starved = 1;
    link_count(link, GR_N_EAGAIN, 1);
}

/* Stops all posts on the link. Its endpoint may be closed from now on. */
void link_halt(gr_link *link)
{
    if (link->state == LINK_UP || link->state == LINK_PROBING)
        link->state = LINK_STOPPED;
    link->ep.reported = 1;
    sub_evict_idle(link);
}

/* A link has failed, and with it the rail for this peer: the first failure of its endpoint. Stops all posts and reports the error to Go. */
void link_error(gr_link *link, int err)
{
    if (link->ep.reported)
        return;
    link_halt(link);
    gr_event ev = {.kind = GR_EV_LINK, .code = err, .id = link->id, .seq = link->ep.epoch};
    core_event(link->rail->core, &ev, &link->owed, NULL);
}

/* ---- Contexts of posted operations. */

/* Takes a context for one operation of the link. NULL without memory. */
ctx *ctx_new(rail_st *rail, gr_link *link, int kind)
{
    ctx *c = rail->mem.free_ctx;
    if (c)
        rail->mem.free_ctx = c->next;
    else if (!(c = GR_ALLOC(core_ctx, malloc(sizeof *c)))) {
        rail->starved = 1; /* the thread tries again */
        return NULL;
    }
    memset(c, 0, sizeof *c);
    c->link = link;
    c->kind = kind;
    c->next = link->ep.posted;
    if (c->next)
        c->next->prev = c;
    link->ep.posted = c;
    return c;
}

static void ctx_unlink(ctx **head, ctx *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        *head = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

/* Orphans the context: its link no longer waits for it, but the library may still use it. */
void ctx_orphan(rail_st *rail, ctx *c)
{
    ctx_unlink(&c->link->ep.posted, c);
    c->kind = CTX_ORPHAN;
    c->prev = NULL;
    c->next = rail->mem.orphans;
    if (c->next)
        c->next->prev = c;
    rail->mem.orphans = c;
}

void ctx_done(rail_st *rail, ctx *c)
{
    ctx_unlink(c->kind == CTX_ORPHAN ? &rail->mem.orphans : &c->link->ep.posted, c);
    c->next = rail->mem.free_ctx;
    rail->mem.free_ctx = c;
}

/* ---- Credits. Each message that takes one of the peer's receives has a slot: a number of its link. The sender may have RX_BUFS
 * slots open, counted from the first slot that the peer has not acknowledged.
 * A CREDIT carries the number of slots that the peer has taken in, in total. So a lost or repeated CREDIT does no harm. A
 * failed SEND keeps its slot for the next message of any kind. The peer counts a slot once. */

_Static_assert(RX_BUFS == 32, "a slot is a bit of 32");

enum { MAX_REPEATS = 256 /* repeated slots without new ones between; a failed SEND may have arrived, and its slot then comes again */ };

/* The slot of the next message. Valid only if credits are left. */
uint32_t slot_next(const gr_link *link)
{
    return link->credit.failed ? link->credit.acked + (uint32_t)__builtin_ctz(link->credit.failed) : link->credit.next;
}

/* The slot for a probe, which may always go out. Without credits a probe reuses the slot of the last message. Earlier
 * messages have completed by then, so a receive is posted for the probe. */
uint32_t slot_probe(const gr_link *link) { return credits_left(link) ? slot_next(link) : link->credit.next - 1; }

/* Marks the slot used by a posted message. 0: an earlier message has used the slot, and this message takes no credit. */
int slot_use(gr_link *link, uint32_t slot)
{
    uint32_t bit = slot - link->credit.acked;
    if (slot == link->credit.next && bit < RX_BUFS) {
        link->credit.next++;
        return 1;
    }
    if (bit >= RX_BUFS || !(link->credit.failed & UINT32_C(1) << bit))
        return 0;
    link->credit.failed &= ~(UINT32_C(1) << bit);
    return 1;
}

void slot_failed(gr_link *link, uint32_t slot)
{
    uint32_t bit = slot - link->credit.acked;
    if (bit < RX_BUFS) /* else the peer has acknowledged the message */
        link->credit.failed |= UINT32_C(1) << bit;
}

/* The peer has acknowledged all slots below this one. */
int slots_acked(gr_link *link, uint32_t below)
{
    int32_t n = (int32_t)(below - link->credit.acked);
    if (n <= 0) /* a later CREDIT came first */
        return 0;
    if ((uint32_t)n > link->credit.next - link->credit.acked)
        return -EBADMSG;
    link->credit.acked = below;
    link->credit.failed = n < RX_BUFS ? link->credit.failed >> n : 0;
    return 0;
}

/* A message has arrived under the slot. -EBADMSG: the peer had no credit for the slot. The peer's credits are those of the
 * last CREDIT sent, whatever was taken in since. Credits held back keep a peer from filling our memory. */
int slot_taken(gr_link *link, uint32_t slot)
{
    int64_t at = (int32_t)(slot - (uint32_t)link->credit.taken);
    /* limit:credits */
    if ((int32_t)(slot - link->credit.granted) >= RX_BUFS || at >= RX_BUFS || at < -(int64_t)link->credit.taken)
        return -EBADMSG;
    if (at < 0 || link->credit.seen & UINT32_C(1) << at)
        return link->credit.repeats++ < MAX_REPEATS ? 0 : -EBADMSG;
    link->credit.repeats -= link->credit.repeats != 0;
    link->credit.seen |= UINT32_C(1) << at;
    for (; link->credit.seen & 1; link->credit.seen >>= 1)
        link->credit.taken++;
    return 0;
}

/* Resets the credits: both ends have new endpoints. */
void credits_reset(gr_link *link)
{
    link->credit.next = link->credit.acked = link->credit.failed = 0;
    link->credit.taken = 0;
    link->credit.seen = link->credit.granted = link->credit.repeats = 0;
    link->credit.resend = 0;
}

/* ---- The window: bytes that a link may have in flight. */

/* A small transfer is posted on the link. */
void link_small_posted(gr_link *link, uint64_t now)
{
    link->win.small_ns = now;
    if (link_shares_thread(link))
        atomic_store_explicit(&link->sess->small_ns, now, memory_order_relaxed);
}

enum { SMALL_IDLE_NS = 10000000 };
int link_beside_small(const gr_link *link, uint64_t least)
{
    uint64_t last = link_smalls(link), now = core_tick(link->rail->core); /* may be old */
    return last && (int64_t)((now > least ? now : least) - last) <= SMALL_IDLE_NS;
}

uint64_t link_limited(gr_link *link, int several)
{
    uint64_t most = link_small_window(link, several);
    if (link_beside_small(link, 0))
        return link->win.size < most ? link->win.size : most;
    link->win.small_ns = 0; /* so that link_most need not look at the time */
    if (link_shares_thread(link))
        atomic_store_explicit(&link->sess->small_ns, 0, memory_order_relaxed);
    return link->win.size;
}

uint64_t link_window(const gr_link *link, uint64_t bytes)
{
    const gr_core_cfg *cfg = &link->rail->core->cfg;
    uint64_t least = link->rail->dev->limit.window_min;
    if (least < cfg->window_min)
        least = cfg->window_min;
    if (bytes < least)
        bytes = least;
    return bytes < cfg->window_max ? bytes : cfg->window_max;
}

enum { MEASURE_NS = 2000000, WINDOW_NS = 4000000 };

/* The window for the measured rate: what it moves in WINDOW_NS, or in the rail's own time if that is less. That keeps a rail busy, and
 * drains within a deadline. In a round trip it grows by its time over the trip's, so two more trips keep a long link busy,
 * and one work request more, since a window below two of them lets one in flight: 20 ms of round trip took a quarter of 1 Gbit/s.
 * The endpoint of a link that is not up may be closed. */
static uint64_t window_wanted(const gr_link *link)
{
    gr_rail *dev = link->rail->dev;
    uint64_t own = dev->limit.window_ns, time = own && own < WINDOW_NS ? own : WINDOW_NS;
    uint64_t trips = dev->ops->round_trip && link->state == LINK_UP ? 2 * dev->ops->round_trip(dev, link->ep.handle) : 0;
    uint64_t more = trips > time ? dev->limit.max_msg : 0;
    return (uint64_t)((double)link->win.rate * (double)(time + trips) / 1e9) + more;
}

/* Measures the rate. While the window limits the link, the window follows the rate (window_wanted), at most doubled a step. With a
 * time of 4 ms it settles on loopback near 16 MiB, on a 1 Gbit/s link near 480 KiB. */
void link_measure(gr_link *link, uint64_t bytes)
{
    uint64_t now = rail_now(link->rail);
    int coarse = link->rail->coarse_clock;
    if (link->win.meas_ns == 0) { /* idle before: starts a new measurement */
        link->win.meas_ns = coarse ? gr_now_ns() : now;
        link->win.meas_bytes = 0;
        return;
    }
    link->win.meas_bytes += bytes;
    if (coarse && (int64_t)(now - link->win.meas_ns) >= MEASURE_NS)
        now = gr_now_ns();
    int64_t dt = (int64_t)(now - link->win.meas_ns);
    if (dt < MEASURE_NS) {
        if (link->ep.ops == 0)
            link->win.meas_ns = 0;
        return;
    }
    uint64_t rate = (uint64_t)((double)link->win.meas_bytes * 1e9 / (double)dt);
    link->win.rate = link->win.rate ? (link->win.rate * 3 + rate) / 4 : rate;
    if (link->win.limited) { /* else the rate shows the demand, not the link's speed */
        atomic_store_explicit(&link->win.rate_pub, link->win.rate, memory_order_relaxed);
        uint64_t w = window_wanted(link);
        if (w > link->win.size * 2)
            w = link->win.size * 2;
        link->win.size = link_window(link, w);
    }
    link->win.limited = 0;
    link->win.meas_ns = link->ep.ops ? now : 0;
    link->win.meas_bytes = 0;
}
