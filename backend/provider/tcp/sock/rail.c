/* The rail: it begins, ends, and has the calls of Go that concern all connections. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "gr_failpoint.h"
#include "plan.h"

/* Implements epoll_create1, eventfd, epoll_ctl. */
static int open_rail(tcp_rail *rail)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
    if (!(rail->heads = malloc(HEADS + MOST_HEAD)))
        return ENOMEM;
    if ((rail->base.wait_fd = GR_CALL(tcp_epoll, epoll_create1(EPOLL_CLOEXEC))) < 0 ||
        (rail->wake_fd = GR_CALL(tcp_eventfd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) < 0 ||
        epoll_ctl(rail->base.wait_fd, EPOLL_CTL_ADD, rail->wake_fd, &ev) != 0)
        return errno;
    return 0;
}

static void close_rail(tcp_rail *rail)
{
    if (rail->wake_fd >= 0)
        close(rail->wake_fd);
    if (rail->base.wait_fd >= 0)
        close(rail->base.wait_fd);
    pthread_mutex_destroy(&rail->base.mu);
    free(rail->table.at);
    free(rail->heads);
    free(rail->records);
    free(rail);
}

tcp_rail *tcp_rail_new(uint32_t worker, int *err)
{
    tcp_rail *rail = GR_ALLOC(tcp_rail, calloc(1, sizeof(*rail)));
    *err = ENOMEM;
    if (!rail)
        return NULL;
    gr_rail_init(&rail->base, &tcp_ops);
    rail->base.batch = &tcp_batch;
    rail->base.path = &tcp_path;
    rail->base.worker = worker;
    rail->base.limit.iov_limit = GR_MAX_IOV;
    rail->base.limit.tx_depth = TCP_TX_DEPTH;
    rail->base.limit.rx_depth = TCP_RX_DEPTH;
    rail->base.limit.max_msg = TCP_BODY;
    rail->base.limit.window_ns = TCP_WINDOW_NS;
    rail->base.limit.msg_size = TCP_MESSAGE;
    rail->base.is.private_ep = rail->base.is.ordered = rail->base.is.chained = rail->base.is.by_processor = 1;
    TAILQ_INIT(&rail->ready);
    TAILQ_INIT(&rail->dirty);
    STAILQ_INIT(&rail->done);
    STAILQ_INIT(&rail->pool);
    STAILQ_INIT(&rail->answer_pool);
    rail->base.wait_fd = rail->wake_fd = -1;
    *err = open_rail(rail);
    if (!*err)
        return rail;
    close_rail(rail);
    return NULL;
}

int tcp_rail_free(tcp_rail *rail)
{
    gr_rail_lock(&rail->base);
    int busy = rail->nconns || rail->table.live;
    gr_rail_unlock(&rail->base);
    if (busy)
        return EBUSY;
    struct tcp_ops *lists[] = {&rail->done, &rail->pool};
    for (int i = 0; i < 2; i++)
        for (tcp_op *op; (op = STAILQ_FIRST(lists[i]));) {
            STAILQ_REMOVE_HEAD(lists[i], next);
            free(op);
        }
    for (tcp_answer *a; (a = STAILQ_FIRST(&rail->answer_pool));) {
        STAILQ_REMOVE_HEAD(&rail->answer_pool, next);
        free(a);
    }
    close_rail(rail);
    return 0;
}

int tcp_register(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, uint32_t *number)
{
    gr_rail_lock(&rail->base);
    int err = tcp_region_add(rail, addr, len, key, peers, number);
    gr_rail_unlock(&rail->base);
    return err;
}

void tcp_deregister(tcp_rail *rail, uint32_t number)
{
    gr_rail_lock(&rail->base);
    tcp_region_remove(rail, number);
    gr_rail_unlock(&rail->base);
}

tcp_counters tcp_rail_counters(tcp_rail *rail)
{
    gr_rail_lock(&rail->base);
    tcp_counters c = rail->count;
    gr_rail_unlock(&rail->base);
    return c;
}
