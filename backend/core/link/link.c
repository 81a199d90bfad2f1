/* The state of a link: it works, or it has stopped and Go decides what follows. */
#include "link.h"

#include <errno.h>

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
    if (link->rail->dev->listen && !link->rail->shared && !link->ep.ops && !link->ep.refused_ns)
        link->ep.refused_ns = gr_now_ns();
}

/* Whether the endpoint has lost its connection while it was idle. Its peer accepts no other once it has heard from us
 * (gr_rail_listen), so the library dials in vain, and refuses posts meanwhile. With nothing in flight no completion tells. A
 * shared endpoint refuses posts for the sake of other peers, too. */
int link_cut(const gr_link *link)
{
    enum { CUT_NS = 100 * 1000 * 1000 };
    return link->ep.refused_ns && !link->ep.ops && link->state == LINK_UP && link->probe.received && gr_now_ns() - link->ep.refused_ns > CUT_NS;
}

/* Stops all posts on the link. Its endpoint may be closed from now on. */
void link_halt(gr_link *link)
{
    if (link->state == LINK_UP || link->state == LINK_PROBING)
        link->state = LINK_STOPPED;
    link->ep.reported = 1;
    link->halted(link);
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
