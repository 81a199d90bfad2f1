/* A librdmacm for tests: iWARP connections between ids of one process. Device d has the address 127.0.d.1, on the interface `lo`. */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vt.h"

enum { DATA = 64 };

typedef struct vt_cm_channel {
    struct rdma_event_channel base;
    vt_queue events; /* `of` is a vt_cm_event */
} vt_cm_channel;

struct vt_cm_id {
    struct rdma_cm_id base;
    struct vt_cm_id *next, *other; /* other: the peer's id, from the request until the disconnect */
    uint16_t port;                 /* local port */
    uint16_t to;                   /* port of the resolved address */
    int listening, unacked;
    uint32_t qpn;
};

typedef struct vt_cm_event {
    struct rdma_cm_event base;
    char data[DATA];
} vt_cm_event;

static vt_cm_id *ids;
static uint16_t next_port = 20000;
static struct ibv_device devices[4];
static struct ibv_context contexts[4];

struct rdma_event_channel *rdma_create_event_channel(void)
{
    vt_cm_channel *ch = calloc(1, sizeof(*ch));
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_channel);
    rc = rc ? rc : vt_queue_open(&ch->events);
    COUNT(cm_channels) += !rc;
    pthread_mutex_unlock(&vt_mu);
    if (rc) {
        free(ch);
        errno = rc;
        return NULL;
    }
    ch->base.fd = ch->events.fd;
    return &ch->base;
}

void rdma_destroy_event_channel(struct rdma_event_channel *base)
{
    vt_cm_channel *ch = (vt_cm_channel *)base;
    pthread_mutex_lock(&vt_mu);
    for (vt_cm_id *id = ids; id; id = id->next)
        if (id->base.channel == base)
            vt_breach("rdma_destroy_event_channel: an id still uses the channel");
    for (vt_event *e = ch->events.first; e; e = e->next)
        free(e->of);
    vt_queue_close(&ch->events);
    COUNT(cm_channels)--;
    pthread_mutex_unlock(&vt_mu);
    free(ch);
}

static vt_cm_id *add(struct rdma_event_channel *ch)
{
    vt_cm_id *id = calloc(1, sizeof(*id));
    if (!id)
        abort();
    id->base.channel = ch;
    id->next = ids;
    ids = id;
    COUNT(cm_ids)++;
    return id;
}

/* Releases the lock. Returns 0, or -1 and errno, like all calls of librdmacm. */
static int unlock_result(int rc)
{
    pthread_mutex_unlock(&vt_mu);
    if (rc)
        errno = rc;
    return rc ? -1 : 0;
}

int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **out, void *ctx, enum rdma_port_space ps)
{
    (void)ctx;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_id);
    if (!rc && ps != RDMA_PS_TCP)
        rc = EINVAL;
    if (!rc)
        *out = &add(ch)->base;
    return unlock_result(rc);
}

/* Raises an event in the channel of id. fresh: the new id of a connection request. */
static void raise_cm_event(vt_cm_id *id, enum rdma_cm_event_type type, int status, vt_cm_id *fresh, const struct rdma_conn_param *p)
{
    vt_cm_event *e = calloc(1, sizeof(*e));
    if (!e)
        abort();
    e->base.id = &(fresh ? fresh : id)->base;
    e->base.listen_id = fresh ? &id->base : NULL;
    e->base.event = type;
    e->base.status = status;
    if (p) {
        e->base.param.conn = *p;
        memcpy(e->data, p->private_data, p->private_data_len < DATA ? p->private_data_len : DATA);
        e->base.param.conn.private_data = e->data;
        e->base.param.conn.initiator_depth = p->responder_resources;
        e->base.param.conn.responder_resources = p->initiator_depth;
    }
    vt_raise(&((vt_cm_channel *)id->base.channel)->events, e, NULL);
}

static void unlink_peer(vt_cm_id *id)
{
    if (id->other)
        id->other->other = NULL;
    id->other = NULL;
}

void vt_cm_lost(vt_qp *qp)
{
    vt_cm_id *id = qp->cm, *other = id ? id->other : NULL;
    qp->cm = NULL;
    if (!other)
        return;
    unlink_peer(id);
    raise_cm_event(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, NULL);
    raise_cm_event(other, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, NULL);
    vt_qp *peer = vt_find(other->qpn);
    if (peer && peer->base.state != IBV_QPS_ERR)
        vt_break(peer);
}

static void refuse(vt_cm_id *id)
{
    if (id->other)
        raise_cm_event(id->other, RDMA_CM_EVENT_REJECTED, -ECONNREFUSED, NULL, NULL);
    unlink_peer(id);
}

static void drop(vt_cm_id *id)
{
    vt_cm_id **at = &ids;
    unlink_peer(id);
    while (*at != id)
        at = &(*at)->next;
    *at = id->next;
    COUNT(cm_ids)--;
    free(id);
}

int rdma_destroy_id(struct rdma_cm_id *base)
{
    vt_cm_id *id = (vt_cm_id *)base;
    pthread_mutex_lock(&vt_mu);
    if (id->unacked)
        vt_breach("rdma_destroy_id: %d events were not acknowledged; the real call would block forever", id->unacked);
    vt_queue *q = &((vt_cm_channel *)base->channel)->events;
    for (vt_event *e = q->first, *next; e; e = next) {
        vt_cm_event *of = e->of;
        next = e->next;
        if (of->base.id != base && of->base.listen_id != base)
            continue;
        if (of->base.listen_id == base) { /* a connection request that the application has not received */
            refuse((vt_cm_id *)of->base.id);
            drop((vt_cm_id *)of->base.id);
        }
        vt_forget(q, of);
        free(of);
    }
    vt_qp *qp = vt_find(id->qpn);
    if (qp && qp->cm == id) {
        vt_breach("rdma_destroy_id before ibv_destroy_qp");
        qp->cm = NULL;
    }
    drop(id);
    return unlock_result(0);
}

int rdma_bind_addr(struct rdma_cm_id *base, struct sockaddr *addr)
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)addr;
    vt_cm_id *id = (vt_cm_id *)base;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_bind);
    uint32_t ip = ntohl(in->sin_addr.s_addr), d = ip >> 8 & 0xff;
    if (!rc && (addr->sa_family != AF_INET || ip >> 16 != 0x7f00 || (ip & 0xff) != 1 || d >= 4 || !SW(iwarp)))
        rc = ENODEV;
    for (vt_cm_id *other = ids; !rc && in->sin_port && other; other = other->next)
        if (other != id && other->listening && other->port == ntohs(in->sin_port))
            rc = EADDRINUSE;
    if (!rc) {
        strcpy(devices[d].name, "hca0");
        devices[d].name[3] = (char)('0' + d);
        contexts[d].device = &devices[d];
        base->verbs = &contexts[d];
        id->port = in->sin_port ? ntohs(in->sin_port) : next_port++;
    }
    return unlock_result(rc);
}

int rdma_listen(struct rdma_cm_id *base, int backlog)
{
    (void)backlog;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_listen);
    ((vt_cm_id *)base)->listening = !rc;
    return unlock_result(rc);
}

__be16 rdma_get_src_port(struct rdma_cm_id *base) { return htons(((vt_cm_id *)base)->port); }

int rdma_resolve_addr(struct rdma_cm_id *base, struct sockaddr *src, struct sockaddr *dst, int ms)
{
    (void)src, (void)ms;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_resolve);
    ((vt_cm_id *)base)->to = ntohs(((struct sockaddr_in *)dst)->sin_port);
    if (!rc)
        raise_cm_event((vt_cm_id *)base, SW(cm_unreachable) ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ADDR_RESOLVED,
                       SW(cm_unreachable) ? -EHOSTUNREACH : 0, NULL, NULL);
    return unlock_result(rc);
}

int rdma_resolve_route(struct rdma_cm_id *base, int ms)
{
    (void)ms;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_route);
    if (!rc)
        raise_cm_event((vt_cm_id *)base, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, NULL);
    return unlock_result(rc);
}

int rdma_connect(struct rdma_cm_id *base, struct rdma_conn_param *p)
{
    vt_cm_id *id = (vt_cm_id *)base, *to;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_connect);
    COUNT(cm_connects)++;
    while (SW(cm_block)) { /* siw blocks here while TCP connects */
        pthread_mutex_unlock(&vt_mu);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&vt_mu);
    }
    for (to = ids; to && !(to->listening && to->port == id->to); to = to->next)
        ;
    vt_qp *qp = vt_find(p->qp_num);
    if (!rc && (!qp || qp->base.state != IBV_QPS_INIT || p->private_data_len > DATA))
        rc = EINVAL;
    if (!rc)
        id->qpn = p->qp_num;
    if (!rc && !to)
        rc = ECONNREFUSED;
    if (!rc) {
        qp->attr.max_rd_atomic = p->initiator_depth;
        qp->attr.max_dest_rd_atomic = p->responder_resources;
        if (!SW(cm_silent)) {
            vt_cm_id *fresh = add(to->base.channel);
            fresh->other = id;
            id->other = fresh;
            raise_cm_event(to, RDMA_CM_EVENT_CONNECT_REQUEST, 0, fresh, p);
        }
    }
    return unlock_result(rc);
}

static void connect_qp(vt_qp *qp, vt_cm_id *id, vt_qp *peer, int passive)
{
    qp->cm = id;
    qp->passive = passive;
    qp->attr.dest_qp_num = peer->base.qp_num;
    qp->base.state = IBV_QPS_RTS;
}

int rdma_accept(struct rdma_cm_id *base, struct rdma_conn_param *p)
{
    vt_cm_id *id = (vt_cm_id *)base, *other = id->other;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_cm_accept);
    vt_qp *qp = vt_find(p->qp_num), *peer = other ? vt_find(other->qpn) : NULL;
    if (!rc && (!peer || peer->base.state != IBV_QPS_INIT))
        rc = ECONNRESET;
    if (!rc && (!qp || qp->base.state != IBV_QPS_INIT || p->initiator_depth > peer->attr.max_dest_rd_atomic))
        rc = EINVAL;
    if (!rc && qp->rq_done == qp->rq_tail)
        vt_breach("rdma_accept without a receive");
    if (!rc) {
        id->qpn = p->qp_num;
        qp->attr.max_rd_atomic = p->initiator_depth;
        qp->attr.max_dest_rd_atomic = p->responder_resources;
        connect_qp(qp, id, peer, 1);
        connect_qp(peer, other, qp, 0);
        raise_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, NULL);
        raise_cm_event(other, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, NULL);
    }
    return unlock_result(rc);
}

int rdma_reject(struct rdma_cm_id *base, const void *data, uint8_t len)
{
    (void)data, (void)len;
    pthread_mutex_lock(&vt_mu);
    COUNT(cm_rejects)++;
    refuse((vt_cm_id *)base);
    return unlock_result(0);
}

int rdma_get_cm_event(struct rdma_event_channel *base, struct rdma_cm_event **out)
{
    vt_event e;
    if (vt_next(&((vt_cm_channel *)base)->events, &e) != 0)
        return -1;
    *out = &((vt_cm_event *)e.of)->base;
    ((vt_cm_id *)(*out)->id)->unacked++;
    pthread_mutex_unlock(&vt_mu);
    return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *ev)
{
    pthread_mutex_lock(&vt_mu);
    ((vt_cm_id *)ev->id)->unacked--;
    pthread_mutex_unlock(&vt_mu);
    free(ev);
    return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type type) { return type == RDMA_CM_EVENT_REJECTED ? "rejected" : "event"; }
