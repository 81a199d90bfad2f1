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
