/* GPUs and their primary contexts. A context is retained at first use, and current only within our calls. This is C code
 * because streams and tables, which C code makes, open GPUs, and each post enters a context. */
#include <string.h>

#include "gpu_int.h"

/* How often this thread is relaxed, and its mode before the first time. */
static _Thread_local struct {
    unsigned depth;
    int mode;
} capture;

void gg_relax(gg *g)
{
    if (capture.depth++ == 0 && g->cu.capture_mode) {
        capture.mode = CU_CAPTURE_RELAXED;
        (void)g->cu.capture_mode(&capture.mode); /* fails only if CUDA has ended */
    }
}

void gg_restore(gg *g)
{
    if (--capture.depth == 0 && g->cu.capture_mode)
        (void)g->cu.capture_mode(&capture.mode);
}

int gg_enter(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    gg_relax(g);
    int rc = GG_CALL(g, fault, ctx_push, d->ctx);
    if (rc)
        gg_restore(g);
    return rc;
}

void gg_leave(gg *g)
{
    cu_ctx old;
    (void)g->cu.ctx_pop(&old); /* fails only if CUDA has ended, and every other call reports that */
    gg_restore(g);
}

int gg_cannot_jit(cu_result r)
{
    return r == CU_NO_JIT || r == CU_JIT_OFF || r == CU_PTX_VERSION || r == CU_INVALID_PTX || r == CU_NOT_SUPPORTED || r == CU_NOT_FOUND;
}

cu_result gg_module(gg *g, const char *image, const char *const *names, cu_function *functions, int n, cu_module *out)
{
    cu_module module = NULL;
    cu_function f[3];
    cu_result r = g->cu.module_load(&module, image, 0, NULL, NULL);
    for (int i = 0; i < n && r == CU_OK; i++)
        r = g->cu.module_function(&f[i], module, names[i]);
    if (r != CU_OK) {
        if (module)
            (void)g->cu.module_unload(module);
        return r;
    }
    memcpy(functions, f, (size_t)n * sizeof(*f)); /* ours */
    *out = module;
    return CU_OK;
}

/* Within the context, with load_mu held. If the driver cannot translate the kernel, copy engines are used. */
static int load(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    cu_function f[2] = {NULL};
    cu_result r = d->refusal = gg_module(g, g->ptx, (const char *const[]){"gr_gather", "gr_gather_short"}, f, 2, &d->module);
    d->gather = f[0], d->gather_short = f[1];
    return r == CU_OK || gg_cannot_jit(r) ? 0 : gg_result(g, fault, r, gg_name_module_load);
}

int gg_load(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    int rc = 0;
    if (atomic_load(&d->tried))
        return 0;
    pthread_mutex_lock(&g->load_mu);
    if (!atomic_load(&d->tried) && (rc = gg_enter(g, d, fault)) == 0) {
        rc = load(g, d, fault);
        atomic_store(&d->tried, rc == 0);
        gg_leave(g);
    }
    pthread_mutex_unlock(&g->load_mu);
    return rc;
}

int gg_kernel(gr_gpu *gpu, int device, int *loaded, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d || (rc = gg_load(g, d, fault)))
        return rc;
    *loaded = d->gather != NULL;
    if (!*loaded)
        (void)gg_result(g, fault, d->refusal, gg_name_module_load);
    return 0;
}

static int query_info(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    gr_gpu_device_info *i = &d->info;
    size_t memory = 0;
    cu_uuid uuid;
    int rc;
    memset(i, 0, sizeof(*i));
    if ((rc = GG_CALL(g, fault, device_get, &d->dev, d->ordinal)) || (rc = GG_CALL(g, fault, device_name, i->name, sizeof(i->name), d->dev)) ||
        (rc = GG_CALL(g, fault, device_uuid, &uuid, d->dev)) || (rc = GG_CALL(g, fault, device_pci, i->pci, sizeof(i->pci), d->dev)) ||
        (rc = GG_CALL(g, fault, device_attr, &i->sms, CU_DEV_SMS, d->dev)) || (rc = GG_CALL(g, fault, device_memory, &memory, d->dev)))
        return rc;
    memcpy(i->uuid, uuid.bytes, 16); /* ours */
    i->memory = memory;
    for (char *c = i->pci; *c; c++) /* sysfs uses lower case */
        if (*c >= 'A' && *c <= 'F')
            *c += 'a' - 'A';
    if (!g->cu.range_handle || g->cu.device_attr(&i->dmabuf, CU_DEV_DMABUF, d->dev) != CU_OK)
        i->dmabuf = 0;
    i->flush = gg_wants_flush(g, d->dev);
    return 0;
}

static int make(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    int least = 0, greatest = 0, rc = query_info(g, d, fault);
    if (rc || (rc = GG_CALL(g, fault, primary_retain, &d->ctx, d->dev)))
        return rc;
    if ((rc = gg_enter(g, d, fault)) == 0) {
        if ((rc = GG_CALL(g, fault, ctx_priorities, &least, &greatest)) == 0)
            rc = GG_CALL(g, fault, stream_create, &d->util, CU_STREAM_NON_BLOCKING, greatest);
        d->priority = greatest;
        gg_leave(g);
    }
    if (rc)
        (void)g->cu.primary_release(d->dev);
    return rc;
}

gg_dev *gg_device(gg *g, int ordinal, gr_gpu_fault *fault, int *rc)
{
    *rc = 0;
    if (ordinal < 0 || ordinal >= g->pub.devices) {
        *rc = gg_fail(fault, GR_GPU_NO_DEVICE, "ordinal");
        return NULL;
    }
    gg_dev *d = &g->dev[ordinal];
    if (atomic_load(&d->open))
        return d;
    pthread_mutex_lock(&g->mu);
    gg_relax(g);
    if (!atomic_load(&d->open) && (*rc = make(g, d, fault)) == 0) {
        atomic_store(&d->open, 1);
        if (!atomic_load(&g->first))
            atomic_store(&g->first, d);
    }
    gg_restore(g);
    pthread_mutex_unlock(&g->mu);
    return *rc ? NULL : d;
}

int gg_info(gr_gpu *gpu, int device, gr_gpu_device_info *out, gr_gpu_fault *fault)
{
    int rc;
    gg_dev *d = gg_device(gg_of(gpu), device, fault, &rc);
    if (d && out)
        *out = d->info;
    return rc;
}

void gg_devices_close(gg *g)
{
    /* Pinned memory goes first, while the context that made it is retained. */
    gg_arena_close(g);
    for (int i = 0; i < g->pub.devices; i++) {
        gg_dev *d = &g->dev[i];
        if (!atomic_load(&d->open))
            continue;
        if (gg_enter(g, d, NULL) == 0) {
            gg_marks_close(g, d);
            (void)g->cu.stream_destroy(d->util);
            if (d->module)
                (void)g->cu.module_unload(d->module);
            if (d->pack_module)
                (void)g->cu.module_unload(d->pack_module);
            gg_leave(g);
        }
        (void)g->cu.primary_release(d->dev);
    }
}

/* ---- flushes of other devices' writes: the core calls them for each transfer (core/base.c), without Go ---- */

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
    (void)gg_flush(d->gpu, d->ordinal, NULL); /* fails only if CUDA has ended, and all calls of the application report that */
}

void *gg_flusher(gr_gpu *gpu, int device)
{
    gg *g = gg_of(gpu);
    if (device < 0 || device >= gpu->devices || !atomic_load(&g->dev[device].open) || !g->dev[device].info.flush)
        return NULL;
    return &g->dev[device];
}
