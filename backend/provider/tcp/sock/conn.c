/* Operations, and the life of a connection: it begins, fails, and ends. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gr_failpoint.h"
#include "sock.h"

tcp_op *tcp_op_new(tcp_rail *rail)
{
    tcp_op *op = STAILQ_FIRST(&rail->pool);
    if (op)
        STAILQ_REMOVE_HEAD(&rail->pool, next);
    else if (!(op = GR_ALLOC(tcp_op, malloc(sizeof(*op)))))
        return NULL;
    op->err = 0;
    op->nseg = 0;
    op->bytes = op->len = op->seq = 0;
    op->copy = NULL;
    op->job = NULL;
    return op;
}

/* The operation is in no list of its connection any more. */
void tcp_op_done(tcp_rail *rail, tcp_op *op, int err)
{
    op->err = err;
    tcp_gpu_sent(op, NULL);
    STAILQ_INSERT_TAIL(&rail->done, op, next);
}

/* Makes wait_fd readable, once an arm. Without that a thread that sleeps would find a failed connection 250 ms later. */
void tcp_wake(tcp_rail *rail)
{
    if (!rail->armed || rail->polling)
        return;
    rail->armed = 0;
    ssize_t n = write(rail->wake_fd, &(uint64_t){1}, sizeof(uint64_t)); /* edge-triggered: never read */
    (void)n;
}

void tcp_take_early(tcp_conn *conn, tcp_op *op)
{
    tcp_op *m = STAILQ_FIRST(&conn->early);
    STAILQ_REMOVE_HEAD(&conn->early, next);
    conn->earlies--;
    void *from = (void *)(uintptr_t)m->seg[0].laddr;
    op->len = m->len < op->seg[0].len ? m->len : op->seg[0].len;
    memcpy((void *)(uintptr_t)op->seg[0].laddr, from, op->len); /* ours */
    tcp_op_done(conn->rail, op, op->len < m->len ? EMSGSIZE : 0);
    tcp_wake(conn->rail);
    free(from);
    STAILQ_INSERT_HEAD(&conn->rail->pool, m, next);
}

void tcp_conn_dirty(tcp_conn *conn)
{
    if (conn->dirty || conn->state != TCP_UP)
        return;
    conn->dirty = 1;
    TAILQ_INSERT_TAIL(&conn->rail->dirty, conn, dirty_next);
    conn->rail->base.gathered = 1;
}

void tcp_conn_hot(tcp_conn *conn)
{
    tcp_conn **hot = conn->rail->hot;
    if (hot[0] == conn)
        return;
    hot[1] = hot[0];
    hot[0] = conn;
}

static void leave_lists(tcp_conn *conn)
{
    tcp_rail *rail = conn->rail;
    tcp_conn_not_ready(conn);
    if (conn->dirty)
        TAILQ_REMOVE(&rail->dirty, conn, dirty_next);
    conn->dirty = 0;
    for (int i = 0; i < TCP_HOT; i++)
        if (rail->hot[i] == conn)
            rail->hot[i] = NULL;
}

/* While copies of GPUs fly, operations end with the last of them. */
static void end_all(tcp_conn *conn, struct tcp_ops *list, int err)
{
    tcp_op *op;
    while ((op = STAILQ_FIRST(list))) {
        STAILQ_REMOVE_HEAD(list, next);
        if (op->kind == TCP_CONFIRM) {
            tcp_job_answered(conn, op, err);
            continue;
        }
        tcp_gpu_sent(op, NULL);
        if (!conn->gpu.flying) {
            tcp_op_done(conn->rail, op, err);
            continue;
        }
        op->err = err;
        STAILQ_INSERT_TAIL(&conn->gpu.held, op, next);
    }
}

static void free_messages(struct tcp_ops *list)
{
    tcp_op *op;
    while ((op = STAILQ_FIRST(list))) {
        STAILQ_REMOVE_HEAD(list, next);
        free((void *)(uintptr_t)op->seg[0].laddr);
        free(op);
    }
}

/* Gives an answer that was sent, or will not be, back to the pool. It is the first of its connection. */
void tcp_answer_done(tcp_conn *conn)
{
    tcp_answer *a = STAILQ_FIRST(&conn->answers);
    STAILQ_REMOVE_HEAD(&conn->answers, next);
    conn->nanswers--;
    conn->answer_bytes -= a->bytes;
    tcp_gpu_sent(NULL, a);
    STAILQ_INSERT_HEAD(&conn->rail->answer_pool, a, next);
}

/* Ends the connection's socket and all its operations. None touches a buffer afterwards. Posted receives end with `receives`
 * only. */
static void end(tcp_conn *conn, int err, int receives)
{
    tcp_rail *rail = conn->rail;
    leave_lists(conn);
    if (conn->fd >= 0) {
        (void)epoll_ctl(rail->base.wait_fd, EPOLL_CTL_DEL, conn->fd, NULL);
        shutdown(conn->fd, SHUT_RDWR); /* a child of fork may hold the socket */
        close(conn->fd);
    }
    conn->fd = -1;
    if (conn->in.op && !conn->in.op->ctx) { /* half a message that came before its receive */
        free((void *)(uintptr_t)conn->in.op->seg[0].laddr);
        free(conn->in.op);
    } else if (conn->in.op && conn->in.h.op == TCP_SEND) {
        tcp_op_done(rail, conn->in.op, err); /* a receive that was being filled */
    }
    conn->in.op = NULL;
    free(conn->in.segments);
    conn->in.segments = NULL;
    tcp_unpack_end(conn);
    free(conn->out.head);
    tcp_packed_give(rail, conn->out.packed);
    conn->out = (tcp_out){0};
    tcp_records_free(conn->records);
    conn->records = NULL;
    free(conn->gpu.frames.mem);
    free(conn->gpu.records.mem);
    conn->gpu.frames = conn->gpu.records = (tcp_rest){0};
    tcp_gpu_drop(conn);
    end_all(conn, &conn->unacked, err);
    end_all(conn, &conn->reading, err);
    end_all(conn, &conn->tx, err);
    conn->ops = conn->reads = 0;
    tcp_pace_leave(conn);
    if (receives) {
        end_all(conn, &conn->rx, err);
        conn->recvs = 0;
    }
    while (!STAILQ_EMPTY(&conn->answers))
        tcp_answer_done(conn);
    tcp_wake(rail);
}

void tcp_conn_fail(tcp_conn *conn, int err)
{
    if (conn->state == TCP_FAILED)
        return;
    conn->err = err;
    end(conn, err, 1);
    conn->state = TCP_FAILED;
}

void tcp_conn_left(tcp_conn *conn)
{
    conn->err = ENOTCONN;
    end(conn, ECONNRESET, conn->ops > 0);
    conn->state = TCP_FAILED;
}

int tcp_conn_has_output(const tcp_conn *conn)
{
    return conn->out.kind || tcp_sealed_left(conn) || conn->ask || !STAILQ_EMPTY(&conn->tx) || !STAILQ_EMPTY(&conn->answers) ||
           (conn->refusal.seq && !conn->refusal.sent);
}

tcp_conn *tcp_conn_new(tcp_rail *rail)
{
    tcp_conn *conn = GR_ALLOC(tcp_conn, calloc(1, sizeof(*conn)));
    if (!conn)
        return NULL;
    conn->rail = rail;
    conn->fd = -1;
    STAILQ_INIT(&conn->tx);
    STAILQ_INIT(&conn->unacked);
    STAILQ_INIT(&conn->reading);
    STAILQ_INIT(&conn->rx);
    STAILQ_INIT(&conn->early);
    STAILQ_INIT(&conn->answers);
    STAILQ_INIT(&conn->gpu.held);
    TAILQ_INIT(&conn->gpu.ins);
    gr_rail_lock(&rail->base);
    rail->nconns++;
    conn->maps.number = rail->bulk ? ++rail->bulk->conns : 0;
    gr_rail_unlock(&rail->base);
    return conn;
}

void tcp_conn_begin(tcp_conn *conn, const uint8_t salt[16])
{
    gr_rail_lock(&conn->rail->base);
    memcpy(conn->salt, salt, sizeof(conn->salt)); /* ours */
    if (conn->state == TCP_NEW)
        conn->state = TCP_CONNECTING;
    gr_rail_unlock(&conn->rail->base);
}

/* Takes fd over. Implements epoll_ctl. Edges of both directions are registered once, for good. */
int tcp_conn_attach(tcp_conn *conn, int fd)
{
    tcp_rail *rail = conn->rail;
    int err = 0;
    gr_rail_lock(&rail->base);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = conn};
    if (conn->state != TCP_CONNECTING)
        err = ECANCELED;
    else if (GR_CALL(tcp_attach, epoll_ctl(rail->base.wait_fd, EPOLL_CTL_ADD, fd, &ev)) != 0)
        err = errno;
    if (err) {
        close(fd);
        if (err != ECANCELED)
            tcp_conn_fail(conn, err);
    } else {
        conn->fd = fd;
        conn->state = TCP_UP;
        conn->inq = setsockopt(fd, IPPROTO_TCP, TCP_INQ, &(int){1}, sizeof(int)) == 0;
        tcp_conn_ready(conn);
        tcp_conn_dirty(conn);
    }
    gr_rail_unlock(&rail->base);
    return err;
}

void tcp_conn_broken(tcp_conn *conn, int err)
{
    gr_rail_lock(&conn->rail->base);
    if (conn->state == TCP_CONNECTING)
        tcp_conn_fail(conn, err);
    gr_rail_unlock(&conn->rail->base);
}

/* Says goodbye if a frame may begin, so that the peer knows that this is no failure. */
static void say_goodbye(tcp_conn *conn)
{
    uint8_t head[TCP_HEADER];
    tcp_header h = {.op = TCP_GOODBYE, .ack = conn->placed_seq};
    if (conn->state != TCP_UP || conn->out.kind)
        return;
    tcp_put_header(head, &h);
    if (conn->records) {
        tcp_seal_last(conn, head, sizeof(head));
        return;
    }
    ssize_t n = send(conn->fd, head, sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; /* the peer then sees the end of the connection without it */
}

int tcp_conn_close(tcp_conn *conn)
{
    tcp_rail *rail = conn->rail;
    gr_rail_lock(&rail->base);
    say_goodbye(conn);
    end(conn, ECANCELED, 1);
    conn->state = TCP_FAILED;
    int late = rail->bulk ? tcp_jobs_end(conn) : tcp_gpu_await(conn);
    conn->paces = NULL;
    rail->nconns--;
    free_messages(&conn->early);
    gr_rail_unlock(&rail->base);
    if (!late) {
        free(conn->maps.import);
        free(conn);
    }
    return late;
}
