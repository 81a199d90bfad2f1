#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GPUS = 64 };

struct bc_driver {
    cu_calls cu;
    cu_result (*write)(cu_ptr, const void *, size_t);
    cu_result (*read)(void *, cu_ptr, size_t);
    pthread_mutex_t mu; /* guards ctx */
    cu_ctx ctx[GPUS];
};

bc_driver *bc_open(const char *path, char *why, size_t len)
{
    void *dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    cu_result (*find)(const char *, void **, int, uint64_t) = NULL;
    if (dl)
        find = (cu_result (*)(const char *, void **, int, uint64_t))dlsym(dl, "cuGetProcAddress");
    if (!find) {
        snprintf(why, len, "%s", dlerror());
        return NULL;
    }
    bc_driver *d = calloc(1, sizeof(*d));
    const char *missing = NULL;
#define GET(field, name, version, needed, args)                                                                                                      \
    if (find(name, (void **)&d->cu.field, version, 0) != CU_OK && (needed))                                                                          \
        missing = name;
    CU_ENTRIES(GET)
    if (find("cuMemcpyHtoD", (void **)&d->write, 3020, 0) != CU_OK || find("cuMemcpyDtoH", (void **)&d->read, 3020, 0) != CU_OK)
        missing = "cuMemcpyHtoD or cuMemcpyDtoH";
    int r = missing ? CU_OK : d->cu.init(0);
    if (missing)
        snprintf(why, len, "this driver has no %s", missing);
    else if (r != CU_OK)
        snprintf(why, len, "cuInit: %s", bc_error(d, r));
    if (missing || r != CU_OK) {
        free(d);
        return NULL;
    }
    pthread_mutex_init(&d->mu, NULL);
    return d;
}

const char *bc_error(bc_driver *d, cu_result r)
{
    const char *name = NULL;
    return d->cu.error_name(r, &name) == CU_OK && name ? name : "unknown error";
}

void bc_release(bc_driver *d)
{
    for (int i = 0; i < GPUS; i++)
        if (d->ctx[i])
            (void)d->cu.primary_release(i);
}

int bc_count(bc_driver *d, int *gpus) { return d->cu.device_count(gpus); }

int bc_describe(bc_driver *d, int gpu, char *name, size_t len, int *sms)
{
    int r = d->cu.device_name(name, (int)len, gpu);
    return r ? r : d->cu.device_attr(sms, CU_DEV_SMS, gpu);
}

/* enter makes the primary context current. leave undoes that. */
static int enter(bc_driver *d, int gpu)
{
    if (gpu < 0 || gpu >= GPUS)
        return CU_INVALID_DEVICE;
    pthread_mutex_lock(&d->mu);
    int r = d->ctx[gpu] ? CU_OK : d->cu.primary_retain(&d->ctx[gpu], gpu);
    pthread_mutex_unlock(&d->mu);
    return r ? r : d->cu.ctx_push(d->ctx[gpu]);
}

static void leave(bc_driver *d)
{
    cu_ctx old;
    (void)d->cu.ctx_pop(&old);
}

#define WITHIN(d, gpu, call)                                                                                                                         \
    do {                                                                                                                                             \
        int r_ = enter(d, gpu);                                                                                                                      \
        if (r_)                                                                                                                                      \
            return r_;                                                                                                                               \
        r_ = (call);                                                                                                                                 \
        leave(d);                                                                                                                                    \
        return r_;                                                                                                                                   \
    } while (0)

enum { GRANULE = 2 << 20 };

static int vmm_alloc(bc_driver *d, int gpu, size_t *size, cu_ptr *out)
{
    cu_alloc_prop p = {.type = 1, .handle_types = CU_HANDLE_FD, .location = {CU_LOCATION_DEVICE, gpu}};
    cu_access access = {{CU_LOCATION_DEVICE, gpu}, CU_ACCESS_READWRITE};
    cu_mem handle;
    *size = (*size + GRANULE - 1) / GRANULE * GRANULE;
    int r = d->cu.vmm_create(&handle, *size, &p, 0);
    if (r)
        return r;
    if ((r = d->cu.vmm_reserve(out, *size, 0, 0, 0)) == CU_OK) {
        r = d->cu.vmm_map(*out, *size, 0, handle, 0);
        if (r == CU_OK && (r = d->cu.vmm_access(*out, *size, &access, 1)) != CU_OK)
            (void)d->cu.vmm_unmap(*out, *size);
        if (r != CU_OK)
            (void)d->cu.vmm_free(*out, *size);
    }
    (void)d->cu.vmm_release(handle);
    return r;
}

static int vmm_free(bc_driver *d, size_t size, cu_ptr at)
{
    int r = d->cu.vmm_unmap(at, size);
    return r ? r : d->cu.vmm_free(at, size);
}

int bc_alloc(bc_driver *d, int gpu, size_t *size, int vmm, cu_ptr *out)
{
    WITHIN(d, gpu, vmm ? vmm_alloc(d, gpu, size, out) : d->cu.mem_alloc(out, *size));
}

int bc_free(bc_driver *d, int gpu, size_t size, int vmm, cu_ptr at) { WITHIN(d, gpu, vmm ? vmm_free(d, size, at) : d->cu.mem_free(at)); }

int bc_write(bc_driver *d, int gpu, cu_ptr to, const void *from, size_t len) { WITHIN(d, gpu, d->write(to, from, len)); }

int bc_read(bc_driver *d, int gpu, void *to, cu_ptr from, size_t len) { WITHIN(d, gpu, d->read(to, from, len)); }

/* The load. */
enum { THREADS = 256, BLOCKS_PER_SM = 8, ROUNDS = 1000, QUEUED = 2 };
#define DATA ((size_t)64 << 20) /* more than a GPU's L2 cache */

struct bc_load {
    bc_driver *d;
    int gpu, sms;
    cu_module module;
    cu_function kernel;
    cu_ptr data;
    cu_stream stream;
    cu_event ended[QUEUED];
    pthread_t thread;
    int stop;
    long count; /* or -CUresult */
};

static int launch(bc_load *l)
{
    uint32_t mask = DATA / sizeof(float) - 1, rounds = ROUNDS;
    void *args[] = {&l->data, &mask, &rounds};
    return l->d->cu.launch(l->kernel, (unsigned)(l->sms * BLOCKS_PER_SM), 1, 1, THREADS, 1, 1, 0, l->stream, args, NULL);
}

/* turns keeps QUEUED launches queued, and counts those that ended. */
static int turns(bc_load *l)
{
    const cu_calls *cu = &l->d->cu;
    int r = 0;
    for (long n = 0; !r && !__atomic_load_n(&l->stop, __ATOMIC_RELAXED); n++) {
        cu_event e = l->ended[n % QUEUED];
        while (n >= QUEUED && (r = cu->event_query(e)) == CU_NOT_READY && !__atomic_load_n(&l->stop, __ATOMIC_RELAXED))
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); /* leaves the core to the application */
        if (r == CU_NOT_READY)
            return 0;
        if (!r && n >= QUEUED)
            __atomic_add_fetch(&l->count, 1, __ATOMIC_RELAXED);
        if (!r && (r = launch(l)) == CU_OK)
            r = cu->event_record(e, l->stream);
    }
    return r;
}

static void *run(void *arg)
{
    bc_load *l = arg;
    int r = enter(l->d, l->gpu);
    if (!r) {
        r = turns(l);
        leave(l->d);
    }
    if (r)
        __atomic_store_n(&l->count, -(long)r, __ATOMIC_RELAXED);
    return NULL;
}

static int make(bc_load *l, const char *ptx)
{
    const cu_calls *cu = &l->d->cu;
    int r = cu->module_load(&l->module, ptx, 0, NULL, NULL);
    if (!r)
        r = cu->module_function(&l->kernel, l->module, "bc_busy");
    if (!r)
        r = cu->mem_alloc(&l->data, DATA);
    if (!r)
        r = cu->stream_create(&l->stream, CU_STREAM_NON_BLOCKING, 0);
    for (int i = 0; i < QUEUED && !r; i++)
        r = cu->event_create(&l->ended[i], CU_EVENT_NO_TIMING);
    if (!r)
        r = cu->fill(l->data, 0, DATA, l->stream);
    return r ? r : cu->stream_sync(l->stream);
}

/* drop releases what make has made. */
static int drop(bc_load *l)
{
    const cu_calls *cu = &l->d->cu;
    int r = l->stream ? cu->stream_sync(l->stream) : CU_OK;
    for (int i = 0; i < QUEUED; i++)
        if (l->ended[i])
            (void)cu->event_destroy(l->ended[i]);
    if (l->stream)
        (void)cu->stream_destroy(l->stream);
    if (l->data)
        (void)cu->mem_free(l->data);
    if (l->module)
        (void)cu->module_unload(l->module);
    return r;
}

int bc_load_start(bc_driver *d, int gpu, int sms, const char *ptx, bc_load **out)
{
    bc_load *l = calloc(1, sizeof(*l));
    *l = (bc_load){.d = d, .gpu = gpu, .sms = sms};
    int r = enter(d, gpu);
    if (!r) {
        r = make(l, ptx);
        if (r)
            (void)drop(l);
        leave(d);
    }
    if (!r && pthread_create(&l->thread, NULL, run, l) != 0)
        r = CU_OS;
    if (r) {
        free(l);
        return r;
    }
    *out = l;
    return CU_OK;
}

long bc_load_count(bc_load *l) { return __atomic_load_n(&l->count, __ATOMIC_RELAXED); }

int bc_load_stop(bc_load *l)
{
    __atomic_store_n(&l->stop, 1, __ATOMIC_RELAXED);
    pthread_join(l->thread, NULL);
    bc_driver *d = l->d;
    int r = enter(d, l->gpu);
    if (!r) {
        r = drop(l);
        leave(d);
    }
    if (!r && l->count < 0)
        r = (int)-l->count;
    free(l);
    return r;
}
