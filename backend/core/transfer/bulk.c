/* Bulk transfers: one post and one completion, with any number of operations. The window does not apply. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gr_xfer_bulk(gr_core *core, gr_xfer *pub, int rail, const uint32_t *local, uint32_t nlocal, const uint32_t *remote, uint32_t nremote)
{
    xfer *x = (xfer *)pub;
    gr_rail *dev = core->rails[rail]->dev;
    gr_bulk_region *regions = GR_ALLOC(core_bulk, calloc((size_t)nlocal + nremote, sizeof *regions));
    gr_op *ops = regions ? dev->bulk->ops_alloc(dev, pub->nops * sizeof *ops) : NULL;
    if (!ops) {
        free(regions);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < nlocal + nremote; i++)
        regions[i].index = i < nlocal ? local[i] : remote[i - nlocal];
    memcpy(ops, pub->ops, pub->nops * sizeof *ops);
    free(pub->ops);
    pub->ops = ops;
    x->bulk.rail = dev;
    x->bulk.regions = regions;
    x->bulk.nlocal = nlocal;
    x->bulk.nremote = nremote;
    return 0;
}

void bulk_free(xfer *x)
{
    if (!x->bulk.rail)
        return;
    x->bulk.rail->bulk->ops_free(x->bulk.rail, x->pub.ops);
    x->pub.ops = NULL;
    x->bulk.rail = NULL;
    free(x->bulk.regions);
    x->bulk.regions = NULL;
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
