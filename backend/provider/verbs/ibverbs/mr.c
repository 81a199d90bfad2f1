/* Registration for Go and for the core's own buffers (gr_rail_ops.reg). C, because the core is C and calls it without
 * Go. */
#include <errno.h>

#include "verbs.h"

struct ibv_mr *vb_reg(const vb_rail *rail, uint64_t addr, size_t len, unsigned access)
{
    void *at = (void *)(uintptr_t)addr;
    errno = 0;
    if (rail->lib->reg_mr_iova2) /* accepts optional flags and ignores those that the device lacks */
        return rail->lib->reg_mr_iova2(rail->pd, at, len, addr, access | IBV_ACCESS_RELAXED_ORDERING);
    return rail->lib->reg_mr(rail->pd, at, len, (int)access);
}

int vb_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    struct ibv_mr *m = vb_reg((vb_rail *)base, (uint64_t)(uintptr_t)buf, len, IBV_ACCESS_LOCAL_WRITE);
    if (!m)
        return errno ? -errno : -EIO;
    *mr = *desc = m;
    return 0;
}

void vb_own_unreg(gr_rail *base, void *mr) { (void)((vb_rail *)base)->lib->dereg_mr(mr); }
