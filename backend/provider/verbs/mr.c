/* Memory regions. */
#include <errno.h>

#include "verbs.h"

static struct ibv_mr *reg(vb_rail *rail, void *addr, size_t len, unsigned access)
{
    errno = 0;
    if (rail->lib->reg_mr_iova2) /* knows the optional flags, and leaves out those that the device lacks */
        return rail->lib->reg_mr_iova2(rail->pd, addr, len, (uint64_t)(uintptr_t)addr, access | IBV_ACCESS_RELAXED_ORDERING);
    return rail->lib->reg_mr(rail->pd, addr, len, (int)access);
}

/* Pins the memory, which may take seconds: without the rail's lock, libibverbs has its own. */
int vb_mr_open(vb_rail *rail, uint64_t addr, uint64_t len, struct ibv_mr **out)
{
    *out = reg(rail, (void *)(uintptr_t)addr, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    if (!*out)
        return errno ? -errno : -EIO;
    gr_rail_lock(&rail->base);
    rail->open_mrs++;
    gr_rail_unlock(&rail->base);
    return 0;
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
