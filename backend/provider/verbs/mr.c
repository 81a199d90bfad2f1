/* Memory regions. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

enum { PEERS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_mr *reg(vb_rail *rail, void *addr, size_t len, unsigned access)
{
    errno = 0;
    if (rail->lib->reg_mr_iova2) /* knows the optional flags, and leaves out those that the device lacks */
        return rail->lib->reg_mr_iova2(rail->pd, addr, len, (uint64_t)(uintptr_t)addr, access | IBV_ACCESS_RELAXED_ORDERING);
    return rail->lib->reg_mr(rail->pd, addr, len, (int)access);
}

static int opened(vb_rail *rail, const struct ibv_mr *mr)
{
    if (!mr)
        return errno ? -errno : -EIO;
    gr_rail_lock(&rail->base);
    rail->open_mrs++;
    gr_rail_unlock(&rail->base);
    return 0;
}

/* Pins the memory unless it is registered on demand, which may take seconds: without the rail's lock, libibverbs has its own. */
int vb_mr_open(vb_rail *rail, uint64_t addr, uint64_t len, int on_demand, struct ibv_mr **out)
{
    return opened(rail, *out = reg(rail, (void *)(uintptr_t)addr, len, PEERS | (on_demand ? IBV_ACCESS_ON_DEMAND : 0)));
}

int vb_mr_open_dmabuf(vb_rail *rail, int fd, uint64_t offset, uint64_t len, uint64_t iova, struct ibv_mr **out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!rail->dmabuf)
        return -EOPNOTSUPP;
    if ((offset ^ iova) & (page - 1))
        return -EINVAL;
    errno = 0;
    return opened(rail, *out = rail->lib->reg_dmabuf_mr(rail->pd, offset, len, iova, fd, PEERS | IBV_ACCESS_RELAXED_ORDERING));
}

/* A descriptor that is none: whoever knows dmabufs says EBADF, kernels (before 5.12) and drivers that don't say other things. */
int vb_can_dmabuf(const vb_rail *rail)
{
    if (!rail->lib->reg_dmabuf_mr)
        return 0;
    errno = 0;
    struct ibv_mr *mr = rail->lib->reg_dmabuf_mr(rail->pd, 0, (size_t)sysconf(_SC_PAGESIZE), 0, -1, IBV_ACCESS_LOCAL_WRITE);
    if (mr)
        (void)rail->lib->dereg_mr(mr);
    return !mr && errno == EBADF;
}

/* What connections of ours do with memory, all of it by pages that may not be there. */
int vb_can_odp(struct ibv_context *ctx)
{
    const uint32_t need = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
    struct verbs_context *ex = verbs_get_ctx_op(ctx, query_device_ex);
    struct ibv_device_attr_ex attr;
    memset(&attr, 0, sizeof(attr));
    return ex && ex->query_device_ex(ctx, NULL, &attr, sizeof(attr)) == 0 && (attr.odp_caps.general_caps & IBV_ODP_SUPPORT) &&
           (attr.odp_caps.per_transport_caps.rc_odp_caps & need) == need;
}

int vb_mr_close(vb_rail *rail, struct ibv_mr *mr)
{
    int rc = rail->lib->dereg_mr(mr);
    if (rc)
        return rc > 0 ? -rc : errno ? -errno : -EIO;
    gr_rail_lock(&rail->base);
    rail->open_mrs--;
    gr_rail_unlock(&rail->base);
    return 0;
}

int vb_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    vb_rail *rail = (vb_rail *)base;
    struct ibv_mr *m = reg(rail, buf, len, IBV_ACCESS_LOCAL_WRITE);
    if (!m)
        return errno ? -errno : -EIO;
    *mr = *desc = m;
    return 0;
}

void vb_own_unreg(gr_rail *base, void *mr)
{
    (void)((vb_rail *)base)->lib->dereg_mr(mr);
}
