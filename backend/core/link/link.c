/* The state of a link: it works, or it has stopped and Go is asked. */
#include "link.h"

#include <errno.h>

/* The provider took no post: later, or never again on this endpoint. */
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

/* No more posts of any kind: its endpoint may be closed from here on. */
void link_halt(gr_link *link)
{
    if (link->state == LINK_UP || link->state == LINK_PROBING)
        link->state = LINK_STOPPED;
    link->ep.reported = 1;
    link->halted(link);
}

/* First failure: no more posts, and Go is asked what to do. */
void link_error(gr_link *link, int err)
{
    if (link->ep.reported)
        return;
    link_halt(link);
    gr_event ev = {.kind = GR_EV_LINK, .code = err, .id = link->id, .seq = link->ep.epoch};
    core_event(link->rail->core, &ev, NULL);
}
