#define _GNU_SOURCE
#include "app.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct app {
    cu_calls cu;
    cu_result (*managed)(cu_ptr *, size_t, unsigned);
    cu_result (*pool)(cu_ptr *, size_t, cu_stream);
    cu_result (*create)(cu_mem *, size_t, const cu_alloc_prop *, unsigned long long);
    cu_result (*write)(cu_ptr, const void *, size_t);
    cu_result (*read)(void *, cu_ptr, size_t);
    cu_result (*current)(cu_ctx *);
    cu_result (*info)(size_t *, size_t *);
    cu_result (*sync)(void);
    cu_ctx ctx[8];
};

app *app_open(const char *path, char *err, size_t len)
{
    app *a = calloc(1, sizeof(*a));
    void *dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    cu_result (*find)(const char *, void **, int, uint64_t) = NULL;
    if (dl)
        find = (cu_result (*)(const char *, void **, int, uint64_t))dlsym(dl, "cuGetProcAddress");
    if (!find) {
        snprintf(err, len, "%s", dlerror());
        free(a);
        return NULL;
    }
#define GET(field, name, version, needed, args) (void)find(name, (void **)&a->cu.field, version, 0);
    CU_ENTRIES(GET)
    (void)find("cuMemAllocManaged", (void **)&a->managed, 6000, 0);
    (void)find("cuMemAllocAsync", (void **)&a->pool, 11020, 0);
    (void)find("cuMemCreate", (void **)&a->create, 10020, 0);
    (void)find("cuMemcpyHtoD", (void **)&a->write, 3020, 0);
    (void)find("cuMemcpyDtoH", (void **)&a->read, 3020, 0);
    (void)find("cuCtxSynchronize", (void **)&a->sync, 2000, 0);
    (void)find("cuMemGetInfo", (void **)&a->info, 3020, 0);
    (void)find("cuCtxGetCurrent", (void **)&a->current, 4000, 0);
    int r = a->cu.init(0);
    if (r) {
        snprintf(err, len, "cuInit: %d", r);
        free(a);
        return NULL;
    }
    return a;
}

void app_close(app *a)
{
    for (int i = 0; i < 8; i++)
        if (a->ctx[i])
            (void)a->cu.primary_release(i);
    free(a);
}

int app_enter(app *a, int device)
{
    int r = a->ctx[device] ? 0 : a->cu.primary_retain(&a->ctx[device], device);
    return r ? r : a->cu.ctx_push(a->ctx[device]);
}

int app_leave(app *a)
{
    cu_ctx old;
    return a->cu.ctx_pop(&old);
}

#define WITHIN(a, device, call)                                                                                                                      \
    do {                                                                                                                                             \
        int r_ = app_enter(a, device);                                                                                                               \
        if (r_)                                                                                                                                      \
            return r_;                                                                                                                               \
        r_ = (call);                                                                                                                                 \
        (void)app_leave(a);                                                                                                                          \
        return r_;                                                                                                                                   \
    } while (0)

int app_alloc(app *a, int device, int kind, size_t size, cu_ptr *out)
{
    switch (kind) {
    case APP_POOL: WITHIN(a, device, a->pool(out, size, NULL));
    case APP_MANAGED: WITHIN(a, device, a->managed(out, size, 1));
    case APP_HOST: WITHIN(a, device, a->cu.host_alloc((void **)out, size, CU_HOST_PORTABLE | CU_HOST_MAPPED));
    }
    WITHIN(a, device, a->cu.mem_alloc(out, size));
}

int app_free(app *a, int device, int kind, cu_ptr at)
{
    if (kind == APP_HOST)
        WITHIN(a, device, a->cu.host_free((void *)at));
    WITHIN(a, device, a->cu.mem_free(at));
}

/* Maps n new handles at addresses that are reserved. */
static int map(app *a, int device, int n, size_t size, int handle_types, cu_ptr at)
{
    int host = (handle_types & APP_OF_HOST) != 0;
    cu_location numa = {CU_LOCATION_HOST_NUMA, 0}, gpu = {CU_LOCATION_DEVICE, device};
    cu_alloc_prop p = {.type = 1, .handle_types = handle_types & ~APP_OF_HOST, .location = host ? numa : gpu};
    cu_access access[] = {{gpu, CU_ACCESS_READWRITE}, {numa, CU_ACCESS_READWRITE}};
    int r = 0;
    for (int i = 0; i < n && !r; i++) {
        cu_mem handle;
        if ((r = a->create(&handle, size, &p, 0)) == 0) {
            r = a->cu.vmm_map(at + i * size, size, 0, handle, 0);
            (void)a->cu.vmm_release(handle);
        }
    }
    return r ? r : a->cu.vmm_access(at, n * size, access, host ? 2 : 1);
}

/* cuMemUnmap waits for nothing. */
static int unmap(app *a, int n, size_t size, cu_ptr at)
{
    int r = a->sync();
    for (int i = 0; i < n && !r; i++)
        r = a->cu.vmm_unmap(at + i * size, size);
    return r;
}

static int vmm(app *a, int device, int n, size_t size, int handle_types, cu_ptr *out)
{
    int r = a->cu.vmm_reserve(out, n * size, 0, 0, 0);
    return r ? r : map(a, device, n, size, handle_types, *out);
}

static int vmm_free(app *a, int n, size_t size, cu_ptr at)
{
    int r = unmap(a, n, size, at);
    return r ? r : a->cu.vmm_free(at, n * size);
}

int app_vmm(app *a, int device, int n, size_t size, int handle_types, cu_ptr *out) { WITHIN(a, device, vmm(a, device, n, size, handle_types, out)); }

int app_vmm_free(app *a, int device, int n, size_t size, cu_ptr at) { WITHIN(a, device, vmm_free(a, n, size, at)); }

int app_vmm_map(app *a, int device, int n, size_t size, int handle_types, cu_ptr at) { WITHIN(a, device, map(a, device, n, size, handle_types, at)); }

int app_vmm_unmap(app *a, int device, int n, size_t size, cu_ptr at) { WITHIN(a, device, unmap(a, n, size, at)); }

static int protect(app *a, int device, size_t size, cu_ptr at)
{
    cu_access access = {{CU_LOCATION_DEVICE, device}, CU_ACCESS_READ};
    return a->cu.vmm_access(at, size, &access, 1);
}

int app_vmm_protect(app *a, int device, size_t size, cu_ptr at) { WITHIN(a, device, protect(a, device, size, at)); }

int app_left(app *a, int device, size_t *left)
{
    size_t all;
    WITHIN(a, device, a->info(left, &all));
}

/* A copy from pageable memory returns before its last bytes are in place. The read behind it waits for them: a buffer must be quiet before a peer
 * uses it. */
static int put(app *a, cu_ptr to, const void *from, size_t len)
{
    char last;
    int r = a->write(to, from, len);
    return r || !len ? r : a->read(&last, to + len - 1, 1);
}

int app_write(app *a, int device, cu_ptr to, const void *from, size_t len) { WITHIN(a, device, put(a, to, from, len)); }

int app_read(app *a, int device, void *to, cu_ptr from, size_t len) { WITHIN(a, device, a->read(to, from, len)); }

int app_has_context(app *a)
{
    cu_ctx now = NULL;
    int r = a->current(&now);
    return r ? -r : now != NULL;
}

static int wrong_vmm(app *a, int which)
{
    cu_ptr at;
    cu_mem handle;
    cu_ipc ipc;
    int fd = -1, r = vmm(a, 0, 1, 2 << 20, which != WRONG_VMM_EXPORT ? CU_HANDLE_FD : 0, &at);
    if (r)
        return -r;
    if (which == WRONG_VMM_IPC)
        r = a->cu.ipc_get(&ipc, at);
    else if (which == WRONG_FREE_MAPPED)
        r = a->cu.vmm_free(at, 2 << 20);
    else if ((r = a->cu.vmm_retain(&handle, (void *)at)) == 0) {
        r = a->cu.vmm_export(&fd, handle, CU_HANDLE_FD, 0);
        (void)a->cu.vmm_release(handle);
    }
    int undone = vmm_free(a, 1, 2 << 20, at);
    return undone ? -undone : r;
}

static int wrong(app *a, int which)
{
    cu_alloc_prop p = {.type = 1, .location = {CU_LOCATION_DEVICE, 0}};
    cu_ptr at = 0, other = 0;
    cu_mem handle;
    cu_ipc ipc;
    cu_stream stream;
    cu_module module;
    void *host = NULL;
    int r;
    switch (which) {
    case WRONG_VMM_SIZE: return a->create(&handle, 4096, &p, 0);
    case WRONG_VMM_EXPORT:
    case WRONG_VMM_IPC:
    case WRONG_FREE_MAPPED: return wrong_vmm(a, which);
    case WRONG_OWN_IPC:
        if ((r = a->cu.mem_alloc(&at, 4096)) || (r = a->cu.ipc_get(&ipc, at)))
            return -r;
        r = a->cu.ipc_open(&other, ipc, CU_IPC_LAZY_PEER);
        (void)a->cu.mem_free(at);
        return r;
    case WRONG_DOUBLE_FREE:
        if ((r = a->cu.mem_alloc(&at, 4096)) || (r = a->cu.mem_free(at)))
            return -r;
        return a->cu.mem_free(at);
    case WRONG_REGISTERED_TWICE:
        if (!(host = aligned_alloc(4096, 8192)) || (r = a->cu.host_register(host, 8192, CU_HOST_PORTABLE)))
            return -1;
        r = a->cu.host_register((char *)host + 4096, 4096, CU_HOST_PORTABLE);
        (void)a->cu.host_unregister(host);
        free(host);
        return r;
    case WRONG_PTX: return a->cu.module_load(&module, ".version 99.9\n.target sm_50\n.address_size 64\n", 0, NULL, NULL);
    default: return a->cu.stream_create(&stream, 77, 0);
    }
}

int app_wrong(app *a, int which)
{
    cu_ptr at;
    if (which == WRONG_NO_CONTEXT)
        return a->cu.mem_alloc(&at, 4096);
    WITHIN(a, 0, wrong(a, which));
}
