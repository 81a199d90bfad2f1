/* Opens and closes the rail and its endpoints. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "local.h"

enum { EP_COMPS = LC_OPS + LC_BULKS + 2 * LC_RECVS }; /* what an endpoint may have to hand out */
static const size_t table_size = LC_REGIONS * sizeof(lc_entry);

static void free_rail(lc_rail *rail)
{
    lc_pool_close(rail);
    lc_feed_close(rail);
    lc_listener_close(rail);
    lc_mapper_close(rail);
    lc_bulk_close(rail);
    for (lc_job *j = rail->free_job, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    if (rail->table)
        munmap(rail->table, table_size);
    if (rail->shares)
        munmap(rail->shares, sizeof(*rail->shares));
    for (int *fd = (int[]){ rail->table_fd, rail->shares_fd, rail->bell_fd, rail->base.wait_fd, -2 }; *fd != -2; fd++)
        if (*fd >= 0)
            close(*fd);
    free(rail->free_entry);
    free(rail->free_share);
    free(rail->mem);
    gr_ready_free(&rail->ready);
    free(rail);
}

static int open_objects(lc_rail *rail, const char **step)
{
    struct epoll_event ev = { .events = EPOLLIN };
    *step = "calloc";
    if (!(rail->free_entry = calloc(LC_REGIONS, sizeof(*rail->free_entry))) ||
        !(rail->free_share = calloc(LC_SHARES, sizeof(*rail->free_share))) || !(rail->mem = calloc(LC_SHARES, sizeof(*rail->mem))))
        return -ENOMEM;
    *step = "memfd_create";
    if (!(rail->table = lc_share(table_size, 1, &rail->table_fd)) ||
        !(rail->shares = lc_share(sizeof(*rail->shares), 1, &rail->shares_fd)))
        return -errno;
    *step = "epoll_create";
    if ((rail->base.wait_fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
        return -errno;
    *step = "eventfd";
    if ((rail->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 ||
        epoll_ctl(rail->base.wait_fd, EPOLL_CTL_ADD, rail->bell_fd, &ev) != 0)
        return -errno;
    int rc = lc_listener_open(rail, step);
    if (rc)
        return rc;
    *step = "getrandom";
    if (getrandom(rail->proof.bytes, LC_TOKEN, 0) != LC_TOKEN)
        return -errno;
    rail->proof.name_len = rail->name_len;
    memcpy(rail->proof.name, rail->name, sizeof(rail->name));
    rail->proof.at = (uint64_t)(uintptr_t)rail->proof.bytes;
    return 0;
}

int lc_rail_open(uint32_t threads, const lc_nodes *nodes, lc_rail **out, const char **step)
{
    lc_rail *rail = calloc(1, sizeof(*rail));
    *step = "calloc";
    if (!rail)
        return -ENOMEM;
    gr_rail_init(&rail->base, &lc_ops);
    rail->table_fd = rail->shares_fd = rail->bell_fd = rail->listen_sock = -1;
    rail->base.iov_limit = GR_MAX_IOV;
    rail->base.tx_depth = LC_OPS;
    rail->base.rx_depth = LC_RECVS;
    rail->base.max_msg = LC_ALONE; /* the pool's threads share what is cut */
    rail->base.window_min = 16 << 20; /* work for all who may copy, also while one of them does not run */
    rail->base.msg_size = LC_MSG;
    rail->base.private_ep = 1;
    rail->base.prompt = 1;
    pthread_mutex_init(&rail->table_mu, NULL);
    lc_pool_open(&rail->pool, threads, nodes);
    lc_mapper_open(&rail->mapper);
    int rc = open_objects(rail, step);
    if (rc) {
        free_rail(rail);
        return rc;
    }
    *out = rail;
    return 0;
}

int lc_rail_close(lc_rail *rail)
{
    if (rail->open_eps || atomic_load(&rail->open_mrs))
        return -EBUSY;
    free_rail(rail);
    return 0;
}

static void free_ep(lc_ep *ep)
{
    if (ep->out_sock >= 0)
        close(ep->out_sock);
    if (ep->pidfd >= 0)
        close(ep->pidfd);
    if (ep->mem >= 0)
        close(ep->mem);
    if (ep->box)
        munmap(ep->box, sizeof(*ep->box));
    if (ep->box_fd >= 0)
        close(ep->box_fd);
    if (ep->out)
        munmap(ep->out, sizeof(*ep->out));
    if (ep->table)
        munmap((void *)ep->table, table_size);
    if (ep->shares)
        munmap((void *)ep->shares, sizeof(*ep->shares));
    free(ep->import);
    free(ep);
}

int lc_ep_open(lc_rail *rail, lc_ep **out, const char **step)
{
    lc_ep *ep = calloc(1, sizeof(*ep));
    *step = "calloc";
    if (!ep)
        return -ENOMEM;
    ep->rail = rail;
    ep->in_sock = ep->out_sock = ep->pidfd = ep->box_fd = ep->mem = -1;
    atomic_store(&ep->bell, -1);
    *step = "memfd_create";
    ep->box = lc_share(sizeof(*ep->box), 0, &ep->box_fd);
    int rc = ep->box ? lc_meet(ep, step) : -errno;
    gr_rail_lock(&rail->base);
    if (!rc)
        *step = "calloc";
    if (!rc && !(rc = gr_ready_room(&rail->ready, (rail->open_eps + 1) * EP_COMPS))) {
        ep->number = ++rail->numbers;
        ep->next = rail->eps;
        rail->eps = ep;
        rail->open_eps++;
        rail->strangers++;
    }
    gr_rail_unlock(&rail->base);
    if (rc) {
        free_ep(ep);
        return rc;
    }
    *out = ep;
    return 0;
}

int lc_ep_connect(lc_ep *ep, const lc_addr *peer, const char **step)
{
    gr_rail_lock(&ep->rail->base);
    *step = "connect";
    int rc = ep->named ? -EISCONN : lc_greet(ep, peer, step);
    if (!rc && !ep->met)
        lc_listen(ep);
    if (!rc && ep->err) {
        *step = ep->err_step ? ep->err_step : "connect";
        rc = -ep->err;
    }
    gr_rail_unlock(&ep->rail->base);
    return rc;
}

int lc_ep_close(lc_ep *ep)
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
    if (ep->imports)
        lc_mapper_wait(rail); /* the peer may free what was mapped of it as soon as it hears of the end */
    gr_rail_lock(&rail->base);
    lc_ep **at = &rail->eps;
    while (*at != ep)
        at = &(*at)->next;
    *at = ep->next;
    rail->open_eps--;
    gr_rail_unlock(&rail->base);
    free_ep(ep);
    return rc ? rc : late;
}
