/* The rail: it begins, ends, and has the calls of Go that concern all connections. What the kernel knows of a connection. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
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
    if (rail->timer_fd >= 0)
        close(rail->timer_fd);
    if (rail->base.wait_fd >= 0)
        close(rail->base.wait_fd);
    pthread_mutex_destroy(&rail->base.mu);
    tcp_bulk_free(rail);
    free(rail->table.at);
    free(rail->heads);
    free(rail->records);
    tcp_pack_free(rail->pack);
    free(rail);
}

tcp_rail *tcp_rail_new(uint32_t worker, int *err)
{
    tcp_rail *rail = GR_ALLOC(tcp_rail, calloc(1, sizeof(*rail)));
    *err = ENOMEM;
    if (!rail)
        return NULL;
    gr_rail_init(&rail->base, &tcp_ops);
    rail->base.worker = worker;
    rail->base.limit.iov_limit = GR_MAX_IOV;
    rail->base.limit.tx_depth = TCP_TX_DEPTH;
    rail->base.limit.rx_depth = TCP_RX_DEPTH;
    rail->base.limit.max_msg = TCP_BODY;
    rail->base.limit.window_ns = TCP_WINDOW_NS;
    rail->base.limit.msg_size = TCP_MESSAGE;
    rail->base.is.private_ep = rail->base.is.ordered = rail->base.is.chained = rail->base.is.by_processor = rail->base.is.sure = 1;
    TAILQ_INIT(&rail->ready);
    TAILQ_INIT(&rail->dirty);
    TAILQ_INIT(&rail->waiting);
    STAILQ_INIT(&rail->done);
    STAILQ_INIT(&rail->pool);
    STAILQ_INIT(&rail->answer_pool);
    SLIST_INIT(&rail->gpus);
    rail->base.wait_fd = rail->wake_fd = rail->timer_fd = -1;
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

/* Implements timerfd_create. */
int tcp_rail_gpu(tcp_rail *rail, tcp_gpu *gpu)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET};
    int err = 0;
    gr_rail_lock(&rail->base);
    if (rail->timer_fd < 0 && ((rail->timer_fd = GR_CALL(tcp_timerfd, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))) < 0 ||
                               epoll_ctl(rail->base.wait_fd, EPOLL_CTL_ADD, rail->timer_fd, &ev) != 0))
        err = errno;
    if (!err)
        SLIST_INSERT_HEAD(&rail->gpus, gpu, next);
    gr_rail_unlock(&rail->base);
    return err;
}

int tcp_register_vram(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, tcp_vram *vram, uint32_t *number)
{
    gr_rail_lock(&rail->base);
    int err = tcp_region_add(rail, addr, len, key, peers, NULL, number);
    if (!err) {
        rail->table.at[*number].vram = vram;
        vram->number = *number;
    }
    gr_rail_unlock(&rail->base);
    return err;
}

int tcp_register(tcp_rail *rail, uint64_t addr, uint64_t len, uint64_t key, uint8_t peers, tcp_gpu *gpu, uint32_t *number)
{
    gr_rail_lock(&rail->base);
    int err = tcp_region_add(rail, addr, len, key, peers, gpu, number);
    gr_rail_unlock(&rail->base);
    return err;
}

void tcp_register_all(tcp_rail *rail, tcp_entry *entries, size_t n)
{
    gr_rail_lock(&rail->base);
    for (tcp_entry *e = entries; e < entries + n; e++)
        e->err = tcp_region_add(rail, e->addr, e->len, e->key, e->peers, e->gpu, &e->number);
    gr_rail_unlock(&rail->base);
}

enum { PAUSE_NS = 20 * 1000, WAIT_NS = 1000 * 1000 * 1000 };

/* The GPU of the connection's oldest copy that has not ended. */
static int late_gpu(const tcp_conn *conn)
{
    const tcp_gpu *gpu;
    const tcp_copy *c;
    SLIST_FOREACH(gpu, &conn->rail->gpus, next)
    TAILQ_FOREACH(c, &gpu->flying, next)
    if (c->conn == conn)
        return gpu->device;
    return -1;
}

/* Copies of a GPU have not ended: they keep the connection's memory and their bounce buffers until a poll finds their end
 * (tcp_gpu_ended). The core ends the operations when it reaps the link. */
static int keep(tcp_conn *conn)
{
    tcp_op *op;
    while ((op = STAILQ_FIRST(&conn->gpu.held))) {
        STAILQ_REMOVE_HEAD(&conn->gpu.held, next);
        STAILQ_INSERT_HEAD(&conn->rail->pool, op, next);
    }
    conn->gpu.closed = 1;
    conn->rail->kept++;
    return 1 + late_gpu(conn);
}

int tcp_gpu_await(tcp_conn *conn)
{
    uint64_t end = tcp_copy_clock() + WAIT_NS;
    for (tcp_gpu_ended(conn->rail); conn->gpu.flying; tcp_gpu_ended(conn->rail)) {
        if (tcp_copy_clock() > end)
            return keep(conn);
        gr_rail_unlock(&conn->rail->base);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        gr_rail_lock(&conn->rail->base);
    }
    return 0;
}

uint32_t tcp_rail_kept(tcp_rail *rail)
{
    gr_rail_lock(&rail->base);
    tcp_gpu_ended(rail);
    tcp_jobs_poll(rail);
    uint32_t n = rail->kept;
    gr_rail_unlock(&rail->base);
    return n;
}

static int copies(const tcp_copy *c, const tcp_region *r)
{
    for (uint32_t i = 0; i < c->nops; i++)
        if (c->ops[i].local < r->addr + r->len && r->addr < c->ops[i].local + c->ops[i].len)
            return 1;
    return 0;
}

/* Whether one of the GPU's first `last` copies works on memory of the region, and has not ended. *left: it is waited for still. */
static int copied(tcp_gpu *gpu, const tcp_region *r, uint64_t last, int *left)
{
    uint64_t n = gpu->nended, now = tcp_copy_clock();
    int busy = *left = 0;
    tcp_copy *c;
    TAILQ_FOREACH(c, &gpu->flying, next)
    {
        if (n++ == last)
            break;
        if (!c->late) /* all copies: the next region waits no more for what this one has waited for */
            c->late = now + WAIT_NS;
        if (!copies(c, r))
            continue;
        busy = 1;
        *left |= now <= c->late;
    }
    return busy;
}

/* Waits for the GPU's copies of the region that were posted before. Returns 1 if one has not ended. With the rail locked, but not meanwhile. */
static int await_copies(tcp_rail *rail, const tcp_region *was)
{
    uint64_t last = was->gpu ? was->gpu->nposted : 0; /* no copy is open: the lock was free */
    tcp_gpu_ended(rail);
    int busy, left;
    while ((busy = was->gpu && copied(was->gpu, was, last, &left)) && left) {
        gr_rail_unlock(&rail->base);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        gr_rail_lock(&rail->base);
        tcp_gpu_ended(rail);
    }
    return busy;
}

int tcp_deregister(tcp_rail *rail, uint32_t number)
{
    gr_rail_lock(&rail->base);
    tcp_region was = rail->table.at[number];
    tcp_region_remove(rail, number);
    int busy = await_copies(rail, &was);
    if (was.vram)
        busy = tcp_jobs_await(rail, number);
    gr_rail_unlock(&rail->base);
    return busy ? EBUSY : 0;
}

int tcp_await_copies(tcp_rail *rail, uint64_t addr, uint64_t len, tcp_gpu *gpu)
{
    tcp_region was = {.addr = addr, .len = len, .gpu = gpu};
    gr_rail_lock(&rail->base);
    int busy = await_copies(rail, &was);
    gr_rail_unlock(&rail->base);
    return busy ? EBUSY : 0;
}

uint64_t tcp_rail_failed(tcp_rail *rail, const tcp_gpu *gpu, gr_gpu_fault *fault)
{
    gr_rail_lock(&rail->base);
    uint64_t n = gpu->nfailed;
    *fault = gpu->fault;
    gr_rail_unlock(&rail->base);
    return n;
}

tcp_counters tcp_rail_counters(tcp_rail *rail)
{
    gr_rail_lock(&rail->base);
    tcp_counters c = rail->count;
    c.regions = rail->table.live;
    gr_rail_unlock(&rail->base);
    return c;
}

uint64_t tcp_conn_round_trip(gr_rail *rail, void *ep)
{
    const tcp_conn *conn = ep;
    struct tcp_info info;
    socklen_t len = sizeof(info);
    (void)rail;
    if (conn->state != TCP_UP || getsockopt(conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) ||
        len < offsetof(struct tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt))
        return 0;
    return info.tcpi_min_rtt == UINT32_MAX ? 0 : 1000 * (uint64_t)info.tcpi_min_rtt;
}

int tcp_conn_option(tcp_conn *conn, int level, int name, void *to, uint32_t len)
{
    socklen_t n = len;
    gr_rail_lock(&conn->rail->base);
    int err = conn->fd < 0 ? ENOTCONN : getsockopt(conn->fd, level, name, to, &n) ? errno : 0;
    gr_rail_unlock(&conn->rail->base);
    return err;
}
