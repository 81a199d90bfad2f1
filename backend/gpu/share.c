/* What processes of this host need to map our memory. */
#include <string.h>
#include <unistd.h>

#include "gpu_int.h"

/* The handle that a range of one handle has for the fabric. */
static int fabric(gg *g, const gr_gpu_mem *mem, uint8_t out[64], gr_gpu_fault *fault)
{
    cu_mem handle;
    int rc = GG_CALL(g, fault, vmm_retain, &handle, (void *)mem->base);
    if (rc)
        return rc;
    rc = GG_CALL(g, fault, vmm_export, out, handle, CU_HANDLE_FABRIC, 0);
    (void)g->cu.vmm_release(handle);
    return rc;
}

int gg_share(gr_gpu *gpu, const gr_gpu_mem *mem, gr_gpu_share *out, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    memset(out, 0, sizeof(*out));
    if (!mem->shareable)
        return gg_fail(fault, mem->why ? mem->why : GR_GPU_HOST, "share");
    gg_dev *d = gg_device(g, mem->device, fault, &rc);
    if (!d || (rc = gg_same(gpu, mem->base, mem->buffer, fault)))
        return rc;
    if (mem->shareable == GR_GPU_SHARE_IPC) {
        if ((rc = gg_enter(g, d, fault)))
            return rc;
        rc = GG_CALL(g, fault, ipc_get, (cu_ipc *)out->handle, mem->base);
        gg_leave(g);
    } else if (mem->shareable == GR_GPU_SHARE_FABRIC) {
        rc = fabric(g, mem, out->handle, fault);
    }
    out->version = GR_GPU_SHARE_VERSION;
    out->how = mem->shareable;
    out->base = mem->base;
    out->size = mem->size;
    out->buffer = mem->buffer;
    out->pieces = mem->pieces;
    memcpy(out->owner, gpu->owner, 16);
    memcpy(out->gpu, d->info.uuid, 16);
    return rc;
}

int gg_pieces(gr_gpu *gpu, const gr_gpu_mem *mem, uint32_t first, uint32_t n, int *fds, uint64_t *sizes, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    uint64_t at = mem->base, base, size;
    uint32_t made = 0;
    int rc;
    if (mem->shareable != GR_GPU_SHARE_FDS)
        return gg_fail(fault, mem->why ? mem->why : GR_GPU_BAD_SHARE, "pieces");
    if (first > mem->pieces || n > mem->pieces - first)
        return gg_fail(fault, GR_GPU_BAD_SHARE, "pieces");
    if ((rc = gg_same(gpu, mem->base, mem->buffer, fault)))
        return rc;
    for (uint32_t i = 0; i < first + n; i++, at = base + size) {
        if (gg_mapping(g, at, &base, &size) != CU_OK || base != at || at - mem->base >= mem->size) {
            rc = gg_fail(fault, GR_GPU_CHANGED, "mappings");
            break;
        }
        if (i < first)
            continue;
        cu_mem handle;
        int fd = -1; /* the driver writes an int */
        if ((rc = GG_CALL(g, fault, vmm_retain, &handle, (void *)at)))
            break;
        cu_result r = g->cu.vmm_export(&fd, handle, CU_HANDLE_FD, 0);
        (void)g->cu.vmm_release(handle);
        if ((rc = gg_result(g, fault, r, gg_name_vmm_export))) {
            if (r == CU_OS) { /* what it says of a full table, too */
                if (fault)
                    fault->why = GR_GPU_NO_FDS;
                rc = -GR_GPU_NO_FDS;
            }
            break;
        }
        fds[made] = fd;
        sizes[made++] = size;
    }
    while (rc && made)
        close(fds[--made]);
    return rc;
}
