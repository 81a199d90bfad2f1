/* Loads the driver library by path; no toolkit is needed. This is C code because it fills in the table of functions that posts
 * call (cu_calls). And the errors of these calls, which posts and polls fill in. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu_int.h"

#define NAME(field, name, version, needed, args) const char gg_name_##field[] = name;
CU_ENTRIES(NAME)

#define TEXT(name, text) text,
static const char *const texts[] = {GR_GPU_WHYS(TEXT)};

const char *gr_gpu_why_text(int why) { return why >= 0 && why < GR_GPU_WHY_COUNT ? texts[why] : "unknown"; }

int gg_fail(gr_gpu_fault *fault, int why, const char *what)
{
    if (fault)
        *fault = (gr_gpu_fault){.why = why, .call = what};
    return -why;
}

/* Errors after which all calls of this process fail. */
int gg_lost(cu_result result)
{
    switch (result) {
    case CU_DEINITIALIZED:
    case CU_ECC:
    case CU_ILLEGAL_ADDRESS:
    case CU_LAUNCH_TIMEOUT:
    case CU_CONTEXT_DESTROYED:
    case CU_ASSERT:
    case CU_HARDWARE_STACK:
    case CU_ILLEGAL_INSTRUCTION:
    case CU_MISALIGNED:
    case CU_ADDRESS_SPACE:
    case CU_INVALID_PC:
    case CU_LAUNCH_FAILED: return 1;
    }
    return 0;
}

int gg_result(gg *g, gr_gpu_fault *fault, cu_result result, const char *call)
{
    if (result == CU_OK)
        return 0;
    int why = gg_lost(result) ? GR_GPU_LOST : result == CU_OUT_OF_MEMORY ? GR_GPU_NO_MEMORY : GR_GPU_DRIVER;
    if (fault) {
        const char *name = NULL;
        *fault = (gr_gpu_fault){.why = why, .result = result, .call = call};
        if (g->cu.error_name && g->cu.error_name(result, &name) == CU_OK && name)
            snprintf(fault->text, sizeof(fault->text), "%s", name);
    }
    return -why;
}

enum { OLDEST = 11040 }; /* R470: cuDeviceGetUuid of MIG, the attributes of mappings */

static int text(gr_gpu_fault *fault, int why, const char *what, const char *say)
{
    gg_fail(fault, why, what);
    if (fault && say)
        snprintf(fault->text, sizeof(fault->text), "%s", say);
    return -why;
}

static int resolve(gg *g, gr_gpu_fault *fault)
{
    cu_result (*version)(int *) = (cu_result (*)(int *))dlsym(g->dl, "cuDriverGetVersion");
    cu_result (*find)(const char *, void **, int, uint64_t) = (cu_result (*)(const char *, void **, int, uint64_t))dlsym(g->dl, "cuGetProcAddress");
    int v = 0;
    if (!version || version(&v) != CU_OK)
        return text(fault, GR_GPU_NOT_A_DRIVER, "cuDriverGetVersion", NULL);
    g->pub.version = v;
    char say[96];
    snprintf(say, sizeof(say), "supports CUDA %d.%d, but CUDA 11.4 (driver 470) or later is required", v / 1000, v % 1000 / 10);
    if (v < OLDEST)
        return text(fault, GR_GPU_OLD_DRIVER, "cuDriverGetVersion", say);
    if (!find)
        return text(fault, GR_GPU_NOT_A_DRIVER, "cuGetProcAddress", NULL);
    const struct {
        void **to;
        const char *name;
        int version, needed;
    } want[] = {
#define WANT(field, name, version, needed, args) {(void **)&g->cu.field, name, version, needed},
        CU_ENTRIES(WANT)};
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        if ((find(want[i].name, want[i].to, want[i].version, 0) != CU_OK || !*want[i].to) && want[i].needed)
            return text(fault, GR_GPU_NOT_A_DRIVER, want[i].name, NULL);
    return 0;
}

gr_gpu *gg_open(const char *path, const char *ptx, const char *pack_ptx, gr_gpu_fault *fault)
{
    gg *g = GR_ALLOC(gpu_driver, calloc(1, sizeof(*g)));
    if (!g) {
        gg_fail(fault, GR_GPU_NO_MEMORY, "calloc");
        return NULL;
    }
    g->pub.ops = &gg_ops;
    g->ptx = ptx;
    g->pack_ptx = pack_ptx;
    g->cut = -1;
    pthread_mutex_init(&g->mu, NULL);
    pthread_mutex_init(&g->arena_mu, NULL);
    pthread_mutex_init(&g->stream_mu, NULL);
    pthread_mutex_init(&g->load_mu, NULL);
    pthread_mutex_init(&g->owned.mu, NULL);
    for (int i = 0; i < GG_DEVICES; i++) {
        g->dev[i].ordinal = i;
        g->dev[i].gpu = &g->pub;
    }
    g->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!g->dl)
        text(fault, GR_GPU_NO_LIBRARY, "dlopen", dlerror());
    else if (resolve(g, fault) == 0)
        return &g->pub;
    free(g);
    return NULL;
}

int gg_busy(gr_gpu *gpu)
{
    gg *g = gg_of(gpu);
    pthread_mutex_lock(&g->stream_mu);
    int busy = g->streams != NULL || atomic_load(&g->tables) != 0 || atomic_load(&g->ending) != 0;
    pthread_mutex_unlock(&g->stream_mu);
    return busy;
}

int gg_close(gr_gpu *gpu)
{
    gg *g = gg_of(gpu);
    if (gg_busy(gpu))
        return -GR_GPU_BUSY;
    gg_devices_close(g);
    pthread_mutex_destroy(&g->mu);
    pthread_mutex_destroy(&g->arena_mu);
    pthread_mutex_destroy(&g->stream_mu);
    pthread_mutex_destroy(&g->load_mu);
    pthread_mutex_destroy(&g->owned.mu);
    free(g->owned.list);
    free(g);
    return 0;
}

void gg_counts(gr_gpu *gpu, uint64_t out[3])
{
    _Atomic uint64_t *const of[3] = {&gpu->launches, &gpu->engine_copies, &gpu->polls};
    for (int i = 0; i < 3; i++)
        out[i] = atomic_load_explicit(of[i], memory_order_relaxed);
}

const gr_gpu_ops gg_ops = {
    .alloc = gg_alloc,
    .free = gg_free,
    .table = gg_table,
    .table_free = gg_table_free,
    .entry = gg_entry,
    .stream = gg_stream,
    .stream_close = gg_stream_close,
    .job = gg_job,
    .job_free = gg_job_free,
    .post = gg_post,
    .poll = gg_poll,
    .cancel = gg_cancel,
    .same = gg_same,
    .mapped = gg_mapped,
};
