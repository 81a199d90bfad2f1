/* Operations: their memory, batches that links take from a transfer's queue, bulk transfers, plans of descriptor lists. */
#include "gr_pairs.h"
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A block of this size or more is kept when its transfer is freed. The C library gives such a block back to the kernel. The
 * next transfer then pays a page fault for each 128 operations: 15 ns an operation, three times what its preparation takes
 * (make_xfer_req of 80,000 descriptors in a guest). */
enum { SPARE_MIN = 64 << 10 };

/* The smallest spare block with room for the operations, unless most of it would be unused. */
static int spare_take(gr_core *core, uint64_t nops, ops_mem *mem)
{
    struct spare_ops *s = &core->slots.spare;
    int best = -1;
    pthread_mutex_lock(&core->slots.mu);
    for (int i = 0; i < s->n; i++)
        if (s->block[i].room >= nops && s->block[i].room / 2 <= nops && (best < 0 || s->block[i].room < s->block[best].room))
            best = i;
    if (best >= 0) {
        *mem = (ops_mem){.ops = s->block[best].ops, .room = s->block[best].room};
        s->bytes -= mem->room * sizeof(gr_op);
        s->n--;
        memmove(&s->block[best], &s->block[best + 1], (size_t)(s->n - best) * sizeof s->block[0]); /* ours */
    }
    pthread_mutex_unlock(&core->slots.mu);
    return best >= 0;
}

/* Keeps a block in place of the oldest ones. */
static void spare_put(gr_core *core, gr_op *ops, uint64_t room)
{
    struct spare_ops *s = &core->slots.spare;
    uint64_t size = room * sizeof(gr_op);
    gr_op *old[SPARE_BLOCKS];
    int n = 0;
    pthread_mutex_lock(&core->slots.mu);
    while (n < s->n && (s->n - n == SPARE_BLOCKS || s->bytes + size > SPARE_BYTES)) {
        s->bytes -= s->block[n].room * sizeof(gr_op);
        old[n] = s->block[n].ops;
        n++;
    }
    s->n -= n;
    memmove(s->block, s->block + n, (size_t)s->n * sizeof s->block[0]); /* ours */
    s->block[s->n].ops = ops;
    s->block[s->n].room = room;
    s->n++;
    s->bytes += size;
    pthread_mutex_unlock(&core->slots.mu);
    while (n)
        free(old[--n]);
}

int ops_new(gr_core *core, int rail, uint64_t nops, ops_mem *mem)
{
    size_t size = nops ? nops * sizeof(gr_op) : 1;
    *mem = (ops_mem){.rail = rail < 0 ? NULL : core->rails[rail]->dev, .room = nops};
    if (nops > SIZE_MAX / sizeof(gr_op))
        return -ENOMEM;
    if (mem->rail)
        mem->ops = GR_ALLOC(core_bulk, mem->rail->bulk->ops_alloc(mem->rail, size));
    else if (size < SPARE_MIN || !spare_take(core, nops, mem))
        mem->ops = GR_ALLOC(core_ops, malloc(size));
    return mem->ops ? 0 : -ENOMEM;
}

void ops_free(gr_core *core, const ops_mem *mem)
{
    uint64_t size = mem->room * sizeof(gr_op);
    if (!mem->ops)
        return;
    if (mem->rail)
        mem->rail->bulk->ops_free(mem->rail, mem->ops);
    else if (size < SPARE_MIN || size > SPARE_BYTES)
        free(mem->ops);
    else
        spare_put(core, mem->ops, mem->room);
}

void ops_drop(xfer *x)
{
    ops_free(x->core, &(ops_mem){.ops = x->pub.ops, .room = x->room, .rail = x->bulk.rail});
    x->pub.ops = NULL;
    x->bulk.rail = NULL;
    free(x->bulk.regions);
    x->bulk.regions = NULL;
}

int gr_xfer_resize(gr_core *core, gr_xfer *pub, uint64_t used, uint64_t nops, int rail)
{
    xfer *x = (xfer *)pub;
    ops_mem mem;
    if (ops_new(core, rail, nops, &mem))
        return -ENOMEM;
    memcpy(mem.ops, pub->ops, used * sizeof *mem.ops); /* ours */
    gr_bulk_region *regions = x->bulk.regions;
    x->bulk.regions = NULL;
    ops_drop(x);
    if (mem.rail)
        x->bulk.regions = regions;
    else
        free(regions);
    pub->ops = mem.ops;
    pub->nops = nops;
    x->room = mem.room;
    x->bulk.rail = mem.rail;
    return 0;
}

/* ---- Striping: the work queue of a transfer's operations, and the batches that links take from it. */

int queue_has(xfer *x)
{
    pthread_mutex_lock(&x->queue.mu);
    int has = x->queue.returned || x->queue.next < x->pub.nops;
    pthread_mutex_unlock(&x->queue.mu);
    return has;
}

/* Number of operations of the next batch: all if no other link shares the transfer. */
static uint64_t batch_length(const xfer *x)
{
    const gr_op *op = x->pub.ops + x->queue.next;
    uint64_t left = x->pub.nops - x->queue.next, most = left < BATCH_OPS ? left : BATCH_OPS, n = 1;
    if (x->nsubs == 1 || x->bulk.rail)
        return left;
    for (uint64_t bytes = op->len; n < most && bytes + op[n].len <= x->core->cfg.batch_bytes; n++)
        bytes += op[n].len;
    return n;
}

static void batch_free(rail_st *rail, batch *r)
{
    r->next = rail->mem.free_batch;
    rail->mem.free_batch = r;
}

/* Frees the returned batches of a failed transfer: no link takes them any more. */
void queue_drop(xfer *x, rail_st *rail)
{
    for (batch *r; (r = x->queue.returned);) {
        x->queue.returned = r->next;
        batch_free(rail, r);
    }
}

/* The work queue is empty. Sub-transfers without posted operations, because their links have no room, give up their places
 * and need not wait for room. The caller's sub-transfer is active, so the transfer cannot end meanwhile. */
static void release_idle(subxfer *p)
{
    xfer *x = p->x;
    for (uint32_t i = 0; i < x->nsubs; i++) {
        subxfer *q = &x->subs[i];
        if (q == p || !atomic_load(&q->active) || !atomic_load(&q->idle) || atomic_exchange(&q->release_queued, 1))
            continue;
        atomic_fetch_add(&x->pub.subs_left, 1);
        rail_push(q->link->rail, &q->release);
        rail_wake(q->link->rail);
    }
}

/* Takes the next batch for the sub-transfer. NULL: none is left, the transfer has failed, or memory is short (*later is
 * then 1). */
batch *batch_take(subxfer *p, int *later)
{
    xfer *x = p->x;
    rail_st *rail = p->link->rail;
    batch *r = rail->mem.free_batch;
    if (atomic_load(&x->pub.err))
        return NULL;
    if (r)
        rail->mem.free_batch = r->next;
    else if (!(r = GR_ALLOC(core_batch, malloc(sizeof *r)))) {
        rail->starved = 1;
        *later = 1;
        return NULL;
    }
    batch *spare = r;
    pthread_mutex_lock(&x->queue.mu);
    if (x->queue.returned) {
        r = x->queue.returned;
        x->queue.returned = r->next;
    } else if (x->queue.next < x->pub.nops) {
        spare = NULL;
        memset(r, 0, sizeof *r);
        r->first = x->queue.next;
        r->count = batch_length(x);
        x->queue.next += r->count;
    } else {
        r = NULL;
    }
    int last = !x->queue.returned && x->queue.next >= x->pub.nops;
    pthread_mutex_unlock(&x->queue.mu);
    if (spare)
        batch_free(rail, spare);
    if (!r)
        return NULL;
    if (last)
        release_idle(p);
    r->sub = p;
    r->prev = NULL;
    r->next = p->batches;
    if (r->next)
        r->next->prev = r;
    p->batches = r;
    return r;
}

/* Whether the sub-transfer has no batch, or a single batch with nothing posted. */
int sub_unposted(const subxfer *p) { return !p->batches || (p->batches == p->cur && !p->cur->next && !p->cur->posted && !p->cur->off); }

static void batch_unlink(batch *r)
{
    subxfer *p = r->sub;
    if (r->prev)
        r->prev->next = r->next;
    else
        p->batches = r->next;
    if (r->next)
        r->next->prev = r->prev;
    if (p->cur == r)
        p->cur = NULL;
    atomic_store_explicit(&p->idle, sub_unposted(p), memory_order_relaxed);
}

/* Ends a batch: it has completed, or it was given up with nothing in flight. */
void batch_end(batch *r)
{
    rail_st *rail = r->sub->link->rail;
    batch_unlink(r);
    batch_free(rail, r);
}

/* Returns the batch to the work queue: any link may do it again from its first operation on. */
void batch_return(batch *r)
{
    xfer *x = r->sub->x;
    batch_unlink(r);
    r->posted = r->off = 0;
    r->inflight = r->wrs = 0;
    r->failed = r->at_fault = 0;
    pthread_mutex_lock(&x->queue.mu);
    r->next = x->queue.returned;
    x->queue.returned = r;
    pthread_mutex_unlock(&x->queue.mu);
}

/* Posts a WRITE of length 0, whose completion proves the unsignaled WRITEs before it. */
int batch_flush(batch *r)
{
    gr_link *link = r->sub->link;
    rail_st *rail = link->rail;
    ctx *c;
    if (link->state != LINK_UP || link->ep.ops >= rail->dev->limit.tx_depth || !(c = ctx_new(rail, link, CTX_RMA)))
        return -EAGAIN;
    c->batch = r;
    c->bytes = r->unflushed_bytes;
    int rc = rail->dev->ops->rma(rail->dev, link->ep.handle, GR_WRITE, 1, &r->unflushed_end, &c->base);
    if (rc != 0) {
        ctx_done(rail, c);
        link_refused(link, rc);
        return rc;
    }
    r->unflushed_bytes = 0;
    r->inflight++;
    r->wrs++;
    rail->rma_ops++;
    link_posted(link);
    link_count(link, GR_N_WRS, 1);
    return 0;
}

/* ---- Bulk transfers: one post and one completion, with any number of operations. The window does not apply. */

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

/* ---- Plans of descriptor lists. */

/* Writes an operation that ends at here and there. Field by field: gcc copies a whole one in larger words, which wait for the smaller
 * ones. */
static inline void put(gr_op *to, uint64_t len, uint64_t here, uint64_t there, uint32_t lregion, uint32_t rregion)
{
    to->local = here - len;
    to->remote = there - len;
    to->len = len;
    to->lregion = lregion;
    to->rregion = rregion;
}

/* The operation that may still grow stays in registers, and is written once. Aligned: otherwise a pair takes 2.65 ns and not 2.5. */
__attribute__((aligned(64))) uint64_t gr_plan_pairs(gr_plan *plan, const gr_list_desc *local, const gr_list_desc *remote, uint64_t n, const gr_window *lw,
                       const gr_window *rw)
{
    const gr_window l = *lw, r = *rw;
    gr_op *ops = plan->ops, *to = ops + plan->used, *end = ops + plan->room;
    uint64_t bytes = plan->bytes, longest = plan->longest, i;
    uint64_t grown = 0, here = 0, there = 0; /* length of the last operation, 0: none; where it ends */
    if (plan->used && to[-1].lregion == l.index && to[-1].rregion == r.index) {
        to--;
        grown = to->len;
        here = to->local + grown;
        there = to->remote + grown;
    }
    for (i = 0; i < n; i++) {
        const gr_list_desc *a = &local[i], *b = &remote[i];
        uint64_t len = a->len, from = a->addr - l.addr, into = b->addr - r.addr;
        /* An address before a window is far behind it. */
        if (a->md != l.md || b->md != r.md || b->len != len || from > l.size || len > l.size - from || into > r.size || len > r.size - into)
            break;
        if (!len)
            continue;
        if (a->addr != here || b->addr != there || !grown) {
            if (to + (grown != 0) >= end)
                break;
            if (grown) {
                longest = grown > longest ? grown : longest;
                put(to++, grown, here, there, l.index, r.index);
            }
            grown = 0;
        }
        grown += len;
        bytes += len;
        here = a->addr + len;
        there = b->addr + len;
    }
    if (grown) {
        longest = grown > longest ? grown : longest;
        put(to++, grown, here, there, l.index, r.index);
    }
    plan->used = (uint64_t)(to - ops);
    plan->bytes = bytes;
    plan->longest = longest;
    return i;
}
