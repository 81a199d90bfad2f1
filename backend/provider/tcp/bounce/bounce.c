#include "bounce.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "gr_failpoint.h"

enum { OPS = TCP_COPY_OPS * sizeof(gr_op), COPIES = TCP_OUT_COPIES + TCP_IN_COPIES, BYTES = TCP_OUT_COPIES * TCP_OUT_BYTES + TCP_IN_COPIES * TCP_IN_BYTES + COPIES * OPS };

uint64_t tcp_copy_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int make_jobs(tcp_gpu *gpu, gr_gpu_fault *fault)
{
    uint8_t *ops = gpu->mem, *mem = ops + (size_t)COPIES * OPS;
    for (int i = 0; i < COPIES; i++) {
        tcp_copy *c = &gpu->copy[i];
        int in = i >= TCP_OUT_COPIES;
        *c = (tcp_copy){.gpu = gpu, .ops = (gr_op *)(void *)(ops + (size_t)i * OPS), .mem = mem, .size = in ? TCP_IN_BYTES : TCP_OUT_BYTES, .in = (uint8_t)in};
        int rc = gpu->driver->ops->job(gpu->stream, &c->job, fault);
        if (rc)
            return rc;
        TAILQ_INSERT_TAIL(in ? &gpu->free_in : &gpu->free_out, c, next);
        mem += c->size;
    }
    return 0;
}

int tcp_gpu_new(gr_gpu *driver, int device, int peer, tcp_gpu **out, gr_gpu_fault *fault)
{
    tcp_gpu *gpu = GR_ALLOC(tcp_gpu, calloc(1, sizeof(*gpu)));
    *out = NULL;
    if (!gpu)
        return -GR_GPU_NO_MEMORY;
    gpu->driver = driver;
    gpu->device = device;
    TAILQ_INIT(&gpu->free_in);
    TAILQ_INIT(&gpu->free_out);
    TAILQ_INIT(&gpu->flying);
    TAILQ_INIT(&gpu->ended);
    int rc = driver->ops->stream(driver, device, peer, &gpu->stream, fault);
    if (!rc && !(gpu->mem = driver->ops->alloc(driver, BYTES)))
        rc = -GR_GPU_NO_MEMORY;
    if (!rc)
        rc = make_jobs(gpu, fault);
    if (rc)
        tcp_gpu_free(gpu);
    else
        *out = gpu;
    return rc;
}

void tcp_gpu_free(tcp_gpu *gpu)
{
    for (int i = 0; i < COPIES; i++)
        if (gpu->copy[i].job)
            (void)gpu->driver->ops->job_free(gpu->copy[i].job); /* none is in flight */
    if (gpu->stream)
        gpu->driver->ops->stream_close(gpu->driver, gpu->stream);
    if (gpu->mem)
        gpu->driver->ops->free(gpu->driver, gpu->mem);
    free(gpu);
}

tcp_copy *tcp_copy_take(tcp_gpu *gpu, int in)
{
    struct tcp_copies *list = in ? &gpu->free_in : &gpu->free_out;
    tcp_copy *c = TAILQ_FIRST(list);
    if (!c)
        return NULL;
    TAILQ_REMOVE(list, c, next);
    c->used = c->nops = c->refs = 0;
    c->seq = 0;
    c->ask = 0;
    c->err = 0;
    c->conn = NULL;
    c->state = TCP_COPY_OPEN;
    STAILQ_INIT(&c->after);
    return c;
}

void tcp_copy_give(tcp_copy *c)
{
    if (c->state == TCP_COPY_SPILLED) {
        free(c);
        return;
    }
    if (c->state == TCP_COPY_ENDED && !c->in)
        TAILQ_REMOVE(&c->gpu->ended, c, next);
    TAILQ_INSERT_HEAD(c->in ? &c->gpu->free_in : &c->gpu->free_out, c, next);
}

uint8_t *tcp_copy_add(tcp_copy *c, uint64_t addr, uint32_t len)
{
    uint8_t *at = c->mem + c->used;
    gr_op *last = c->nops ? &c->ops[c->nops - 1] : NULL;
    c->used += len;
    if (last && last->local + last->len == addr && last->remote + last->len == (uintptr_t)at)
        last->len += len;
    else
        c->ops[c->nops++] = (gr_op){.local = addr, .remote = (uintptr_t)at, .len = len};
    return at;
}

static void has_ended(tcp_copy *c)
{
    c->state = TCP_COPY_ENDED;
    if (!c->in)
        TAILQ_INSERT_TAIL(&c->gpu->ended, c, next);
}

void tcp_copy_post(tcp_copy *c)
{
    tcp_gpu *gpu = c->gpu;
    gr_gpu_work w = {.ops = c->ops, .nops = c->nops, .write = !c->in, .bytes = c->used};
    int rc = gpu->driver->ops->post(c->job, &w, NULL);
    if (rc) {
        c->err = EIO;
        has_ended(c);
        return;
    }
    if (TAILQ_EMPTY(&gpu->flying))
        gpu->since = tcp_copy_clock();
    gpu->nposted++;
    c->state = TCP_COPY_FLYING;
    TAILQ_INSERT_TAIL(&gpu->flying, c, next);
}

tcp_copy *tcp_gpu_poll(tcp_gpu *gpu)
{
    tcp_copy *c = TAILQ_FIRST(&gpu->flying);
    int rc = c ? gpu->driver->ops->poll(c->job, NULL) : 1;
    if (rc > 0)
        return NULL;
    TAILQ_REMOVE(&gpu->flying, c, next);
    gpu->nended++;
    gpu->since = tcp_copy_clock();
    c->err = rc ? EIO : 0;
    has_ended(c);
    return c;
}
