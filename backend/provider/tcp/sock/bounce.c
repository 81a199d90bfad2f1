#include "bounce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gr_failpoint.h"

enum {
    OPS = TCP_COPY_OPS * sizeof(gr_op),
    BYTES = TCP_LARGE_COPIES * TCP_LARGE_BYTES + TCP_SMALL_COPIES * TCP_SMALL_BYTES + TCP_IN_COPIES * TCP_IN_BYTES + TCP_COPIES * OPS,
};
_Static_assert(BYTES <= (4 << 20) - 64, "the arena has blocks of powers of two");

uint64_t tcp_copy_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static struct tcp_copies *free_list(tcp_copy *c) { return c->in ? &c->gpu->in : c->size == TCP_SMALL_BYTES ? &c->gpu->small : &c->gpu->large; }

static int make_jobs(tcp_gpu *gpu, gr_gpu_fault *fault)
{
    uint8_t *ops = gpu->mem, *mem = ops + (size_t)TCP_COPIES * OPS;
    for (int i = 0; i < TCP_COPIES; i++) {
        tcp_copy *c = &gpu->copy[i];
        int in = i >= TCP_LARGE_COPIES + TCP_SMALL_COPIES;
        *c = (tcp_copy){.gpu = gpu, .ops = (gr_op *)(void *)(ops + (size_t)i * OPS), .mem = mem, .in = (uint8_t)in};
        c->size = in ? TCP_IN_BYTES : i < TCP_LARGE_COPIES ? TCP_LARGE_BYTES : TCP_SMALL_BYTES;
        int rc = gpu->driver->ops->job(gpu->stream, &c->job, fault);
        if (rc)
            return rc;
        TAILQ_INSERT_TAIL(free_list(c), c, next);
        mem += c->size;
    }
    return 0;
}

int tcp_gpu_new(gr_gpu *driver, int device, int peer, tcp_gpu **out)
{
    tcp_gpu *gpu = GR_ALLOC(tcp_gpu, calloc(1, sizeof(*gpu)));
    *out = gpu;
    if (!gpu)
        return -GR_GPU_NO_MEMORY;
    gpu->driver = driver;
    gpu->device = device;
    gpu->peer = peer;
    TAILQ_INIT(&gpu->in);
    TAILQ_INIT(&gpu->small);
    TAILQ_INIT(&gpu->large);
    TAILQ_INIT(&gpu->flying);
    TAILQ_INIT(&gpu->ended);
    return 0;
}

/* No copy is flying. */
static void empty(tcp_gpu *gpu)
{
    for (int i = 0; i < TCP_COPIES; i++) {
        if (gpu->copy[i].job)
            (void)gpu->driver->ops->job_free(gpu->copy[i].job);
        gpu->copy[i].job = NULL;
    }
    TAILQ_INIT(&gpu->in);
    TAILQ_INIT(&gpu->small);
    TAILQ_INIT(&gpu->large);
    if (gpu->stream)
        gpu->driver->ops->stream_close(gpu->driver, gpu->stream);
    if (gpu->mem)
        gpu->driver->ops->free(gpu->driver, gpu->mem);
    gpu->stream = NULL;
    gpu->mem = NULL;
}

int tcp_gpu_fill(tcp_gpu *gpu, gr_gpu_fault *fault)
{
    gr_gpu *driver = gpu->driver;
    int rc = driver->ops->stream(driver, gpu->device, gpu->peer, &gpu->stream, fault);
    if (!rc && !(gpu->mem = driver->ops->alloc(driver, BYTES)))
        rc = -GR_GPU_NO_MEMORY;
    if (!rc)
        rc = make_jobs(gpu, fault);
    if (rc)
        empty(gpu);
    return rc;
}

int tcp_gpu_free(tcp_gpu *gpu)
{
    if (!TAILQ_EMPTY(&gpu->flying))
        return EBUSY;
    empty(gpu);
    free(gpu);
    return 0;
}

static tcp_copy *copy_take(struct tcp_copies *list)
{
    tcp_copy *c = TAILQ_FIRST(list);
    if (!c)
        return NULL;
    TAILQ_REMOVE(list, c, next);
    c->used = c->nops = c->refs = 0;
    c->seq = c->late = 0;
    c->ask = 0;
    c->err = 0;
    c->conn = NULL;
    c->state = TCP_COPY_OPEN;
    STAILQ_INIT(&c->after);
    return c;
}

tcp_copy *tcp_copy_take_in(tcp_gpu *gpu) { return copy_take(&gpu->in); }

tcp_copy *tcp_copy_take_out(tcp_gpu *gpu, uint64_t bytes)
{
    tcp_copy *c = bytes <= TCP_SMALL_BYTES ? copy_take(&gpu->small) : NULL;
    return c ? c : copy_take(&gpu->large);
}

void tcp_copy_give(tcp_copy *c)
{
    if (c->state == TCP_COPY_SPILLED) {
        free(c);
        return;
    }
    if (c->state == TCP_COPY_ENDED && !c->in)
        TAILQ_REMOVE(&c->gpu->ended, c, next);
    TAILQ_INSERT_HEAD(free_list(c), c, next);
}

uint8_t *tcp_copy_add(tcp_copy *c, uint64_t addr, uint32_t len, int ours)
{
    uint8_t *at = c->mem + c->used;
    gr_op *last = c->nops ? &c->ops[c->nops - 1] : NULL;
    c->used += len;
    if (last && last->lregion == (ours ? GR_GPU_OURS : 0) && last->local + last->len == addr && last->remote + last->len == (uintptr_t)at)
        last->len += len;
    else
        c->ops[c->nops++] = (gr_op){.local = addr, .remote = (uintptr_t)at, .len = len, .lregion = ours ? GR_GPU_OURS : 0};
    return at;
}

static void has_ended(tcp_copy *c)
{
    c->state = TCP_COPY_ENDED;
    if (!c->in)
        TAILQ_INSERT_TAIL(&c->gpu->ended, c, next);
}

/* Posts the job, or holds it while the driver cannot say whose memory it is. Returns 0 or a negative gr_gpu_why. */
static int copy_post(tcp_copy *c)
{
    tcp_gpu *gpu = c->gpu;
    gr_gpu_work w = {.ops = c->ops, .nops = c->nops, .write = !c->in, .bytes = c->used};
    uint64_t at;
    int rc = gpu->driver->ops->mapped(gpu->driver, gpu->device, c->ops, c->nops, c->in ? GR_GPU_WRITES : GR_GPU_READS, &at);
    c->held = rc == -GR_GPU_BUSY;
    if (c->held)
        return 0;
    if (rc)
        gpu->fault = (gr_gpu_fault){.why = -rc, .call = "cuPointerGetAttributes"};
    return rc ? rc : gpu->driver->ops->post(c->job, &w, &gpu->fault);
}

void tcp_copy_post(tcp_copy *c)
{
    tcp_gpu *gpu = c->gpu;
    if (copy_post(c)) {
        gpu->nfailed++;
        c->err = EIO;
        has_ended(c);
        return;
    }
    if (TAILQ_EMPTY(&gpu->flying))
        gpu->since = tcp_copy_clock();
    __atomic_store_n(&gpu->nposted, gpu->nposted + 1, __ATOMIC_RELEASE);
    c->state = TCP_COPY_FLYING;
    TAILQ_INSERT_TAIL(&gpu->flying, c, next);
}

tcp_copy *tcp_gpu_poll(tcp_gpu *gpu)
{
    tcp_copy *c = TAILQ_FIRST(&gpu->flying);
    int rc = c && c->held ? copy_post(c) : 0;
    if (!c || (rc == 0 && c->held))
        return NULL;
    if (rc == 0)
        rc = gpu->driver->ops->poll(c->job, &gpu->fault);
    if (rc > 0)
        return NULL;
    TAILQ_REMOVE(&gpu->flying, c, next);
    __atomic_store_n(&gpu->nended, gpu->nended + 1, __ATOMIC_RELEASE);
    gpu->since = tcp_copy_clock();
    gpu->nfailed += rc != 0;
    c->err = rc ? EIO : 0;
    has_ended(c);
    return c;
}

int tcp_keep(tcp_rest *r, const uint8_t *at, size_t n)
{
    if (r->mem) { /* they are its last ones */
        r->at = r->len - n;
        return 0;
    }
    if (!(r->mem = GR_ALLOC(tcp_rest, malloc(n)))) /* limit:tcp_rest */
        return ENOMEM;
    memcpy(r->mem, at, n); /* ours */
    r->len = n;
    r->at = 0;
    return 0;
}
