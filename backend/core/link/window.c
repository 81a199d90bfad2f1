/* The window: bytes that a link may have in flight. */
#include "link.h"

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
