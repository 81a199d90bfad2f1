/* Transfer slots. Their memory is recycled, and not unmapped while the core lives. */
#include "transfer.h"

#include <stdlib.h>

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

gr_xfer *gr_xfer_new(gr_core *core, uint64_t handle, int op, uint64_t nops, int rail)
{
    ops_mem mem;
    if (ops_new(core, rail, nops, &mem))
        return NULL;
    xfer *x = slot_take(core);
    if (!x) {
        ops_free(core, &mem);
        return NULL;
    }
    COUNT(core, GR_C_TO_C_PREP, 1);
    x->core = core;
    x->op = op;
    x->room = mem.room;
    x->pub.ops = mem.ops;
    x->pub.nops = nops;
    x->pub.bytes = 0;
    x->queue.next = 0;
    x->queue.returned = NULL;
    atomic_store(&x->pub.state, 0);
    atomic_store(&x->pub.posted_ns, 0);
    atomic_store(&x->pub.reposts, 0);
    x->nsubs = 0;
    x->sess_id = 0;
    x->bulk.rail = mem.rail;
    x->bulk.regions = NULL;
    x->prove = 0;
    x->msg.number.given = 0;
    atomic_store(&x->pub.err, 0);
    atomic_store(&x->pub.wire_err, 0);
    atomic_store(&x->pub.subs_left, 0);
    atomic_store(&x->pub.handle, handle);
    return &x->pub;
}

void gr_xfer_free(gr_core *core, gr_xfer *pub)
{
    xfer *x = (xfer *)pub;
    atomic_store(&pub->handle, 0);
    ops_drop(x);
    pub->nops = 0;
    pthread_mutex_lock(&core->slots.mu);
    x->free_next = core->slots.xfers;
    core->slots.xfers = x;
    pthread_mutex_unlock(&core->slots.mu);
}
