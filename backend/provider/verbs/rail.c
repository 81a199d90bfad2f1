/* Opens and closes a port: context, protection domain, completion channel and queue. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* Room for some thirty endpoints, 2 MiB: many drivers can't resize a queue (hns, mana, qedr, erdma; irdma at times). */
enum { CQ_MOST = 32768, CQ_LEAST = 1024 };

static int failed(void)
{
    return errno ? -errno : -EIO;
}

static int open_objects(vb_rail *rail, const char *device, const char **step)
{
    int n = 0, rc;
    errno = 0;
    struct ibv_device **list = rail->lib->get_device_list(&n);
    *step = "ibv_get_device_list";
    if (!list)
        return failed();
    *step = "ibv_open_device";
    errno = ENODEV;
    for (int i = 0; i < n; i++)
        if (strcmp(list[i]->name, device) == 0) {
            errno = 0;
            rail->ctx = rail->lib->open_device(list[i]);
            rail->iwarp = list[i]->transport_type == IBV_TRANSPORT_IWARP;
        }
    rc = errno ? errno : EIO;
    rail->lib->free_device_list(list);
    if (!rail->ctx)
        return -rc;
    *step = "ibv_query_device";
    if ((rc = rail->lib->query_device(rail->ctx, &rail->dev)) != 0)
        return -abs(rc);
    *step = "ibv_query_port";
    if ((rc = rail->lib->query_port(rail->ctx, rail->port, &rail->attr)) != 0)
        return -abs(rc);
    errno = 0;
    *step = "ibv_alloc_pd";
    if (!(rail->pd = rail->lib->alloc_pd(rail->ctx)))
        return failed();
    rail->dmabuf = (uint8_t)vb_can_dmabuf(rail);
    *step = "on-demand paging of RC WRITE, READ and SEND (option ib_odp)";
    if (rail->opt.odp && !vb_can_odp(rail->ctx))
        return -EOPNOTSUPP;
    errno = 0;
    *step = "ibv_reg_mr"; /* on iWARP the sink of a READ is written to as by a peer */
    if (!(rail->sink_mr = rail->lib->reg_mr(rail->pd, rail->sink, sizeof(rail->sink), IBV_ACCESS_LOCAL_WRITE | (rail->iwarp ? IBV_ACCESS_REMOTE_WRITE : 0))))
        return failed();
    *step = "ibv_create_comp_channel";
    if (!(rail->channel = rail->lib->create_comp_channel(rail->ctx)))
        return failed();
    int flags = fcntl(rail->channel->fd, F_GETFL);
    if (flags < 0 || fcntl(rail->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return failed();
    *step = "ibv_create_cq";
    for (int n = (int)vb_at_most(rail->dev.max_cqe, CQ_MOST); !rail->cq; n /= 2) {
        errno = 0;
        rail->cq = rail->lib->create_cq(rail->ctx, n, NULL, rail->channel, 0);
        if (!rail->cq && (n <= CQ_LEAST || (errno != ENOMEM && errno != EINVAL)))
            return failed();
    }
    rail->base.wait_fd = rail->channel->fd;
    flags = fcntl(rail->ctx->async_fd, F_GETFL);
    return flags < 0 || fcntl(rail->ctx->async_fd, F_SETFL, flags | O_NONBLOCK) < 0 ? failed() : 0;
}

static int close_objects(vb_rail *rail)
{
    const vb_lib *lib = rail->lib;
    int rc = 0, e;
    if (rail->cq && (e = lib->destroy_cq(rail->cq)) != 0)
        rc = rc ? rc : -abs(e);
    if (rail->channel && (e = lib->destroy_comp_channel(rail->channel)) != 0)
        rc = rc ? rc : -abs(e);
    if (rail->sink_mr && (e = lib->dereg_mr(rail->sink_mr)) != 0)
        rc = rc ? rc : -abs(e);
    if (rail->pd && (e = lib->dealloc_pd(rail->pd)) != 0)
        rc = rc ? rc : -abs(e);
    if (rail->ctx && (e = lib->close_device(rail->ctx)) != 0)
        rc = rc ? rc : -abs(e);
    return rc;
}

static void free_rail(vb_rail *rail)
{
    pthread_mutex_destroy(&rail->base.mu);
    free(rail->slot);
    gr_ready_free(&rail->ready);
    free(rail);
}

int vb_rail_open(const vb_lib *lib, const char *device, uint8_t port, const vb_opts *opt, vb_rail **out, const char **step)
{
    vb_rail *rail = calloc(1, sizeof(*rail));
    *step = "calloc";
    if (!rail)
        return -ENOMEM;
    gr_rail_init(&rail->base, &vb_ops);
    rail->lib = lib;
    rail->port = port;
    rail->opt = *opt;
    int rc = open_objects(rail, device, step);
    if (rc) {
        (void)close_objects(rail);
        free_rail(rail);
        return rc;
    }
    rail->ethernet = rail->attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    if (!rail->ethernet && (rail->attr.flags & IBV_QPF_GRH_REQUIRED) && rail->opt.gid_index < 0)
        rail->opt.gid_index = 0; /* virtual functions */
    /* One request is kept, see room(), and one is the READ that proves the others. */
    rail->base.iov_limit = vb_at_most(rail->dev.max_qp_wr - 2, GR_MAX_IOV);
    rail->base.max_msg = rail->attr.max_msg_sz;
    rail->base.msg_size = rail->attr.max_msg_sz;
    rail->base.tx_depth = vb_at_most(rail->dev.max_qp_wr, VB_SEND_DEPTH) / 2;
    rail->base.rx_depth = vb_at_most(rail->dev.max_qp_wr, VB_RECV_DEPTH);
    if (rail->iwarp) {
        rail->base.ops = &vb_iw_ops;
        rail->base.rx_depth--; /* the first is the connection's own */
    }
    rail->base.private_ep = 1;
    rail->base.ordered = 1;
    rail->base.chained = 1;
    *out = rail;
    return 0;
}

int vb_rail_close(vb_rail *rail)
{
    gr_rail_lock(&rail->base);
    int busy = rail->open_eps || rail->open_mrs;
    gr_rail_unlock(&rail->base);
    if (busy)
        return -EBUSY;
    int rc = close_objects(rail);
    free_rail(rail);
    return rc;
}

int vb_event(vb_rail *rail, int *what, const char **text)
{
    struct ibv_async_event ev;
    if (rail->lib->get_async_event(rail->ctx, &ev) != 0)
        return 0;
    *what = VB_OTHER;
    *text = rail->lib->event_type_str(ev.event_type);
    if (ev.event_type == IBV_EVENT_DEVICE_FATAL || ev.event_type == IBV_EVENT_CQ_ERR)
        *what = VB_DOWN;
    else if (ev.element.port_num == rail->port && ev.event_type == IBV_EVENT_PORT_ACTIVE)
        *what = VB_UP;
    else if (ev.element.port_num == rail->port && ev.event_type == IBV_EVENT_PORT_ERR)
        *what = VB_DOWN;
    else if (ev.element.port_num == rail->port && ev.event_type == IBV_EVENT_GID_CHANGE)
        *what = VB_GIDS;
    rail->lib->ack_async_event(&ev);
    return 1;
}
