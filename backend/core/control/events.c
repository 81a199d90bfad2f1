/* Events for Go: those of the queue, and those that there was no memory for. */
#include "progress.h"

/* Looks at all links and transfers, since one has an event that is not in the queue. */
static int look(gr_core *core, gr_event *out, int max)
{
    int n = 0, one = 0;
    for (int i = 0, rails = core->nrails; i < rails && one >= 0; i++) {
        rail_st *rail = core->rails[i];
        gr_link *link;
        if (!rail)
            continue;
        gr_rail_lock(rail->dev);
        LIST_FOREACH (link, &rail->links, list) {
            if ((one = core_events_owed(core, &link->owed, out + n, max - n)) < 0)
                break;
            n += one;
        }
        gr_rail_unlock(rail->dev);
    }
    pthread_mutex_lock(&core->slots.mu);
    for (struct xfer_block *b = core->slots.blocks; b && one >= 0; b = b->next)
        for (size_t i = 0; i < sizeof b->x / sizeof b->x[0] && one >= 0; i++)
            if ((one = core_events_owed(core, &b->x[i].owed, out + n, max - n)) > 0)
                n += one;
    pthread_mutex_unlock(&core->slots.mu);
    if (one < 0)
        atomic_store(&core->events.owed, 1); /* the rest comes with the next call */
    return n;
}

/* The queue goes first: an object with an owed event has no later one in the queue. */
int gr_events_take(gr_core *core, gr_event *out, int max)
{
    int n = core_events_queued(core, out, max);
    if (max - n >= 2 && atomic_exchange(&core->events.owed, 0))
        n += look(core, out + n, max - n);
    return n;
}
