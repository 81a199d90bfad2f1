/* Transfer slots. Their memory is recycled, and not unmapped while the core lives. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Takes a free slot. Slots come in blocks that live as long as the core. A stale pointer of the shim then reads an outdated
 * handle, never freed memory. */
static xfer *slot_take(gr_core *core)
{
    pthread_mutex_lock(&core->slots.mu);
    if (!core->slots.xfers) {
        enum { N = sizeof(((struct xfer_block *)0)->x) / sizeof(xfer) };
        struct xfer_block *b = core_event_nodes(core, N * XFER_EVENTS) ? NULL : GR_ALLOC(core_slots, calloc(1, sizeof *b));
        if (b) {
            b->next = core->slots.blocks;
            core->slots.blocks = b;
            for (size_t i = 0; i < N; i++) {
                pthread_mutex_init(&b->x[i].queue.mu, NULL);
                b->x[i].free_next = core->slots.xfers;
                core->slots.xfers = &b->x[i];
            }
        }
    }
    xfer *x = core->slots.xfers;
    if (x)
        core->slots.xfers = x->free_next;
    pthread_mutex_unlock(&core->slots.mu);
    return x;
}

/* Memory of operations: the rail's pinned memory, or the heap if the rail is NULL. */
static gr_op *ops_new(gr_rail *rail, uint64_t nops)
{
    size_t size = nops ? nops * sizeof(gr_op) : 1;
    if (nops > SIZE_MAX / sizeof(gr_op))
        return NULL;
    return rail ? GR_ALLOC(core_bulk, rail->bulk->ops_alloc(rail, size)) : GR_ALLOC(core_ops, malloc(size));
}

static void ops_free(gr_rail *rail, gr_op *ops)
{
    if (rail && ops)
        rail->bulk->ops_free(rail, ops);
    else
        free(ops);
}

static gr_rail *bulk_rail(gr_core *core, int rail) { return rail < 0 ? NULL : core->rails[rail]->dev; }

gr_xfer *gr_xfer_new(gr_core *core, uint64_t handle, int op, uint64_t nops, int rail)
{
    gr_rail *bulk = bulk_rail(core, rail);
    gr_op *ops = ops_new(bulk, nops);
    xfer *x = ops ? slot_take(core) : NULL;
    if (!x) {
        ops_free(bulk, ops);
        return NULL;
    }
    COUNT(core, GR_C_TO_C_PREP, 1);
    x->core = core;
    x->op = op;
    x->pub.ops = ops;
    x->pub.nops = nops;
    x->pub.bytes = 0;
    x->queue.next = 0;
    x->queue.returned = NULL;
    atomic_store(&x->pub.state, 0);
    atomic_store(&x->pub.posted_ns, 0);
    atomic_store(&x->pub.reposts, 0);
    x->nsubs = 0;
    x->sess_id = 0;
    x->bulk.rail = bulk;
    x->bulk.regions = NULL;
    x->prove = 0;
    x->msg.number.given = 0;
    atomic_store(&x->pub.err, 0);
    atomic_store(&x->pub.wire_err, 0);
    atomic_store(&x->pub.subs_left, 0);
    atomic_store(&x->pub.handle, handle);
    return &x->pub;
}

int gr_xfer_resize(gr_core *core, gr_xfer *pub, uint64_t used, uint64_t nops, int rail)
{
    xfer *x = (xfer *)pub;
    gr_rail *bulk = bulk_rail(core, rail);
    gr_op *ops = NULL;
    if (!bulk && !x->bulk.rail) {
        ops = nops > SIZE_MAX / sizeof *ops ? NULL : GR_ALLOC(core_ops_size, realloc(pub->ops, nops ? nops * sizeof *ops : 1));
        if (!ops)
            return -ENOMEM;
    } else {
        if (!(ops = ops_new(bulk, nops)))
            return -ENOMEM;
        memcpy(ops, pub->ops, used * sizeof *ops);
        ops_free(x->bulk.rail, pub->ops);
    }
    pub->ops = ops;
    pub->nops = nops;
    x->bulk.rail = bulk;
    return 0;
}

void gr_xfer_free(gr_core *core, gr_xfer *pub)
{
    xfer *x = (xfer *)pub;
    atomic_store(&pub->handle, 0);
    bulk_free(x);
    free(pub->ops);
    pub->ops = NULL;
    pub->nops = 0;
    pthread_mutex_lock(&core->slots.mu);
    x->free_next = core->slots.xfers;
    core->slots.xfers = x;
    pthread_mutex_unlock(&core->slots.mu);
}
