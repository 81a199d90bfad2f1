/* Opens and closes the rail and its endpoints. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "local.h"

enum { EP_COMPS = LC_OPS + LC_BULKS + 2 * LC_RECVS }; /* what an endpoint may have to hand out */
static const size_t table_size = LC_REGIONS * sizeof(lc_entry);

static void free_rail(lc_rail *rail)
{
    lc_pool_close(rail);
    lc_mapper_close(&rail->mapper);
    lc_bulk_close(rail);
    for (lc_job *j = rail->free_job, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    munmap(rail->table, table_size);
    munmap(rail->shares, sizeof(*rail->shares));
    close(rail->bell_fd);
    close(rail->base.wait_fd);
    gr_ready_free(&rail->ready);
    free(rail);
}

int lc_rail_open(uint32_t threads, const lc_nodes *nodes, const lc_parts *parts, lc_rail **out)
{
    lc_rail *rail = calloc(1, sizeof(*rail));
    if (!rail)
        return -ENOMEM;
    gr_rail_init(&rail->base, &lc_ops);
    rail->base.unlocked = &lc_unlocked;
    rail->base.bulk = &lc_whole;
    rail->base.wait_fd = parts->wait_fd;
    rail->bell_fd = parts->bell_fd;
    rail->table = parts->table;
    rail->shares = parts->shares;
    rail->base.limit.iov_limit = GR_MAX_IOV;
    rail->base.limit.tx_depth = LC_OPS;
    rail->base.limit.rx_depth = LC_RECVS;
    rail->base.limit.max_msg = LC_ALONE; /* the pool's threads share what is cut */
    rail->base.limit.window_min = 16 << 20; /* work for all who may copy, also while one of them does not run */
    rail->base.limit.msg_size = LC_MSG;
    rail->base.is.private_ep = 1;
    rail->base.is.prompt = 1;
    lc_pool_open(&rail->pool, threads, nodes);
    lc_mapper_open(&rail->mapper, parts->mapper_fd);
    *out = rail;
    return 0;
}

int lc_rail_close(lc_rail *rail)
{
    if (rail->open_eps)
        return -EBUSY;
    free_rail(rail);
    return 0;
}

static void free_ep(lc_ep *ep)
{
    if (atomic_load(&ep->bell) >= 0)
        close(atomic_load(&ep->bell)); /* not before: whoever copies may have rung it */
    if (ep->peer.pidfd >= 0)
        close(ep->peer.pidfd);
    if (ep->peer.mem >= 0)
        close(ep->peer.mem);
    munmap(ep->box, sizeof(*ep->box));
    if (ep->peer.box)
        munmap(ep->peer.box, sizeof(*ep->peer.box));
    if (ep->peer.table)
        munmap((void *)ep->peer.table, table_size);
    if (ep->peer.shares)
        munmap((void *)ep->peer.shares, sizeof(*ep->peer.shares));
    free(ep->gpu.import);
    free(ep);
}

int lc_ep_open(lc_rail *rail, lc_box *box, lc_ep **out)
{
    lc_ep *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return -ENOMEM;
    ep->rail = rail;
    ep->peer.sock = ep->peer.pidfd = ep->peer.mem = -1;
    atomic_store(&ep->bell, -1);
    gr_rail_lock(&rail->base);
    int rc = gr_ready_room(&rail->ready, (rail->open_eps + 1) * EP_COMPS);
    if (!rc) {
        ep->box = box;
        ep->number = ++rail->numbers;
        ep->next = rail->eps;
        rail->eps = ep;
        rail->open_eps++;
    }
    gr_rail_unlock(&rail->base);
    if (rc)
        free(ep);
    else
        *out = ep;
    return rc;
}

int lc_ep_shut(lc_ep *ep)
{
    lc_rail *rail = ep->rail;
    gr_rail_lock(&rail->base);
    atomic_store(&ep->box->closed, 1);
    atomic_store(&ep->closing, 1);
    lc_hang_up(ep);
    int late = lc_cancel(ep);
    ep->err = ESHUTDOWN;
    lc_import_close(ep);
    gr_rail_unlock(&rail->base);
    int rc = lc_quiet(rail, ep, 0);
    return rc ? rc : late;
}

void lc_ep_free(lc_ep *ep)
{
    lc_rail *rail = ep->rail;
    gr_rail_lock(&rail->base);
    lc_ep **at = &rail->eps;
    while (*at != ep)
        at = &(*at)->next;
    *at = ep->next;
    rail->open_eps--;
    gr_rail_unlock(&rail->base);
    free_ep(ep);
}
