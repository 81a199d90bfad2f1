/* Devices, ports, protection domains. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vt.h"

enum { PORTS = 4 };

static struct ibv_device devices[VT_DEVICES];
vt_ctx *vt_contexts;
union ibv_gid vt_gids[VT_DEVICES][VT_GIDS];
int vt_gid_tables;

struct ibv_device **ibv_get_device_list(int *n)
{
    struct ibv_device **list = calloc(VT_DEVICES + 1, sizeof(*list));
    int count = 0;
    pthread_mutex_lock(&vt_mu);
    int rc = list ? vt_fails(CALL_get_device_list) : ENOMEM;
    for (; !rc && count < SW(devices) && count < VT_DEVICES; count++) {
        struct ibv_device *d = list[count] = &devices[count];
        d->node_type = SW(iwarp) ? IBV_NODE_RNIC : IBV_NODE_CA;
        d->transport_type = SW(iwarp) ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
        snprintf(d->name, sizeof(d->name), "hca%d", count);
    }
    COUNT(lists) += !rc;
    pthread_mutex_unlock(&vt_mu);
    if (rc) {
        free(list);
        errno = rc;
        return NULL;
    }
    if (n)
        *n = count;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    pthread_mutex_lock(&vt_mu);
    COUNT(lists)--;
    pthread_mutex_unlock(&vt_mu);
    free(list);
}

struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
    vt_ctx *c = calloc(1, sizeof(*c));
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_open_device);
    if (!rc)
        rc = vt_queue_open(&c->events);
    if (!rc && (rc = vt_thread_start()) != 0)
        vt_queue_close(&c->events);
    if (rc) {
        free(c);
        c = NULL;
    } else {
        c->context.device = dev;
        c->context.async_fd = c->events.fd;
        c->context.cmd_fd = -1;
        c->context.num_comp_vectors = 1;
        c->context.ops.poll_cq = vt_poll_cq;
        c->context.ops.req_notify_cq = vt_req_notify_cq;
        c->context.ops.post_send = vt_post_send;
        c->context.ops.post_recv = vt_post_recv;
        c->device = (int)(dev - devices);
        c->next = vt_contexts;
        vt_contexts = c;
        COUNT(contexts)++;
    }
    pthread_mutex_unlock(&vt_mu);
    if (rc)
        errno = rc;
    return c ? &c->context : NULL;
}

int ibv_close_device(struct ibv_context *ctx)
{
    vt_ctx **at = &vt_contexts, *c = vt_ctx_of(ctx);
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_close_device);
    if (!rc) {
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        vt_queue_close(&c->events);
        COUNT(contexts)--;
    }
    pthread_mutex_unlock(&vt_mu);
    if (!rc)
        free(c);
    return rc;
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
    (void)ctx;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_query_device);
    if (!rc)
        *attr = (struct ibv_device_attr){
            .max_mr_size = SW(mr_size) ? (uint64_t)SW(mr_size) : UINT64_MAX,
            .max_qp = 1 << 16,
            .max_qp_wr = (int)SW(max_qp_wr),
            .max_sge = VT_SGE,
            .max_cq = (int)SW(max_cq),
            .max_cqe = (int)SW(max_cqe),
            .max_mr = (int)SW(mr_max),
            .max_pd = 1 << 16,
            .max_qp_rd_atom = (int)SW(rd_atomic),
            .max_qp_init_rd_atom = (int)SW(rd_atomic),
            .max_pkeys = 1,
            .phys_port_cnt = (uint8_t)SW(ports),
        };
    pthread_mutex_unlock(&vt_mu);
    return rc;
}

int vt_has_gid(const struct ibv_context *ctx, const union ibv_gid *gid)
{
    for (int i = 0; i < VT_GIDS; i++)
        if (!memcmp(&vt_gids[vt_ctx_of(ctx)->device][i], gid, sizeof(*gid)))
            return 1;
    return 0;
}

int vt_lid(const struct ibv_context *ctx, int port) { return vt_ctx_of(ctx)->device * PORTS + port; }

/* Fills the fields of the old structure: all before flags. */
int ibv_query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_query_port);
    if (!rc && (port < 1 || port > SW(ports)))
        rc = EINVAL;
    if (!rc) {
        struct ibv_port_attr a = {
            .state = (enum ibv_port_state)SW(state),
            .max_mtu = IBV_MTU_4096,
            .active_mtu = IBV_MTU_4096,
            .gid_tbl_len = (int)SW(gids),
            .max_msg_sz = 1U << 31,
            .pkey_tbl_len = 1,
            .lid = (uint16_t)(SW(ethernet) ? 0 : vt_lid(ctx, port)),
            .active_width = 2,
            .active_speed = 32,
            .link_layer = SW(ethernet) ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND,
        };
        memcpy(attr, &a, offsetof(struct ibv_port_attr, flags));
    }
    pthread_mutex_unlock(&vt_mu);
    return rc;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
    vt_pd *pd = calloc(1, sizeof(*pd));
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_alloc_pd);
    COUNT(pds) += !rc;
    pthread_mutex_unlock(&vt_mu);
    if (rc) {
        free(pd);
        errno = rc;
        return NULL;
    }
    pd->base.context = ctx;
    return &pd->base;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_dealloc_pd);
    if (!rc && ((vt_pd *)pd)->users)
        rc = EBUSY;
    COUNT(pds) -= !rc;
    pthread_mutex_unlock(&vt_mu);
    if (!rc)
        free(pd);
    return rc;
}
