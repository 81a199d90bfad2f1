/* What other devices need to reach our memory, and what their writes need to be seen. */
#include <unistd.h>

#include "gpu_int.h"

int gg_dmabuf(gr_gpu *gpu, const gr_gpu_mem *mem, uint64_t addr, uint64_t len, int by_pcie, int *fd, uint64_t *offset, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = addr & ~(page - 1), end = (addr + len + page - 1) & ~(page - 1);
    int rc, got = -1;
    gg_dev *d = gg_device(g, mem->device, fault, &rc);
    if (!d)
        return rc;
    if (!d->info.dmabuf)
        return gg_fail(fault, GR_GPU_NO_DMABUF, gg_name_range_handle);
    /* What lies beside the range in its pages is not in the region that a device makes of it. */
    if ((rc = gg_enter(g, d, fault)))
        return rc;
    cu_result r = CU_INVALID_VALUE;
    if (by_pcie)
        r = g->cu.range_handle(&got, from, end - from, CU_RANGE_DMABUF, CU_RANGE_PCIE);
    if (r == CU_INVALID_VALUE || r == CU_NOT_SUPPORTED)
        r = g->cu.range_handle(&got, from, end - from, CU_RANGE_DMABUF, CU_RANGE_PLAIN);
    rc = gg_result(g, fault, r, gg_name_range_handle);
    gg_leave(g);
    *fd = rc ? -1 : got;
    *offset = addr - from;
    return rc;
}

void gg_sync_memops(gr_gpu *gpu, const gr_gpu_mem *mem)
{
    gg *g = gg_of(gpu);
    const unsigned on = 1;
    int rc;
    gg_dev *d = g->cu.ptr_set ? gg_device(g, mem->device, NULL, &rc) : NULL;
    if (!d || gg_enter(g, d, NULL))
        return;
    (void)g->cu.ptr_set(&on, CU_PTR_SYNC_MEMOPS, mem->base); /* not for VMM memory and pools */
    gg_leave(g);
}

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
