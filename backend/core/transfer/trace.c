/* How long transfers take: a histogram of each rail, and the notes of a trace. */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>

struct trace {
    _Atomic uint64_t next; /* notes that were begun; those from GR_TRACE_MAX on found no room */
    struct {
        _Atomic uint32_t written;
        gr_traced t;
    } notes[GR_TRACE_MAX];
};

/* Counts a transfer whose data is done. rail completed the last of it, and is locked. A coarse time is four milliseconds off
 * at most, so long times still find their bucket. */
void xfer_time(xfer *x, rail_st *rail)
{
    static const uint64_t sizes[GR_TIME_CLASSES - 1] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
    const uint64_t exact = 64000000; /* ns from which a coarse time will do */
    uint64_t posted = atomic_load_explicit(&x->pub.posted_ns, memory_order_relaxed), now = rail_now(rail);
    uint64_t ns = now > posted ? now - posted : 0;
    int class = 0, bucket = 0;
    while (class < GR_TIME_CLASSES - 1 && x->pub.bytes > sizes[class])
        class++;
    if (ns < exact && atomic_load_explicit(&x->pub.coarse, memory_order_relaxed))
        bucket = GR_TIME_COARSE;
    else
        for (uint64_t us = ns / 1000; us && bucket < GR_TIME_COARSE - 1; us >>= 1)
            bucket++;
    counter_add(&rail->times[class][bucket], 1);
}

/* Notes a transfer that ends, while its state is still running. */
void xfer_trace(xfer *x)
{
    struct trace *tr = atomic_load_explicit(&x->core->trace, memory_order_acquire);
    uint64_t n = tr ? atomic_fetch_add_explicit(&tr->next, 1, memory_order_relaxed) : GR_TRACE_MAX;
    if (n >= GR_TRACE_MAX)
        return;
    gr_traced *t = &tr->notes[n].t;
    *t = (gr_traced){.posted_ns = atomic_load(&x->pub.posted_ns),
                     .ended_ns = gr_now_ns(),
                     .handle = atomic_load(&x->pub.handle),
                     .bytes = x->pub.bytes,
                     .sess = x->sess_id,
                     .op = x->op,
                     .err = atomic_load(&x->pub.err),
                     .coarse = atomic_load(&x->pub.coarse)};
    for (uint32_t i = 0; i < x->nsubs && atomic_load(&x->pub.done); i++) /* done is 0: the last round's sub-transfers may be there */
        if (atomic_load_explicit(&x->subs[i].bytes, memory_order_relaxed))
            t->rails |= (uint64_t)1 << x->subs[i].own;
    atomic_store_explicit(&tr->notes[n].written, 1, memory_order_release);
}

int gr_trace_start(gr_core *core)
{
    int rc = 0;
    pthread_mutex_lock(&core->slots.mu);
    struct trace *tr = core->traces;
    if (atomic_load(&core->trace))
        rc = -EBUSY;
    else if (!tr && !(tr = core->traces = GR_ALLOC(core_trace, malloc(sizeof *tr))))
        rc = -ENOMEM;
    else {
        for (uint64_t i = 0; i < GR_TRACE_MAX; i++)
            atomic_store_explicit(&tr->notes[i].written, 0, memory_order_relaxed);
        atomic_store(&tr->next, 0);
        atomic_store_explicit(&core->trace, tr, memory_order_release);
    }
    pthread_mutex_unlock(&core->slots.mu);
    return rc;
}

/* A thread that saw the trace just before may still write a note. It is not taken: it is not written yet. */
uint64_t gr_trace_stop(gr_core *core, gr_traced *out, uint64_t *lost)
{
    uint64_t n = 0;
    *lost = 0;
    pthread_mutex_lock(&core->slots.mu);
    struct trace *tr = atomic_exchange(&core->trace, NULL);
    uint64_t begun = tr ? atomic_load(&tr->next) : 0;
    for (uint64_t i = 0; i < begun && i < GR_TRACE_MAX; i++)
        if (atomic_load_explicit(&tr->notes[i].written, memory_order_acquire))
            out[n++] = tr->notes[i].t;
    if (begun > GR_TRACE_MAX)
        *lost = begun - GR_TRACE_MAX;
    pthread_mutex_unlock(&core->slots.mu);
    return n;
}
