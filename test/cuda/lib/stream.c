/* Streams. Each stream is a thread that does its tasks in order, each after a delay. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ct.h"

enum { COPY, FILL, KERNEL, MARK };

typedef struct task {
    struct task *next;
    int what, kind, done;
    uint64_t to, from, len;
    cu_event event;
    char args[4096];
} task;

struct CUstream_st {
    struct CUstream_st *next;
    int device, busy, stop;
    unsigned seed;
    task *head, **tail, *now;
    pthread_t thread;
    pthread_cond_t work;
};

struct CUevent_st {
    int device;
    uint64_t recorded, done;
};

static struct CUstream_st *streams;
static pthread_cond_t idle_cond = PTHREAD_COND_INITIALIZER;
static uint32_t streams_made;

int ct_busy(void)
{
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s->busy || s->head)
            return 1;
    return 0;
}

static int uses(const task *t, int device, uint64_t at, uint64_t size)
{
    if (t->what == KERNEL)
        return !t->done && ct_kernel_uses(t->args, t->kind, device, at, size);
    return (t->what != MARK && t->to < at + size && at < t->to + t->len) || (t->what == COPY && t->from < at + size && at < t->from + t->len);
}

/* Whether queued or running work may access a range: a kernel until it reports completion. */
int ct_uses(uint64_t at, uint64_t size)
{
    for (struct CUstream_st *s = streams; s; s = s->next)
        for (task *t = s->now ? s->now : s->head; t; t = t == s->now ? s->head : t->next)
            if (uses(t, s->device, at, size))
                return 1;
    return 0;
}

void ct_idle(void)
{
    ct_count[CT_idle_waits] += ct_busy() && !ct_dead;
    while (ct_busy() && !ct_dead)
        pthread_cond_wait(&idle_cond, &ct_mu);
}

/* Copies or fills, mapping by mapping. The caller holds the lock. */
static int copy(const task *t, int device)
{
    for (uint64_t at = 0, n; at < t->len; at += n) {
        n = t->len - at;
        char *to = ct_touch(t->to + at, &n, device, TO_WRITE);
        char *from = t->what == COPY ? ct_touch(t->from + at, &n, device, BY_ENGINE) : to;
        if (!to || !from)
            return CU_ILLEGAL_ADDRESS;
        if (t->what == COPY)
            memmove(to, from, n);
        else
            memset(to, (int)t->from, n);
    }
    return 0;
}

/* Called without the lock. */
static void random_delay(struct CUstream_st *s, long most)
{
    if (most > 0)
        usleep((useconds_t)((unsigned long)rand_r(&s->seed) % (unsigned long)most));
}

/* Waits for the random delay, and while the switch hold is set. Releases the lock meanwhile. */
static void delay(struct CUstream_st *s)
{
    long most = ct_switch[SW_late];
    pthread_mutex_unlock(&ct_mu);
    random_delay(s, most);
    for (int held = 1; held;) {
        pthread_mutex_lock(&ct_mu);
        held = ct_switch[SW_hold] && !s->stop && !ct_dead;
        if (held) {
            pthread_mutex_unlock(&ct_mu);
            usleep(100);
        }
    }
}

static void *worker(void *arg)
{
    struct CUstream_st *s = arg;
    pthread_mutex_lock(&ct_mu);
    for (;;) {
        while (!s->head && !s->stop)
            pthread_cond_wait(&s->work, &ct_mu);
        task *t = s->head;
        if (!t)
            break;
        s->busy = 1;
        s->now = t;
        if (!(s->head = t->next))
            s->tail = &s->head;
        delay(s);
        int r = 0;
        if (!ct_dead) {
            if (t->what == MARK)
                t->event->done++;
            else if (t->what == KERNEL) {
                long most = ct_switch[SW_late];
                pthread_mutex_unlock(&ct_mu);
                r = ct_run(t->args, t->kind, s->device, &t->done);
                random_delay(s, most); /* a stream is busy for a while after its kernel has reported completion */
                pthread_mutex_lock(&ct_mu);
            } else
                r = copy(t, s->device);
        }
        if (r && !ct_dead)
            ct_dead = r;
        s->now = NULL;
        free(t);
        s->busy = 0;
        pthread_cond_broadcast(&idle_cond);
    }
    pthread_mutex_unlock(&ct_mu);
    return NULL;
}

static task *add_task(cu_stream s, int what)
{
    task *t = calloc(1, sizeof(*t));
    t->what = what;
    *s->tail = t;
    s->tail = &t->next;
    pthread_cond_signal(&s->work);
    return t;
}

int ct_is_stream(cu_stream s)
{
    struct CUstream_st *p = streams;
    while (p && p != s)
        p = p->next;
    return p != NULL && ct_current() && p->device == ct_current()->device;
}

cu_result cuStreamCreateWithPriority(cu_stream *out, unsigned flags, int priority)
{
    BEGIN(CALL_StreamCreateWithPriority, WITH_CTX);
    if (flags != CU_STREAM_NON_BLOCKING || priority < -5 || priority > 0)
        END(CU_INVALID_VALUE);
    struct CUstream_st *s = calloc(1, sizeof(*s));
    s->device = ct_current()->device;
    s->seed = (unsigned)ct_switch[SW_seed] * 31 + ++streams_made;
    s->tail = &s->head;
    pthread_cond_init(&s->work, NULL);
    if (pthread_create(&s->thread, NULL, worker, s))
        abort();
    s->next = streams;
    streams = s;
    ct_count[CT_streams]++;
    *out = s;
    END(CU_OK);
}

cu_result cuStreamDestroy(cu_stream s)
{
    BEGIN(-1, WITH_CTX);
    if (!ct_is_stream(s))
        END(CU_INVALID_HANDLE);
    if (s->head || (s->now && !s->now->done))
        ct_breach("cuStreamDestroy: the stream has unfinished work");
    struct CUstream_st **p = &streams;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    s->stop = 1;
    pthread_cond_signal(&s->work);
    ct_count[CT_streams]--;
    pthread_mutex_unlock(&ct_mu);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->work);
    free(s);
    return CU_OK;
}

/* Needs no current context, like cuEventQuery and the real driver. */
cu_result cuStreamQuery(cu_stream s)
{
    BEGIN(CALL_StreamQuery, NO_CTX);
    END(s->busy || s->head ? CU_NOT_READY : CU_OK);
}

cu_result cuStreamSynchronize(cu_stream s)
{
    BEGIN(CALL_StreamSynchronize, WITH_CTX);
    if (!ct_is_stream(s))
        END(CU_INVALID_HANDLE);
    ct_count[CT_waits]++;
    while ((s->busy || s->head) && !ct_dead)
        pthread_cond_wait(&idle_cond, &ct_mu);
    END(ct_dead);
}

cu_result cuEventCreate(cu_event *event, unsigned flags)
{
    BEGIN(CALL_EventCreate, WITH_CTX);
    (void)flags;
    *event = calloc(1, sizeof(**event));
    (*event)->device = ct_current()->device;
    ct_count[CT_events]++;
    END(CU_OK);
}

cu_result cuEventDestroy(cu_event event)
{
    BEGIN(-1, WITH_CTX);
    if (event->recorded != event->done)
        ct_breach("cuEventDestroy: the event was recorded and has not completed");
    else
        free(event); /* a stream still counts up the others */
    ct_count[CT_events]--;
    END(CU_OK);
}

cu_result cuEventRecord(cu_event event, cu_stream s)
{
    BEGIN(CALL_EventRecord, WITH_CTX);
    if (!ct_is_stream(s) || event->device != s->device)
        END(CU_INVALID_HANDLE);
    event->recorded++;
    add_task(s, MARK)->event = event;
    END(CU_OK);
}

cu_result cuEventQuery(cu_event event)
{
    BEGIN(CALL_EventQuery, NO_CTX);
    END(event->done == event->recorded ? CU_OK : CU_NOT_READY);
}

static cu_result queue(cu_ptr to, cu_ptr from, size_t len, cu_stream s, int what)
{
    uint64_t one = 1;
    if (!ct_is_stream(s))
        return CU_INVALID_HANDLE;
    if (!len || !ct_touch(to, &one, s->device, TO_WRITE) || (what == COPY && !ct_touch(from, &one, s->device, BY_ENGINE))) {
        if (len)
            ct_breach("copy or fill: unknown memory, or the GPU has no access to it");
        return CU_INVALID_VALUE;
    }
    task *t = add_task(s, what);
    t->to = to;
    t->from = from;
    t->len = len;
    ct_count[CT_copies] += what == COPY;
    ct_count[CT_copied_host] += what == COPY && (ct_host_at(to) || ct_host_at(from));
    return CU_OK;
}

cu_result cuMemcpyAsync(cu_ptr to, cu_ptr from, size_t len, cu_stream s)
{
    BEGIN(CALL_MemcpyAsync, WITH_CTX);
    END(queue(to, from, len, s, COPY));
}

cu_result cuMemcpyHtoDAsync(cu_ptr to, const void *from, size_t len, cu_stream s)
{
    BEGIN(CALL_MemcpyHtoDAsync, WITH_CTX);
    END(queue(to, (cu_ptr)from, len, s, COPY));
}

cu_result cuMemsetD8Async(cu_ptr to, unsigned char value, size_t len, cu_stream s)
{
    BEGIN(CALL_MemsetD8Async, WITH_CTX);
    END(queue(to, value, len, s, FILL));
}

/* The application's copies, which are synchronous. */
static cu_result copy_sync(cu_ptr dev, void *host, size_t len, int in)
{
    ct_idle();
    for (uint64_t at = 0, n; at < len; at += n) {
        n = len - at;
        char *p = ct_touch(dev + at, &n, ct_current()->device, 0);
        if (!p)
            return CU_INVALID_VALUE;
        memcpy(in ? p : (char *)host + at, in ? (char *)host + at : p, n);
    }
    return CU_OK;
}

/* Waits for all streams, also those of other contexts. */
cu_result cuCtxSynchronize(void)
{
    BEGIN(-1, WITH_CTX);
    ct_idle();
    END(ct_dead);
}

cu_result cuMemcpyHtoD(cu_ptr to, const void *from, size_t len)
{
    BEGIN(-1, WITH_CTX);
    END(copy_sync(to, (void *)(uintptr_t)from, len, 1));
}

cu_result cuMemcpyDtoH(void *to, cu_ptr from, size_t len)
{
    BEGIN(-1, WITH_CTX);
    END(copy_sync(from, to, len, 0));
}

/* Queues a launch that kernel.c has checked. */
void ct_queue_kernel(cu_stream s, const void *args, size_t size, int kind, unsigned blocks)
{
    task *t = add_task(s, KERNEL);
    memcpy(t->args, args, size);
    t->kind = kind;
    ct_count[CT_launches]++;
    ct_count[CT_blocks] += blocks;
}
