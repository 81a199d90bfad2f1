/* The driver calls that Go makes, with Go's argument types. Only cuda.go includes this file. */
#ifndef GORAIL_CUDA_GO_H
#define GORAIL_CUDA_GO_H

#include <dlfcn.h>
#include <string.h>

#include "gpu_int.h"

#define G(gpu) (&gg_of(gpu)->cu)
/* A call that the driver would refuse while a graph is captured, see gg_relax. */
#define RELAXED(gpu, r, call) (gg_relax(gg_of(gpu)), (r) = (call), gg_restore(gg_of(gpu)), (r))

static cu_result gc_init(gr_gpu *g) { return G(g)->init(0); }
static cu_result gc_device_count(gr_gpu *g, int *n) { return G(g)->device_count(n); }
static cu_result gc_device_get(gr_gpu *g, int *device, int ordinal) { return G(g)->device_get(device, ordinal); }
static cu_result gc_device_uuid(gr_gpu *g, uint8_t *uuid, int device) { return G(g)->device_uuid((cu_uuid *)uuid, device); }
static cu_result gc_device_attr(gr_gpu *g, int *value, int which, int device) { return G(g)->device_attr(value, which, device); }
static cu_result gc_device_peer(gr_gpu *g, int *can, int a, int b) { return G(g)->device_peer(can, a, b); }

typedef struct gc_ptr {
    unsigned type, managed;
    int device;
    unsigned long long buffer;
    cu_ptr start;
    size_t size;
} gc_ptr;

static cu_result gc_ptr_attrs(gr_gpu *g, uint64_t at, gc_ptr *p)
{
    int which[] = {CU_PTR_TYPE, CU_PTR_MANAGED, CU_PTR_DEVICE, CU_PTR_BUFFER, CU_PTR_START, CU_PTR_SIZE};
    void *to[] = {&p->type, &p->managed, &p->device, &p->buffer, &p->start, &p->size};
    *p = (gc_ptr){.device = -1};
    return G(g)->ptr_attrs(sizeof(which) / sizeof(which[0]), which, to, at);
}

static cu_result gc_retain(gr_gpu *g, uint64_t *handle, uint64_t at);
static void gc_release(gr_gpu *g, uint64_t handle);

/* gc_ptr_attrs, and which kind of GPU memory it is. A buffer with the id `plain` is known to be memory of cuMemAlloc. In one call: from Go each
 * question costs 0.1 us more. */
static cu_result gc_look(gr_gpu *g, uint64_t at, uint64_t plain, gc_ptr *p, int *vmm, int *pool)
{
    cu_result r = gc_ptr_attrs(g, at, p);
    uint64_t handle, is = 0;
    *vmm = *pool = 0;
    if (r != CU_OK || p->type == 0 || p->type == CU_TYPE_HOST || p->managed || (plain && p->buffer == plain))
        return r;
    if (gc_retain(g, &handle, at) == CU_OK) {
        gc_release(g, handle);
        *vmm = 1;
    } else {
        *pool = G(g)->ptr_attr(&is, CU_PTR_POOL, at) == CU_OK && is;
    }
    return CU_OK;
}

static cu_result gc_ptr_word(gr_gpu *g, uint64_t *value, int which, uint64_t at) { return G(g)->ptr_attr(value, which, at); }

typedef struct gc_mapping {
    cu_ptr base;
    size_t size;
    int device;
    unsigned long long types, buffer; /* types: of handles that it can be exported as */
} gc_mapping;

/* The mapping of one VMM handle. A driver takes 0.09 us for each call, whatever the number of attributes. NVIDIA's list of those that one
 * call takes together does not name all of these. So a driver that refuses them is asked for each. */
static cu_result gc_mapping_at(gr_gpu *g, uint64_t at, gc_mapping *m)
{
    int which[] = {CU_PTR_MAPPING_BASE, CU_PTR_MAPPING_SIZE, CU_PTR_DEVICE, CU_PTR_BUFFER, CU_PTR_HANDLE_TYPES};
    void *to[] = {&m->base, &m->size, &m->device, &m->buffer, &m->types};
    *m = (gc_mapping){.device = -1};
    if (G(g)->ptr_attrs(sizeof(which) / sizeof(which[0]), which, to, at) == CU_OK)
        return CU_OK;
    *m = (gc_mapping){.device = -1};
    for (int i = 0; i < 4; i++) {
        cu_result r = G(g)->ptr_attr(to[i], which[i], at);
        if (r != CU_OK)
            return r;
    }
    if (G(g)->ptr_attr(to[4], which[4], at) != CU_OK)
        m->types = 0;
    return CU_OK;
}

typedef struct gc_handles {
    uint64_t base, end;
    unsigned long long types; /* that all handles can be exported as */
    int count;
} gc_handles;

/* The handles that a range touches, and at most so many; they are listed in `parts` unless that is NULL. 0: a part of it is not mapped, or is memory of another GPU. In C: a thousand handles
 * take 0.1 ms, by calls from Go 0.4. */
static int gc_handles_of(gr_gpu *g, uint64_t at, uint64_t end, int device, int most, gr_gpu_part *parts, gc_handles *h)
{
    gc_mapping m;
    *h = (gc_handles){.types = ~0ull, .end = at};
    do {
        if (gc_mapping_at(g, h->end, &m) != CU_OK || h->end - m.base >= m.size || m.device != device)
            return 0;
        if (parts)
            parts[h->count] = (gr_gpu_part){m.base, m.base + m.size, m.buffer};
        h->base = h->count++ ? h->base : m.base;
        h->types &= m.types;
        h->end = m.base + m.size;
    } while (h->end < end && h->count < most);
    return 1;
}

static void gc_sync_memops(gr_gpu *g, uint64_t at)
{
    const unsigned on = 1;
    if (G(g)->ptr_set)
        (void)G(g)->ptr_set(&on, CU_PTR_SYNC_MEMOPS, at);
}

static cu_result gc_retain(gr_gpu *g, uint64_t *handle, uint64_t at)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_retain(handle, (void *)at));
}
static cu_result gc_create(gr_gpu *g, uint64_t *handle, int device, size_t size, int types)
{
    int rdma = 0;
    cu_alloc_prop p = {.type = 1, .handle_types = types, .location = {CU_LOCATION_DEVICE, device}};
    p.flags.rdma = G(g)->device_attr(&rdma, CU_DEV_VMM_RDMA, device) == CU_OK && rdma;
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_create(handle, size, &p, 0));
}

static void gc_release(gr_gpu *g, uint64_t handle)
{
    cu_result r;
    (void)RELAXED(g, r, G(g)->vmm_release(handle));
}
static cu_result gc_export_fd(gr_gpu *g, int *fd, uint64_t handle)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_export(fd, handle, CU_HANDLE_FD, 0));
}
static cu_result gc_export_fabric(gr_gpu *g, uint8_t *out, uint64_t handle)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_export(out, handle, CU_HANDLE_FABRIC, 0));
}
static cu_result gc_import_fd(gr_gpu *g, uint64_t *handle, int fd)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_import(handle, (void *)(intptr_t)fd, CU_HANDLE_FD));
}
static cu_result gc_import_fabric(gr_gpu *g, uint64_t *handle, uint8_t *from)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_import(handle, from, CU_HANDLE_FABRIC));
}
static cu_result gc_reserve(gr_gpu *g, uint64_t *at, uint64_t size)
{
    if (gg_owned_begin(gg_of(g), NULL))
        return CU_OUT_OF_MEMORY;
    cu_result r;
    (void)RELAXED(g, r, G(g)->vmm_reserve(at, size, 0, 0, 0));
    gg_owned_made(gg_of(g), *at, r == CU_OK ? size : 0);
    return r;
}

static cu_result gc_unreserve(gr_gpu *g, uint64_t at, uint64_t size)
{
    gg_owned_freeing(gg_of(g));
    cu_result r;
    (void)RELAXED(g, r, G(g)->vmm_free(at, size));
    gg_owned_freed(gg_of(g), at);
    return r;
}
static cu_result gc_map(gr_gpu *g, uint64_t at, uint64_t size, uint64_t handle)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_map(at, size, 0, handle, 0));
}
static cu_result gc_unmap(gr_gpu *g, uint64_t at, uint64_t size)
{
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_unmap(at, size));
}

static cu_result gc_access(gr_gpu *g, uint64_t at, uint64_t size, int ordinal)
{
    cu_access a = {{CU_LOCATION_DEVICE, ordinal}, CU_ACCESS_READWRITE};
    cu_result r;
    return RELAXED(g, r, G(g)->vmm_access(at, size, &a, 1));
}

static int gc_allowed(gr_gpu *g, uint64_t at, int device)
{
    cu_location of = {CU_LOCATION_DEVICE, device};
    unsigned long long flags = 0;
    return G(g)->vmm_allowed && G(g)->vmm_allowed(&flags, &of, at) == CU_OK && (flags & CU_ACCESS_READWRITE) == CU_ACCESS_READWRITE;
}

static cu_result gc_ipc_open(gr_gpu *g, uint64_t *at, const uint8_t *bytes, uint64_t size)
{
    cu_ipc handle;
    memcpy(handle.bytes, bytes, sizeof(handle.bytes)); /* ours */
    if (gg_owned_begin(gg_of(g), NULL))
        return CU_OUT_OF_MEMORY;
    cu_result r;
    (void)RELAXED(g, r, G(g)->ipc_open(at, handle, CU_IPC_LAZY_PEER));
    gg_owned_made(gg_of(g), *at, r == CU_OK ? size : 0);
    return r;
}

static cu_result gc_ipc_close(gr_gpu *g, uint64_t at)
{
    gg_owned_freeing(gg_of(g));
    cu_result r;
    (void)RELAXED(g, r, G(g)->ipc_close(at));
    gg_owned_freed(gg_of(g), at);
    return r;
}
static cu_result gc_enable_peer(gr_gpu *g, int ordinal)
{
    cu_result r;
    return RELAXED(g, r, G(g)->ctx_enable_peer(gg_of(g)->dev[ordinal].ctx, 0));
}
static int gc_has_dmabuf(gr_gpu *g, int ordinal) { return gg_of(g)->dev[ordinal].info.dmabuf; }
static cu_result gc_range(gr_gpu *g, int *fd, uint64_t at, uint64_t size, int how)
{
    cu_result r;
    return RELAXED(g, r, G(g)->range_handle(fd, at, size, CU_RANGE_DMABUF, how));
}
static cu_result gc_host_register(gr_gpu *g, void *at, size_t size)
{
    cu_result r;
    return RELAXED(g, r, G(g)->host_register(at, size, CU_HOST_PORTABLE | CU_HOST_MAPPED));
}
static cu_result gc_host_unregister(gr_gpu *g, void *at)
{
    cu_result r;
    return RELAXED(g, r, G(g)->host_unregister(at));
}
static const char *gc_error_name(gr_gpu *g, int result)
{
    const char *name = NULL;
    return G(g)->error_name && G(g)->error_name(result, &name) == CU_OK ? name : NULL;
}

/* Makes the context of a GPU in use current in this thread. */
static cu_result gc_enter(gr_gpu *g, int ordinal)
{
    gg_relax(gg_of(g));
    cu_result r = G(g)->ctx_push(gg_of(g)->dev[ordinal].ctx);
    if (r != CU_OK)
        gg_restore(gg_of(g));
    return r;
}
static void gc_leave(gr_gpu *g) { gg_leave(gg_of(g)); }

/* The handle of the memory at the begin of an allocation, while that has this id: *changed is set otherwise. *call: which call failed. */
static cu_result gc_ipc_of(gr_gpu *g, int ordinal, uint64_t at, uint64_t buffer, uint8_t *handle, int *changed, const char **call)
{
    uint64_t is = 0;
    *changed = 0;
    *call = "cuCtxPushCurrent";
    cu_result r = gc_enter(g, ordinal);
    if (r != CU_OK)
        return r;
    *call = "cuPointerGetAttribute";
    r = G(g)->ptr_attr(&is, CU_PTR_BUFFER, at);
    *changed = !gg_lost(r) && (r != CU_OK || is != buffer);
    if (r == CU_OK && !*changed) {
        *call = "cuIpcGetMemHandle";
        r = G(g)->ipc_get((cu_ipc *)handle, at);
    }
    gc_leave(g);
    return r;
}
static int gc_first(gr_gpu *g)
{
    gg_dev *d = atomic_load(&gg_of(g)->first);
    return d ? d->ordinal : -1;
}

/* Checks for a driver library without calling it. 0: found, 1: no such library, 2: the library lacks driver calls. */
static int gg_present(const char *path)
{
    void *dl = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!dl)
        return 1;
    int rc = dlsym(dl, "cuInit") && dlsym(dl, "cuGetProcAddress") ? 0 : 2;
    dlclose(dl);
    return rc;
}

/* Reports whether this process has a context on a GPU. Loads and initializes nothing. */
static int gg_in_use(const char *path)
{
    void *dl = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!dl)
        return 0;
    int (*find)(const char *, void **, int, unsigned long long) =
        (int (*)(const char *, void **, int, unsigned long long))dlsym(dl, "cuGetProcAddress");
    int (*count)(int *) = 0, (*state)(int, unsigned *, int *) = 0;
    int n = 0, active = 0;
    if (find && find("cuDeviceGetCount", (void **)&count, 2000, 0) == 0 && find("cuDevicePrimaryCtxGetState", (void **)&state, 7000, 0) == 0 &&
        count && state && count(&n) == 0) /* fails if cuInit was not called in this process */
        for (int i = 0; i < n && !active; i++) {
            unsigned flags;
            if (state(i, &flags, &active) != 0)
                active = 0;
        }
    dlclose(dl);
    return active;
}

#endif
