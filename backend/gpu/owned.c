/* What is not the application's GPU memory. The driver gives addresses that the application has freed, and still has registered, to others:
 * to us, for memory and for mappings of peers' memory, and to pinned host memory. No copy for the application may touch what is there then. In
 * C because copies ask. */
#include <stdlib.h>

#include "gpu_int.h"

int gg_owned_begin(gg *g, gr_gpu_fault *fault)
{
    gg_owned *o = &g->owned;
    int rc = 0;
    pthread_mutex_lock(&o->mu);
    if (o->n + o->changing >= o->room) {
        uint32_t room = 2 * (o->n + o->changing) + 64;
        gg_range *list = GR_ALLOC(gpu_owned, realloc(o->list, room * sizeof(*list)));
        if (list)
            o->list = list, o->room = room;
        else
            rc = gg_fail(fault, GR_GPU_NO_MEMORY, "realloc");
    }
    o->changing += rc == 0;
    pthread_mutex_unlock(&o->mu);
    return rc;
}

void gg_owned_made(gg *g, uint64_t at, uint64_t size)
{
    gg_owned *o = &g->owned;
    pthread_mutex_lock(&o->mu);
    if (size)
        o->list[o->n++] = (gg_range){at, at + size};
    o->changing--;
    pthread_mutex_unlock(&o->mu);
}

void gg_owned_freeing(gg *g)
{
    gg_owned *o = &g->owned;
    pthread_mutex_lock(&o->mu);
    o->changing++;
    pthread_mutex_unlock(&o->mu);
}

void gg_owned_freed(gg *g, uint64_t at)
{
    gg_owned *o = &g->owned;
    pthread_mutex_lock(&o->mu);
    uint32_t i = 0;
    while (i < o->n && o->list[i].at != at)
        i++;
    if (i < o->n)
        o->list[i] = o->list[--o->n];
    o->changing--;
    pthread_mutex_unlock(&o->mu);
}

int gg_overlaps_owned(gg *g, uint64_t at, uint64_t end)
{
    gg_owned *o = &g->owned;
    int rc = 0;
    pthread_mutex_lock(&o->mu);
    for (uint32_t i = 0; i < o->n && !rc; i++)
        if (at < o->list[i].end && o->list[i].at < end)
            rc = -GR_GPU_UNMAPPED;
    if (o->changing)
        rc = -GR_GPU_BUSY;
    pthread_mutex_unlock(&o->mu);
    return rc;
}

int gg_owns(gr_gpu *gpu, uint64_t at, uint64_t size)
{
    gg_owned *o = &gg_of(gpu)->owned;
    int is = 0;
    pthread_mutex_lock(&o->mu);
    for (uint32_t i = 0; i < o->n && !is; i++)
        is = o->list[i].at <= at && at + size <= o->list[i].end;
    pthread_mutex_unlock(&o->mu);
    return is;
}

int gg_foreign(gg *g, uint64_t buffer, uint64_t at, uint64_t end)
{
    gg_owned *o = &g->owned;
    _Atomic uint64_t *known = &o->known[buffer % GG_KNOWN];
    if (atomic_load_explicit(known, memory_order_relaxed) == buffer)
        return 0;
    /* On H200s pinned memory of ours has lain where GPU memory was freed: a peer's WRITE ended our process. */
    unsigned type = 0;
    cu_result r = g->cu.ptr_attr(&type, CU_PTR_TYPE, at);
    if (gg_lost(r))
        return -GR_GPU_LOST;
    int rc = r != CU_OK || type == CU_TYPE_HOST ? -GR_GPU_UNMAPPED : gg_overlaps_owned(g, at, end);
    if (rc == 0)
        atomic_store_explicit(known, buffer, memory_order_relaxed);
    return rc;
}
