/* Memory of operations. */
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
