/* What writes of other devices need to be seen: called for each transfer, by the core (core/flush.c), without Go. */
#include "gpu_int.h"

int gg_wants_flush(gg *g, cu_device dev)
{
    int order = CU_WRITES_TO_OWNER, how = 0;
    return g->cu.flush_writes && g->cu.device_attr(&order, CU_DEV_WRITES_ORDERING, dev) == CU_OK && order < CU_WRITES_TO_OWNER &&
           g->cu.device_attr(&how, CU_DEV_FLUSH_OPTIONS, dev) == CU_OK && (how & CU_FLUSH_BY_HOST);
}

int gg_flush(gr_gpu *gpu, int device, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d || !d->info.flush || (rc = gg_enter(g, d, fault)))
        return rc;
    rc = GG_CALL(g, fault, flush_writes, CU_FLUSH_CURRENT, CU_WRITES_TO_OWNER);
    gg_leave(g);
    return rc;
}

void gg_flush_dev(void *dev)
{
    gg_dev *d = dev;
    (void)gg_flush(d->gpu, d->ordinal, NULL); /* fails only where CUDA has ended, which the application hears from all it does */
}

void *gg_flusher(gr_gpu *gpu, int device)
{
    gg *g = gg_of(gpu);
    if (device < 0 || device >= gpu->devices || !atomic_load(&g->dev[device].open) || !g->dev[device].info.flush)
        return NULL;
    return &g->dev[device];
}
