/* Bulk transfers: whole transfers as one post. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static const gr_bulk_region *region(const gr_bulk_region *list, uint32_t n, uint32_t index)
{
    uint32_t i = 0;
    while (i < n && list[i].index != index)
        i++;
    return i < n ? &list[i] : NULL;
}

/* Checks that every operation lies in the regions that it names, and that the local regions are registered. */
static int check(fake_rail *rail, const gr_bulk *b)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < b->nops; i++) {
        const gr_op *op = &b->ops[i];
        const gr_bulk_region *l = region(b->local, b->nlocal, op->lregion), *r = region(b->remote, b->nremote, op->rregion);
        if (!l || !r || op->remote < r->addr || op->remote - r->addr > r->len || op->len > r->len - (op->remote - r->addr) ||
            fake_check_desc(rail, op->local, op->len, l->desc))
            return -EINVAL;
        bytes += op->len;
    }
    return bytes == b->bytes ? 0 : -EINVAL;
}

int fake_bulk(gr_rail *base, void *ep, int kind, const gr_bulk *b, gr_ctx *ctx)
{
    fake_rail *rail = (fake_rail *)base;
    fake_op *op = calloc(1, sizeof(*op));
    int rc = op && (op->regions = calloc(b->nremote, sizeof(*op->regions))) ? 0 : -EAGAIN;
    pthread_mutex_lock(&rail->fabric->mu);
    if (!rc)
        rc = check(rail, b);
    if (!rc && ++rail->count.bulks && rail->script.no_bulk_every && rail->count.bulks % rail->script.no_bulk_every == 0)
        rc = -ENOTSUP;
    if (!rc) {
        op->kind = kind == GR_READ ? GR_READ : GR_WRITE;
        op->len = b->bytes;
        op->bulk = b->ops;
        op->bulk_ops = b->nops;
        op->nregions = b->nremote;
        memcpy(op->regions, b->remote, b->nremote * sizeof(*b->remote)); /* the caller's list is valid only during the call */
        rc = fake_post(rail, ep, op, ctx);
    }
    pthread_mutex_unlock(&rail->fabric->mu);
    if (rc && op) {
        free(op->regions);
        free(op);
    }
    return rc;
}

static void stop(fake_rail *rail, fake_op *list, const gr_ctx *ctx)
{
    for (fake_op *op = list; op; op = op->next)
        if (op->ctx == ctx && !op->err) {
            op->err = ECANCELED;
            op->half = fake_random(&rail->fabric->rng) % (op->bulk_ops + 1);
            op->wait = 0;
        }
}

void fake_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx)
{
    fake_rail *rail = (fake_rail *)base;
    (void)ep;
    pthread_mutex_lock(&rail->fabric->mu);
    rail->count.stops++;
    stop(rail, rail->waiting, ctx);
    stop(rail, rail->fabric->head, ctx);
    fake_signal(rail);
    pthread_mutex_unlock(&rail->fabric->mu);
}

int fake_copy_bulk(const fake_op *op, const fake_ep *target, uint64_t nops)
{
    for (uint64_t i = 0; i < nops; i++) {
        const gr_op *o = &op->bulk[i];
        const gr_bulk_region *r = region(op->regions, op->nregions, o->rregion);
        const fake_mr *mr = fake_mr_for(target, r->key, op->kind);
        uint64_t at = o->remote - r->addr;
        if (!mr || at > mr->len || o->len > mr->len - at)
            return EACCES;
        void *here = (void *)(uintptr_t)o->local, *there = (void *)(uintptr_t)(mr->addr + at);
        memmove(op->kind == GR_READ ? here : there, op->kind == GR_READ ? there : here, o->len);
    }
    return 0;
}

void *fake_ops_alloc(gr_rail *base, size_t size)
{
    void *mem = malloc(size ? size : 1);
    if (mem)
        atomic_fetch_add(&((fake_rail *)base)->open_ops, 1);
    return mem;
}

void fake_ops_free(gr_rail *base, void *mem)
{
    atomic_fetch_sub(&((fake_rail *)base)->open_ops, 1);
    free(mem);
}
