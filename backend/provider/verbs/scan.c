/* What ports there are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

static uint64_t mbps(const struct ibv_port_attr *a)
{
    static const struct {
        int code;
        unsigned tenths; /* of a Gbit/s and lane, what passes after encoding */
    } speeds[] = { { 1, 20 }, { 2, 40 }, { 4, 80 }, { 8, 100 }, { 16, 136 }, { 32, 250 }, { 64, 500 }, { 128, 1000 } };
    int lanes = a->active_width == 1 ? 1 : a->active_width == 2 ? 4 : a->active_width == 4 ? 8 : a->active_width == 8 ? 12
              : a->active_width == 16 ? 2 : 1;
    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
        if (speeds[i].code == a->active_speed)
            return (uint64_t)speeds[i].tenths * 100 * (uint64_t)lanes;
    return 0;
}

static int port(const vb_lib *lib, struct ibv_context *ctx, uint8_t number, vb_port *p)
{
    struct ibv_port_attr a;
    memset(&a, 0, sizeof(a));
    int rc = lib->query_port(ctx, number, &a);
    p->step = "ibv_query_port";
    if (rc)
        return rc > 0 ? rc : errno;
    p->ethernet = a.link_layer == IBV_LINK_LAYER_ETHERNET;
    p->state = a.state;
    p->active = a.state == IBV_PORT_ACTIVE;
    p->mtu = 128 << a.active_mtu;
    p->gids = a.gid_tbl_len;
    p->mbps = mbps(&a);
    return 0;
}

/* Appends the device's ports; a device that can't be opened is one entry with its errno. */
static int device(const vb_lib *lib, struct ibv_device *dev, vb_port **out, int *n)
{
    struct ibv_device_attr attr;
    struct ibv_context *ctx = NULL;
    int ports = 1, err = 0;
    const char *step = "ibv_open_device";
    memset(&attr, 0, sizeof(attr));
    errno = 0;
    if (!(ctx = lib->open_device(dev)))
        err = errno ? errno : EIO;
    else if (step = "ibv_query_device", (err = abs(lib->query_device(ctx, &attr))) == 0)
        ports = attr.phys_port_cnt;
    vb_port *more = realloc(*out, (size_t)(*n + ports) * sizeof(*more));
    if (!more) {
        if (ctx)
            lib->close_device(ctx);
        return -ENOMEM;
    }
    *out = more;
    for (int i = 0; i < ports; i++) {
        vb_port *p = &more[(*n)++];
        memset(p, 0, sizeof(*p));
        memcpy(p->device, dev->name, sizeof(p->device));
        p->device[sizeof(p->device) - 1] = 0;
        p->iwarp = dev->transport_type == IBV_TRANSPORT_IWARP;
        p->port = (uint8_t)(i + 1);
        p->step = step;
        p->err = err ? err : port(lib, ctx, (uint8_t)(i + 1), p);
    }
    if (ctx)
        lib->close_device(ctx);
    return 0;
}

int vb_scan(const vb_lib *lib, vb_port **out)
{
    int count = 0, n = 0, rc = 0;
    *out = NULL;
    errno = 0;
    struct ibv_device **list = lib->get_device_list(&count);
    if (!list)
        return errno ? -errno : -ENOSYS;
    for (int i = 0; i < count && rc == 0; i++)
        if (list[i]->transport_type == IBV_TRANSPORT_IB || list[i]->transport_type == IBV_TRANSPORT_IWARP)
            rc = device(lib, list[i], out, &n);
    lib->free_device_list(list);
    if (rc) {
        free(*out);
        *out = NULL;
        return rc;
    }
    return n;
}
