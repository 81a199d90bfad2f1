/* What outlives its session: notifications that a link has still to deliver are taken from it, for the next session's. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Frames of it that are still posted, on an endpoint that others share, are nobody's. */
static void msg_disown(msg *m)
{
    for (ctx *c = m->inflight ? m->link->posted : NULL; c; c = c->next)
        if (c->msg == m)
            c->msg = NULL;
    m->inflight = 0;
}

int gr_link_take_msg(gr_link *link, gr_taken *out)
{
    int rc = 0;
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    for (msg *m = link->msgs; m; m = m->next) {
        if (m->xfer || m->skip || m->unproved)
            continue;
        *out = (gr_taken){.seq = m->seq, .numbered = m->numbered, .len = m->len, .body = malloc(m->len ? m->len : 1)};
        if (!out->body) {
            rc = -ENOMEM;
            break;
        }
        if (m->len)
            memcpy(out->body, m->body, m->len);
        msg_disown(m);
        msg_end(m, GR_ERR_BACKEND);
        rc = 1;
        break;
    }
    gr_rail_unlock(link->rail->dev);
    return rc;
}

uint32_t gr_link_numbered(gr_link *link, uint64_t *first)
{
    uint32_t n = 0;
    gr_rail_lock(link->rail->dev);
    rail_inbox(link->rail);
    for (msg *m = link->msgs; m; m = m->next) {
        if (!m->numbered)
            continue;
        if (n++ == 0 || m->seq < *first)
            *first = m->seq;
        if (m->xfer && m->inflight) /* the peer may have ended the session before it comes */
            xfer_fail((xfer *)m->xfer, GR_ERR_BACKEND, 0);
    }
    gr_rail_unlock(link->rail->dev);
    return n;
}
