/* Calls of librdmacm. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

enum { BACKLOG = 128 };

vb_cm_lib *vb_cm_load(const char *path, char *err, size_t err_len)
{
    vb_cm_lib *lib = calloc(1, sizeof(*lib));
    err[0] = 0;
    if (!lib) {
        snprintf(err, err_len, "out of memory");
        return NULL;
    }
    const struct {
        void **to;
        const char *name;
    } want[] = {
        { (void **)&lib->create_event_channel, "rdma_create_event_channel" },
        { (void **)&lib->destroy_event_channel, "rdma_destroy_event_channel" },
        { (void **)&lib->create_id, "rdma_create_id" },
        { (void **)&lib->destroy_id, "rdma_destroy_id" },
        { (void **)&lib->bind_addr, "rdma_bind_addr" },
        { (void **)&lib->listen, "rdma_listen" },
        { (void **)&lib->get_src_port, "rdma_get_src_port" },
        { (void **)&lib->resolve_addr, "rdma_resolve_addr" },
        { (void **)&lib->resolve_route, "rdma_resolve_route" },
        { (void **)&lib->connect, "rdma_connect" },
        { (void **)&lib->accept, "rdma_accept" },
        { (void **)&lib->reject, "rdma_reject" },
        { (void **)&lib->get_cm_event, "rdma_get_cm_event" },
        { (void **)&lib->ack_cm_event, "rdma_ack_cm_event" },
        { (void **)&lib->event_str, "rdma_event_str" },
    };
    lib->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib->dl)
        snprintf(err, err_len, "%s", dlerror());
    for (size_t i = 0; lib->dl && i < sizeof(want) / sizeof(want[0]); i++) {
        *want[i].to = dlvsym(lib->dl, want[i].name, "RDMACM_1.0");
        if (!*want[i].to && !err[0])
            snprintf(err, err_len, "it has no %s@RDMACM_1.0 (not librdmacm, or older than rdma-core)", want[i].name);
    }
    if (!err[0])
        return lib;
    free(lib);
    return NULL;
}

static int failed(void)
{
    return errno > 0 ? -errno : -EIO;
}

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static struct sockaddr *address(union address *a, const uint8_t ip[16], uint16_t port)
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
    memset(a, 0, sizeof(*a));
    if (memcmp(ip, mapped, sizeof(mapped)) == 0) {
        a->v4.sin_family = AF_INET;
        a->v4.sin_port = htons(port);
        memcpy(&a->v4.sin_addr, ip + 12, 4);
    } else {
        a->v6.sin6_family = AF_INET6;
        a->v6.sin6_port = htons(port);
        memcpy(&a->v6.sin6_addr, ip, 16);
    }
    return &a->any;
}

/* An id that is bound to an address of ours, and so to a device. */
static int bound(const vb_cm_lib *lib, struct rdma_event_channel *ch, const uint8_t ip[16], uint16_t port, struct rdma_cm_id **out, const char **step)
{
    union address a;
    errno = 0;
    *step = "rdma_create_id";
    if (lib->create_id(ch, out, NULL, RDMA_PS_TCP) != 0)
        return failed();
    *step = "rdma_bind_addr";
    if (lib->bind_addr(*out, address(&a, ip, port)) == 0)
        return 0;
    int rc = failed();
    (void)lib->destroy_id(*out);
    *out = NULL;
    return rc;
}

int vb_cm_device(const vb_cm_lib *lib, const uint8_t ip[16], char name[IBV_SYSFS_NAME_MAX], const char **step)
{
    struct rdma_cm_id *id = NULL;
    errno = 0;
    *step = "rdma_create_event_channel";
    struct rdma_event_channel *ch = lib->create_event_channel();
    if (!ch)
        return failed();
    int rc = bound(lib, ch, ip, 0, &id, step);
    if (rc == 0) {
        if (id->verbs)
            snprintf(name, IBV_SYSFS_NAME_MAX, "%s", id->verbs->device->name);
        else
            rc = -ENODEV;
        (void)lib->destroy_id(id);
    }
    lib->destroy_event_channel(ch);
    return rc;
}

static int listen_on(vb_cm *cm, uint16_t port, const char **step)
{
    int rc = bound(cm->lib, cm->channel, cm->ip, port, &cm->listener, step);
    if (rc)
        return rc;
    *step = "rdma_listen";
    if (cm->lib->listen(cm->listener, BACKLOG) == 0)
        return 0;
    rc = failed();
    (void)cm->lib->destroy_id(cm->listener);
    cm->listener = NULL;
    return rc;
}

int vb_cm_open(const vb_cm_lib *lib, const uint8_t ip[16], uint16_t first, uint16_t last, vb_cm **out, const char **step)
{
    vb_cm *cm = calloc(1, sizeof(*cm));
    *step = "calloc";
    if (!cm)
        return -ENOMEM;
    cm->lib = lib;
    memcpy(cm->ip, ip, 16);
    errno = 0;
    *step = "rdma_create_event_channel";
    int rc = (cm->channel = lib->create_event_channel()) ? 0 : failed();
    if (!rc) {
        int flags = fcntl(cm->channel->fd, F_GETFL);
        rc = flags < 0 || fcntl(cm->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0 ? failed() : 0;
    }
    if (!rc) {
        unsigned port = first;
        do
            rc = listen_on(cm, (uint16_t)port, step);
        while (rc == -EADDRINUSE && ++port <= last);
    }
    if (rc) {
        vb_cm_close(cm);
        return rc;
    }
    cm->port = ntohs(lib->get_src_port(cm->listener));
    *out = cm;
    return 0;
}

void vb_cm_close(vb_cm *cm)
{
    if (cm->listener)
        (void)cm->lib->destroy_id(cm->listener);
    if (cm->channel)
        cm->lib->destroy_event_channel(cm->channel);
    free(cm);
}

/* status is a negative errno of the kernel's, or another fabric's reason for a rejection. */
static int reason(const struct rdma_cm_event *e)
{
    if (e->event == RDMA_CM_EVENT_REJECTED || e->status == -ECONNRESET)
        return ECONNREFUSED;
    if (e->status < 0 && e->status > -4096)
        return -e->status;
    return e->event == RDMA_CM_EVENT_ADDR_ERROR || e->event == RDMA_CM_EVENT_ROUTE_ERROR ? EHOSTUNREACH : ETIMEDOUT;
}

static int kind(enum rdma_cm_event_type type)
{
    switch (type) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        return VB_CM_REQUEST;
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        return VB_CM_ADDR;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return VB_CM_ROUTE;
    case RDMA_CM_EVENT_ESTABLISHED:
        return VB_CM_UP;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
        return VB_CM_FAILED;
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return VB_CM_LOST;
    default:
        return VB_CM_OTHER;
    }
}

int vb_cm_next(vb_cm *cm, vb_cm_event *ev)
{
    struct rdma_cm_event *e;
    if (cm->lib->get_cm_event(cm->channel, &e) != 0)
        return 0;
    const struct rdma_conn_param *p = &e->param.conn;
    *ev = (vb_cm_event){ .kind = kind(e->event), .id = e->id, .text = cm->lib->event_str(e->event) };
    if (ev->kind == VB_CM_FAILED)
        ev->err = reason(e);
    if (ev->kind == VB_CM_REQUEST) {
        ev->reads = p->initiator_depth;
        if (p->private_data && p->private_data_len >= VB_CM_DATA) { /* some transports pad it */
            ev->len = VB_CM_DATA;
            memcpy(ev->data, p->private_data, VB_CM_DATA);
        }
    }
    (void)cm->lib->ack_cm_event(e); /* at once: who destroys an id waits for that */
    return 1;
}

int vb_cm_dial(vb_cm *cm, const uint8_t ip[16], uint16_t port, int ms, struct rdma_cm_id **out, const char **step)
{
    union address dst;
    int rc = bound(cm->lib, cm->channel, cm->ip, 0, out, step);
    if (rc)
        return rc;
    *step = "rdma_resolve_addr";
    if (cm->lib->resolve_addr(*out, NULL, address(&dst, ip, port), ms) == 0)
        return 0;
    rc = failed();
    vb_cm_destroy(cm, *out);
    *out = NULL;
    return rc;
}

int vb_cm_route(vb_cm *cm, struct rdma_cm_id *id, int ms)
{
    errno = 0;
    return cm->lib->resolve_route(id, ms) == 0 ? 0 : failed();
}

int vb_cm_connect(vb_cm *cm, struct rdma_cm_id *id, uint32_t qpn, uint8_t in, uint8_t out, const uint8_t data[VB_CM_DATA])
{
    struct rdma_conn_param p = { .private_data = data, .private_data_len = VB_CM_DATA, .responder_resources = in,
                                 .initiator_depth = out, .qp_num = qpn };
    errno = 0;
    return cm->lib->connect(id, &p) == 0 ? 0 : failed();
}

int vb_cm_accept(vb_cm *cm, struct rdma_cm_id *id, uint32_t qpn, uint8_t in, uint8_t out)
{
    struct rdma_conn_param p = { .responder_resources = in, .initiator_depth = out, .qp_num = qpn };
    errno = 0;
    return cm->lib->accept(id, &p) == 0 ? 0 : failed();
}

void vb_cm_reject(vb_cm *cm, struct rdma_cm_id *id)
{
    (void)cm->lib->reject(id, NULL, 0);
    vb_cm_destroy(cm, id);
}

void vb_cm_destroy(vb_cm *cm, struct rdma_cm_id *id)
{
    (void)cm->lib->destroy_id(id);
}
