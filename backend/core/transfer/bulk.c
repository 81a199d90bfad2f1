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
    free(x->bulk.regions);
    x->bulk.regions = regions;
    x->bulk.nlocal = nlocal;
    x->bulk.nremote = nremote;
    x->bulk.ranged = 0;
    return 0;
}

/* Regions by number. A slot holds a place in the list + 1. */
typedef struct places {
    gr_bulk_region *list;
    uint32_t mask, *slot;
    gr_bulk_region *last;
} places;

static uint32_t slot_of(const places *p, uint32_t index)
{
    uint32_t i = index * UINT32_C(2654435761) & p->mask;
    while (p->slot[i] && p->list[p->slot[i] - 1].index != index)
        i = (i + 1) & p->mask;
    return i;
}

static int place(places *p, gr_bulk_region *list, uint32_t n)
{
    *p = (places){.list = list, .mask = 7};
    while (p->mask < 2 * n)
        p->mask = 2 * p->mask + 1;
    if (!(p->slot = GR_ALLOC(core_bulk_places, calloc((size_t)p->mask + 1, sizeof *p->slot))))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        p->slot[slot_of(p, list[i].index)] = i + 1;
    return 1;
}

static void widen(places *p, uint32_t index, uint64_t addr, uint64_t len)
{
    if (!p->last || p->last->index != index) {
        uint32_t at = p->slot[slot_of(p, index)];
        if (!at)
            return;
        p->last = &p->list[at - 1];
    }
    if (addr < p->last->from)
        p->last->from = addr;
    if (addr + len > p->last->to)
        p->last->to = addr + len;
}

void bulk_ranges(xfer *x)
{
    places l, r;
    if (x->bulk.ranged)
        return;
    for (uint32_t i = 0; i < x->bulk.nlocal + x->bulk.nremote; i++) {
        x->bulk.regions[i].from = UINT64_MAX;
        x->bulk.regions[i].to = 0;
    }
    int both = place(&l, x->bulk.regions, x->bulk.nlocal);
    both &= place(&r, x->bulk.regions + x->bulk.nlocal, x->bulk.nremote);
    for (uint64_t i = 0; both && i < x->pub.nops; i++) {
        const gr_op *o = &x->pub.ops[i];
        widen(&l, o->lregion, o->local, o->len);
        widen(&r, o->rregion, o->remote, o->len);
    }
    for (uint32_t i = 0; !both && i < x->bulk.nlocal + x->bulk.nremote; i++) { /* without memory: all of each region */
        x->bulk.regions[i].from = x->bulk.regions[i].addr;
        x->bulk.regions[i].to = x->bulk.regions[i].addr + x->bulk.regions[i].len;
    }
    x->bulk.ranged = both;
    free(l.slot);
    free(r.slot);
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
