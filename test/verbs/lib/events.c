/* Completion channels and async events. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "vt.h"

pthread_cond_t vt_acked = PTHREAD_COND_INITIALIZER;

int vt_queue_open(vt_queue *q)
{
    q->first = NULL;
    q->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    return q->fd < 0 ? errno : 0;
}

/* The caller holds the lock, so the eventfd's count equals the list's length. */
static void drop(vt_queue *q, vt_event **at)
{
    uint64_t one;
    vt_event *e = *at;
    if (read(q->fd, &one, sizeof(one)) != sizeof(one))
        abort();
    *at = e->next;
    free(e);
}

void vt_queue_close(vt_queue *q)
{
    while (q->first)
        drop(q, &q->first);
    close(q->fd);
}

void vt_raise(vt_queue *q, void *of, const struct ibv_async_event *async)
{
    uint64_t one = 1;
    vt_event *e = calloc(1, sizeof(*e)), **end = &q->first;
    if (!e)
        abort();
    e->of = of;
    if (async)
        e->async = *async;
    while (*end)
        end = &(*end)->next;
    *end = e;
    if (write(q->fd, &one, sizeof(one)) != sizeof(one))
        abort();
}

void vt_forget(vt_queue *q, const void *of)
{
    for (vt_event **at = &q->first; *at;)
        if ((*at)->of == of)
            drop(q, at);
        else
            at = &(*at)->next;
}

/* Blocks if the descriptor is blocking. */
int vt_next(vt_queue *q, vt_event *out)
{
    struct pollfd p = {.fd = q->fd, .events = POLLIN};
    pthread_mutex_lock(&vt_mu);
    while (!q->first) {
        pthread_mutex_unlock(&vt_mu);
        if (fcntl(q->fd, F_GETFL) & O_NONBLOCK) {
            errno = EAGAIN;
            return -1;
        }
        poll(&p, 1, -1);
        pthread_mutex_lock(&vt_mu);
    }
    *out = *q->first;
    drop(q, &q->first);
    return 0;
}

void vt_wait_acks(const char *what, const uint32_t *taken, const uint32_t *acked)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 2;
    while (*taken != *acked)
        if (pthread_cond_timedwait(&vt_acked, &vt_mu, &end) == ETIMEDOUT) {
            vt_breach("%s: %u events were not acknowledged; the real call would block forever", what, *taken - *acked);
            return;
        }
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
    vt_channel *ch = calloc(1, sizeof(*ch));
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_create_comp_channel);
    if (!rc)
        rc = vt_queue_open(&ch->events);
    if (rc) {
        free(ch);
        ch = NULL;
    } else {
        ch->base.context = ctx;
        ch->base.fd = ch->events.fd;
        COUNT(channels)++;
    }
    pthread_mutex_unlock(&vt_mu);
    errno = rc ? rc : errno;
    return ch ? &ch->base : NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    vt_channel *ch = (vt_channel *)base;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_destroy_comp_channel);
    if (!rc && base->refcnt)
        rc = EBUSY;
    if (!rc) {
        vt_queue_close(&ch->events);
        COUNT(channels)--;
    }
    pthread_mutex_unlock(&vt_mu);
    if (!rc)
        free(ch);
    return rc;
}

int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **cq_ctx)
{
    vt_event e;
    if (vt_next(&((vt_channel *)base)->events, &e) != 0)
        return -1;
    vt_cq *of = e.of;
    of->taken++;
    *cq = &of->base;
    *cq_ctx = of->base.cq_context;
    pthread_mutex_unlock(&vt_mu);
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
    pthread_mutex_lock(&vt_mu);
    cq->comp_events_completed += n;
    if (cq->comp_events_completed > ((vt_cq *)cq)->taken)
        vt_breach("ibv_ack_cq_events: more events than ibv_get_cq_event returned");
    pthread_cond_broadcast(&vt_acked);
    pthread_mutex_unlock(&vt_mu);
}

static int of_qp(enum ibv_event_type t) { return t == IBV_EVENT_QP_FATAL || t == IBV_EVENT_QP_REQ_ERR || t == IBV_EVENT_QP_ACCESS_ERR; }

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *ev)
{
    vt_event e;
    if (vt_next(&vt_ctx_of(ctx)->events, &e) != 0)
        return -1;
    *ev = e.async;
    if (of_qp(ev->event_type))
        ((vt_qp *)ev->element.qp)->taken++;
    pthread_mutex_unlock(&vt_mu);
    return 0;
}

void ibv_ack_async_event(struct ibv_async_event *ev)
{
    pthread_mutex_lock(&vt_mu);
    if (of_qp(ev->event_type))
        ev->element.qp->events_completed++;
    pthread_cond_broadcast(&vt_acked);
    pthread_mutex_unlock(&vt_mu);
}

const char *ibv_event_type_str(enum ibv_event_type t)
{
    switch (t) {
    case IBV_EVENT_CQ_ERR: return "CQ error";
    case IBV_EVENT_QP_ACCESS_ERR: return "local access violation work queue error";
    case IBV_EVENT_DEVICE_FATAL: return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port error";
    case IBV_EVENT_GID_CHANGE: return "GID table change";
    default: return "unknown";
    }
}
