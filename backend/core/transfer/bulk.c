/* Bulk transfers: one post and one completion, with any number of operations. The window does not apply. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>

int gr_xfer_bulk(gr_xfer *pub, const uint32_t *local, uint32_t nlocal, const uint32_t *remote, uint32_t nremote)
{
    xfer *x = (xfer *)pub;
    gr_bulk_region *regions = GR_ALLOC(core_bulk_regions, calloc((size_t)nlocal + nremote, sizeof *regions));
    if (!regions)
        return -ENOMEM;
    for (uint32_t i = 0; i < nlocal + nremote; i++)
        regions[i].index = i < nlocal ? local[i] : remote[i - nlocal];
    x->bulk.regions = regions;
    x->bulk.nlocal = nlocal;
    x->bulk.nremote = nremote;
    return 0;
}

void bulk_free(xfer *x)
{
    if (x->bulk.rail)
        ops_drop(x);
}

/* Asks the rail to end the posted bulk of an aborted transfer soon. */
void bulk_stop(subxfer *p)
{
    gr_link *link = p->link;
    for (ctx *c = link->ep.posted; c; c = c->next)
        if (c->bulk && c->batch->sub == p) {
            c->stopped = 1;
            link->rail->dev->bulk->stop(link->rail->dev, link->ep.handle, &c->base);
        }
}
