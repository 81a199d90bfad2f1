/* Transfers that a rail takes whole: one post, one completion, whatever they have of operations. Windows and work requests are not asked. */
#include "core_int.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int gr_xfer_bulk(gr_core *core, gr_xfer *pub, int rail, const uint32_t *local, uint32_t nlocal, const uint32_t *remote, uint32_t nremote)
{
    xfer *x = (xfer *)pub;
    gr_rail *dev = core->rails[rail]->dev;
    gr_bulk_region *regions = calloc((size_t)nlocal + nremote, sizeof *regions);
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
    x->bulk = dev;
    x->regions = regions;
    x->nlocal = nlocal;
    x->nremote = nremote;
    return 0;
}

void bulk_free(xfer *x)
{
    if (!x->bulk)
        return;
    x->bulk->bulk->ops_free(x->bulk, x->pub.ops);
    x->pub.ops = NULL;
    x->bulk = NULL;
    free(x->regions);
    x->regions = NULL;
}

/* What its regions are on this link now; -ESTALE when one is gone. */
static int look(const gr_link *link, xfer *x)
{
    for (uint32_t i = 0; i < x->nlocal + x->nremote; i++) {
        gr_bulk_region *b = &x->regions[i];
        gr_region *g = gr_region_at(x->core, b->index);
        gr_rkey *k = &g->rail[i < x->nlocal ? link->rail->index : link->peer_rail];
        if (!atomic_load(&g->live) || !k->ok)
            return -ESTALE;
        b->addr = g->addr;
        b->len = g->len;
        b->desc = k->desc;
        b->key = k->key;
    }
    return 0;
}

/* Posts the whole of it. */
int bulk_post(gr_link *link, part *p)
{
    rail_st *rail = link->rail;
    xfer *x = p->x;
    int later = 0;
    if (link->inflight_ops + TX_RESERVE >= rail->dev->tx_depth || rail_full(rail))
        return NO_ROOM;
    run *r = p->cur ? p->cur : (p->cur = run_take(p, &later));
    if (!r)
        return later ? NO_ROOM : NOTHING;
    int rc = look(link, x);
    ctx *c = rc ? NULL : rail_ctx(rail, link, CTX_RMA);
    if (rc) {
        xfer_fail(x, GR_ERR_BACKEND, -rc);
        return REGION_GONE;
    }
    if (!c)
        return NO_ROOM;
    c->run = r;
    c->bytes = x->pub.bytes;
    c->bulk = 1;
    gr_bulk b = {.ops = x->pub.ops, .nops = x->pub.nops, .bytes = x->pub.bytes, .local = x->regions, .remote = x->regions + x->nlocal,
                 .nlocal = x->nlocal, .nremote = x->nremote};
    rc = rail->dev->bulk->post(rail->dev, link->ep, x->op, &b, &c->base);
    if (rc) {
        rail_ctx_done(rail, c);
        if (rc != -ENOTSUP)
            return link_no_post(link, r, rc);
        xfer_fail(x, GR_ERR_NOT_SUPPORTED, ENOTSUP);
        return REGION_GONE;
    }
    rail->rma_ops++;
    link->inflight_ops++;
    link_count(link, GR_N_WRS, 1);
    r->inflight++;
    r->wrs++;
    r->posted = r->count;
    atomic_store_explicit(&p->idle, 0, memory_order_relaxed);
    p->cur = NULL;
    return POSTED;
}

/* What is posted of an aborted transfer ends soon. */
void bulk_stop(part *p)
{
    gr_link *link = p->link;
    for (ctx *c = link->posted; c; c = c->next)
        if (c->bulk && c->run->part == p) {
            c->stopped = 1;
            link->rail->dev->bulk->stop(link->rail->dev, link->ep, &c->base);
        }
}
