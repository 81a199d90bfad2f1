/* What a pointer is. None of these calls wants a context. */
#include <string.h>

#include "gpu_int.h"

cu_result gg_mapping(gg *g, uint64_t addr, uint64_t *base, uint64_t *size)
{
    cu_ptr at = 0;
    size_t len = 0;
    cu_result r = g->cu.ptr_attr(&at, CU_PTR_MAPPING_BASE, addr);
    if (r == CU_OK)
        r = g->cu.ptr_attr(&len, CU_PTR_MAPPING_SIZE, addr);
    *base = at;
    *size = len;
    return r != CU_OK ? r : len == 0 || addr - at >= len ? CU_NOT_FOUND : CU_OK;
}

static int has_fabric(gg *g, int device)
{
    cu_device d;
    int can = 0;
    return g->cu.device_get(&d, device) == CU_OK && g->cu.device_attr(&can, CU_DEV_FABRIC, d) == CU_OK && can;
}

/* The handles from the one that addr is in up to the one of the range's last byte, and how they can be shared. */
static int handles(gg *g, uint64_t addr, uint64_t len, gr_gpu_mem *out, gr_gpu_fault *fault)
{
    uint64_t at = addr, end = addr + len, base, size;
    out->kind = GR_GPU_MEM_VMM;
    out->pieces = 0;
    out->shareable = GR_GPU_SHARE_FDS;
    uint64_t all = ~0ull; /* what every handle can be shared as */
    while (out->pieces == 0 || at < end) {
        int device = -1;
        uint64_t types = 0;
        if (gg_mapping(g, at, &base, &size) != CU_OK || g->cu.ptr_attr(&device, CU_PTR_DEVICE, at) != CU_OK || device != out->device)
            return gg_fail(fault, GR_GPU_TORN, "range of VMM memory");
        all &= g->cu.ptr_attr(&types, CU_PTR_HANDLE_TYPES, at) == CU_OK ? types : 0;
        if (out->pieces++ == 0)
            out->base = base;
        at = base + size;
    }
    out->size = at - out->base;
    if (all & CU_HANDLE_FD)
        return 0;
    int fabric = (all & CU_HANDLE_FABRIC) && has_fabric(g, out->device);
    out->shareable = fabric && out->pieces == 1 ? GR_GPU_SHARE_FABRIC : 0;
    out->why = out->shareable ? 0 : fabric ? GR_GPU_FABRICS : GR_GPU_NO_HANDLE;
    return 0;
}

int gg_what(gr_gpu *gpu, uint64_t addr, uint64_t len, gr_gpu_mem *out, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    unsigned type = 0, managed = 0;
    int device = -1, rc;
    unsigned long long buffer = 0;
    cu_ptr start = 0;
    size_t size = 0;
    void *pool = NULL;
    int which[] = { CU_PTR_TYPE, CU_PTR_MANAGED, CU_PTR_DEVICE, CU_PTR_BUFFER, CU_PTR_START, CU_PTR_SIZE };
    void *to[] = { &type, &managed, &device, &buffer, &start, &size };
    memset(out, 0, sizeof(*out));
    out->device = -1;
    if (addr + len < addr)
        return gg_fail(fault, GR_GPU_TORN, "range");
    if ((rc = GG_CALL(g, fault, ptr_attrs, sizeof(which) / sizeof(which[0]), which, to, addr)))
        return rc;
    if (type == 0)
        return 0; /* UNKNOWN */
    out->buffer = buffer;
    out->base = start;
    out->size = size;
    out->pieces = 1;
    if (type == CU_TYPE_HOST) {
        out->kind = GR_GPU_MEM_HOST;
        out->why = GR_GPU_PINNED;
    } else {
        cu_mem handle;
        out->device = device;
        out->kind = GR_GPU_MEM_DEVICE;
        out->shareable = GR_GPU_SHARE_IPC;
        if (managed) {
            out->kind = GR_GPU_MEM_MANAGED;
            out->shareable = 0;
            out->why = GR_GPU_MANAGED;
        } else if (g->cu.vmm_retain(&handle, (void *)addr) == CU_OK) {
            (void)g->cu.vmm_release(handle);
            return handles(g, addr, len, out, fault);
        } else if (g->cu.ptr_attr(&pool, CU_PTR_POOL, addr) == CU_OK && pool) {
            out->kind = GR_GPU_MEM_POOL;
            out->shareable = 0;
            out->why = GR_GPU_POOL;
        }
    }
    if (addr < out->base || len > out->size - (addr - out->base))
        return gg_fail(fault, GR_GPU_TORN, "range");
    return 0;
}

int gg_same(gr_gpu *gpu, uint64_t addr, uint64_t buffer, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    unsigned long long now = 0;
    cu_result r = g->cu.ptr_attr(&now, CU_PTR_BUFFER, addr);
    if (gg_lost(r))
        return gg_result(g, fault, r, gg_name_ptr_attr);
    return r == CU_OK && now == buffer ? 0 : gg_fail(fault, GR_GPU_CHANGED, gg_name_ptr_attr);
}
