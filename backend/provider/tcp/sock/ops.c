/* The ops table. C, because the core calls it for each operation and each poll with the rail's lock held. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>

#include "plan.h"

/* An operation of the connection, or NULL and a negative errno. */
static tcp_op *op_take(tcp_conn *conn, uint32_t used, uint32_t depth, int *rc)
{
    *rc = conn->state == TCP_NEW ? -ENOTCONN : conn->state == TCP_FAILED ? -conn->err : used >= depth ? -EAGAIN : 0;
    if (*rc)
        return NULL;
    tcp_op *op = tcp_op_new(conn->rail);
    if (!op)
        *rc = -EAGAIN;
    return op;
}

static int op_enqueue(tcp_conn *conn, tcp_op *op)
{
    conn->ops++;
    tcp_pace_begins(conn, op);
    STAILQ_INSERT_TAIL(&conn->tx, op, next);
    tcp_conn_dirty(conn);
    return 0;
}

static int rma(gr_rail *base, void *ep, int kind, uint32_t n, const gr_seg *seg, gr_ctx *ctx)
{
    tcp_conn *conn = ep;
    int rc;
    if (n == 0 || n > base->limit.iov_limit)
        return -EINVAL;
    tcp_op *op = op_take(conn, conn->ops, TCP_TX_DEPTH, &rc);
    if (!op)
        return rc;
    op->ctx = ctx;
    op->kind = kind == GR_READ ? TCP_READ : TCP_WRITE;
    op->signaled = kind != GR_WRITE_UNSIGNALED;
    op->nseg = n;
    for (uint32_t i = 0; i < n; i++) {
        op->seg[i] = seg[i];
        op->bytes += seg[i].len;
    }
    if (op->bytes > TCP_BODY) {
        STAILQ_INSERT_HEAD(&conn->rail->pool, op, next);
        return -EMSGSIZE;
    }
    if (op->kind == TCP_READ)
        op->id = ++conn->next_id;
    else if ((rc = tcp_gpu_write(conn, op))) {
        STAILQ_INSERT_HEAD(&conn->rail->pool, op, next);
        return rc;
    }
    return op_enqueue(conn, op);
}

static int send_msg(gr_rail *base, void *ep, void *buf, size_t len, void *desc, int wake, gr_ctx *ctx)
{
    tcp_conn *conn = ep;
    int rc;
    (void)base, (void)desc, (void)wake; /* each message wakes its receiver */
    if (len > TCP_MESSAGE)
        return -EMSGSIZE;
    tcp_op *op = op_take(conn, conn->ops, TCP_TX_DEPTH, &rc);
    if (!op)
        return rc;
    op->ctx = ctx;
    op->kind = TCP_SEND;
    op->signaled = 1;
    op->nseg = 1;
    op->bytes = len;
    op->seg[0] = (gr_seg){.laddr = (uintptr_t)buf, .len = len};
    return op_enqueue(conn, op);
}

static int recv_msg(gr_rail *base, void *ep, void *buf, size_t len, void *desc, gr_ctx *ctx)
{
    tcp_conn *conn = ep;
    int rc = 0;
    (void)base, (void)desc;
    tcp_op *op = conn->recvs >= TCP_RX_DEPTH ? NULL : tcp_op_new(conn->rail);
    if (conn->state == TCP_FAILED && !conn->earlies) /* messages that were acknowledged are delivered */
        rc = -conn->err;
    else if (!op)
        rc = -EAGAIN;
    if (rc) {
        if (op)
            STAILQ_INSERT_HEAD(&conn->rail->pool, op, next);
        return rc;
    }
    op->ctx = ctx;
    op->kind = 0;
    op->nseg = 1;
    op->seg[0] = (gr_seg){.laddr = (uintptr_t)buf, .len = len};
    if (conn->earlies) {
        tcp_take_early(conn, op);
        return 0;
    }
    conn->recvs++;
    STAILQ_INSERT_TAIL(&conn->rx, op, next);
    return 0;
}

/* Polls find what follows. */
static int copying(const tcp_rail *rail) { return rail->flying || tcp_jobs_busy(rail); }

static void flush(gr_rail *base)
{
    tcp_rail *rail = (tcp_rail *)base;
    tcp_conn *conn;
    while ((conn = TAILQ_FIRST(&rail->dirty))) {
        TAILQ_REMOVE(&rail->dirty, conn, dirty_next);
        conn->dirty = 0;
        tcp_gpu_post(conn);
        tcp_gpu_busy(conn, 1);
        tcp_send(conn);
        tcp_gpu_busy(conn, 0);
        if (!STAILQ_EMPTY(&rail->done) && STAILQ_EMPTY(&conn->unacked) && STAILQ_EMPTY(&conn->reading) && !conn->blocked)
            tcp_wake(rail); /* unsignaled WRITEs have ended, and nothing that was sent will give an event */
    }
    base->gathered = 0;
    if (copying(rail) && !atomic_load_explicit(&base->app_polls, memory_order_relaxed))
        tcp_wake(rail);
}

/* Implements epoll_wait, without waiting. */
static void epoll_look(tcp_rail *rail)
{
    struct epoll_event ev[32];
    rail->turns = 0;
    rail->count.waits++;
    int n = epoll_wait(rail->base.wait_fd, ev, 32, 0);
    rail->crowd = n > TCP_HOT;
    for (int i = 0; i < n; i++) {
        tcp_conn *conn = ev[i].data.ptr;
        if (!conn) /* tcp_wake: what it announces is in the lists */
            continue;
        if (ev[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) {
            conn->blocked = 0;
            tcp_conn_dirty(conn);
        }
        if (ev[i].events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP))
            conn->ending = 1;
        if (ev[i].events & ~(uint32_t)EPOLLOUT)
            tcp_conn_ready(conn);
    }
}

/* One turn of a connection. What it has to send goes out when the rail is left. Returns the bytes that came. */
static size_t conn_turn(tcp_conn *conn)
{
    if (conn->state != TCP_UP)
        return 0;
    size_t n = tcp_receive(conn);
    if (n >= TCP_TURN)
        tcp_conn_ready(conn);
    if (tcp_conn_has_output(conn))
        tcp_conn_dirty(conn);
    return n;
}

static int take_done(tcp_rail *rail, gr_comp *out, int max)
{
    int n = 0;
    tcp_op *op;
    while (n < max && (op = STAILQ_FIRST(&rail->done))) {
        STAILQ_REMOVE_HEAD(&rail->done, next);
        out[n++] = (gr_comp){.ctx = op->ctx, .err = op->err, .len = op->kind ? 0 : op->len};
        STAILQ_INSERT_HEAD(&rail->pool, op, next);
    }
    return n;
}

static int conns_serve(tcp_rail *rail, gr_comp *out, int max)
{
    tcp_gpu_ended(rail);
    tcp_jobs_poll(rail);
    int n = take_done(rail, out, max);
    if (n)
        return n;
    flush(&rail->base); /* posts go out before what they wait for is looked for */
    for (int i = 0; i < TCP_HOT && !rail->crowd; i++)
        if (rail->hot[i])
            conn_turn(rail->hot[i]);
    if (!rail->hot[0] || rail->crowd || ++rail->turns >= TCP_EPOLL_EVERY)
        epoll_look(rail);
    size_t bytes = 0;
    tcp_conn *conn;
    for (int i = 0; i < TCP_POLL_CONNS && bytes < TCP_POLL_BYTES && (conn = TAILQ_FIRST(&rail->ready)); i++) {
        TAILQ_REMOVE(&rail->ready, conn, ready_next);
        conn->ready = 0;
        bytes += conn_turn(conn);
    }
    return take_done(rail, out, max);
}

static int left(const tcp_rail *rail) { return !STAILQ_EMPTY(&rail->done) || !TAILQ_EMPTY(&rail->ready); }

static int poll_conns(gr_rail *base, gr_comp *out, int max)
{
    tcp_rail *rail = (tcp_rail *)base;
    if (rail->armed && pthread_equal(base->thread, pthread_self()))
        rail->armed = 0; /* it does not sleep */
    rail->polling = 1;
    int n = conns_serve(rail, out, max);
    rail->polling = 0;
    int flying = copying(rail) && !atomic_load_explicit(&base->app_polls, memory_order_relaxed);
    if (left(rail) || flying) /* the application polls, perhaps not again; its epoll_wait has taken the edges */
        tcp_wake(rail);
    return n;
}

enum { AWAKE_NS = 200 * 1000, TIMER_NS = 100 * 1000 };

/* While copies of GPUs fly, a thread that sleeps wakes by a timer. 0: it should not sleep yet. Implements timerfd_settime. */
static int sleep_beside_copies(tcp_rail *rail)
{
    uint32_t flying = rail->flying;
    tcp_gpu *gpu;
    if (!flying)
        return 1;
    tcp_gpu_ended(rail);
    if (rail->flying != flying)
        return 0;
    uint64_t t = tcp_copy_clock();
    SLIST_FOREACH(gpu, &rail->gpus, next)
    if (!TAILQ_EMPTY(&gpu->flying) && t - gpu->since < AWAKE_NS)
        return 0;
    return timerfd_settime(rail->timer_fd, 0, &(struct itimerspec){.it_value.tv_nsec = TIMER_NS}, NULL) == 0;
}

static int arm(gr_rail *base)
{
    tcp_rail *rail = (tcp_rail *)base;
    rail->armed = 0;
    epoll_look(rail);
    int again = left(rail) || !TAILQ_EMPTY(&rail->dirty) || tcp_jobs_busy(rail) || !sleep_beside_copies(rail);
    rail->armed = !again;
    return again;
}

/* Sockets take any memory of the process. */
static int own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    (void)base, (void)buf, (void)len;
    *mr = *desc = NULL;
    return 0;
}

static void own_unreg(gr_rail *base, void *mr) { (void)base, (void)mr; }

const gr_rail_ops tcp_ops = {.rma = rma, .send = send_msg, .recv = recv_msg, .poll = poll_conns, .arm = arm, .reg = own_reg, .unreg = own_unreg,
                             .flush = flush, .round_trip = tcp_conn_round_trip};
