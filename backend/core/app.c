/* What the application's threads ask of a transfer, without a step through Go. */
#include "core_int.h"

int gr_check(gr_core *core, gr_xfer *slot, uint64_t handle)
{
    if (atomic_load(&slot->handle) != handle)
        return GR_ERR_NOT_FOUND;
    int s = atomic_load(&slot->state);
    if (s > 0) {
        core_progress(core);
        s = atomic_load(&slot->state);
    }
    if (s == 0 && core_flushes(core) && ((xfer *)slot)->op == GR_READ)
        core_flush(core);
    return s > 0 ? 1 : s;
}

/* A C->Go call of a thread that Go does not know wakes its sleeping scheduler: two futex calls a post, and more. What Go found
 * when it posted last (the peer is there, its keys are, these links have the memory) is good for as long as the transfer has
 * its ticket: Go takes that before it changes any of it. */
static int again(xfer *x, int has_notif, const void *body, size_t len)
{
    gr_link *links[GR_MAX_LINKS];
    uint32_t n = x->nparts;
    for (uint32_t i = 0; i < n; i++)
        links[i] = x->parts[i].link;
    COUNT(x->core, GR_C_REPOSTS, 1);
    xfer_stamp(x, links[0]); /* first: a deadline that sees it running must not see the time of the last round */
    atomic_store(&x->pub.state, GR_XFER_RUNNING);
    xfer_start(x, links, n, has_notif, body, len);
    return atomic_load(&x->pub.state) != 0 || (x->op == GR_READ && core_flushes(x->core)); /* then its check says so */
}

int gr_repost(gr_core *core, gr_xfer *pub, uint64_t handle, int has_notif, const void *body, size_t len)
{
    uint32_t valid = GR_TICKET_VALID;
    int rc = GR_NOT_TAKEN;
    (void)core;
    if ((has_notif && len > GR_MAX_NOTIF) || !atomic_compare_exchange_strong(&pub->ticket, &valid, GR_TICKET_IN_USE))
        return rc;
    if (atomic_load(&pub->handle) == handle && atomic_load(&pub->state) == 0)
        rc = again((xfer *)pub, has_notif, body, len);
    atomic_store_explicit(&pub->ticket, GR_TICKET_VALID, memory_order_release);
    return rc;
}
