/* Set-up calls that Go makes while the core may post and poll. Each holds the rail's lock only within C. A goroutine
 * that returns from C may have to wait for its turn, and pollers must not wait for that. */
#include <errno.h>
#include <rdma/fi_errno.h>

#include "ofi.h"

int ofi_av_insert(ofi_rail *rail, const void *addr, fi_addr_t *at)
{
    *at = FI_ADDR_NOTAVAIL;
    gr_rail_lock(&rail->base);
    int rc = fi_av_insert(rail->av, addr, 1, at, 0, NULL);
    gr_rail_unlock(&rail->base);
    if (rc < 0)
        return rc;
    return rc == 1 && *at != FI_ADDR_NOTAVAIL ? 0 : -FI_EADDRNOTAVAIL;
}

void ofi_ep_set_peer(ofi_rail *rail, ofi_ep *ep, fi_addr_t at)
{
    gr_rail_lock(&rail->base);
    ep->peer = at;
    gr_rail_unlock(&rail->base);
}

int ofi_rail_close(ofi_rail *rail, uint32_t endpoints, uint32_t *regions, int *rc)
{
    gr_rail_lock(&rail->base);
    *regions = rail->open_mrs;
    int unused = !endpoints && !*regions;
    *rc = 0;
    if (unused) {
        struct fid *order[] = {
            rail->shared ? &rail->shared->fid : NULL, rail->cq ? &rail->cq->fid : NULL,         rail->av ? &rail->av->fid : NULL,
            rail->domain ? &rail->domain->fid : NULL, rail->fabric ? &rail->fabric->fid : NULL,
        };
        for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
            int failed = order[i] ? fi_close(order[i]) : 0;
            if (!*rc)
                *rc = failed;
        }
    }
    gr_rail_unlock(&rail->base);
    return unused;
}
