/* Connections wait for a poll, or for copies to end. What was received waits while no bounce buffer is free: nothing more is received then. */
#include <stdlib.h>

#include "sock.h"

void tcp_conn_not_ready(tcp_conn *conn)
{
    if (conn->ready)
        TAILQ_REMOVE(conn->ready == 1 ? &conn->rail->ready : &conn->rail->waiting, conn, ready_next);
    conn->ready = 0;
}

void tcp_conn_ready(tcp_conn *conn)
{
    if (conn->ready == 1 || conn->state != TCP_UP)
        return;
    tcp_conn_not_ready(conn);
    conn->ready = 1;
    TAILQ_INSERT_TAIL(&conn->rail->ready, conn, ready_next);
    tcp_wake(conn->rail);
}

void tcp_conn_wait(tcp_conn *conn)
{
    if (!conn->rail->flying) {
        tcp_conn_ready(conn);
    } else if (!conn->ready && conn->state == TCP_UP) {
        conn->ready = 2;
        TAILQ_INSERT_TAIL(&conn->rail->waiting, conn, ready_next);
    }
}

/* Takes in r. What goes on waiting is kept there. */
static int again(tcp_conn *conn, tcp_rest *r, int (*take)(tcp_conn *conn, uint8_t *at, size_t n))
{
    size_t at = r->at;
    r->at = r->len;
    int err = take(conn, r->mem + at, r->len - at);
    if (r->at < r->len)
        return err;
    free(r->mem);
    *r = (tcp_rest){0};
    return err;
}

int tcp_keeps(const tcp_conn *conn) { return conn->gpu.frames.mem || conn->gpu.records.mem; }

int tcp_resume(tcp_conn *conn)
{
    int err = conn->gpu.frames.mem ? again(conn, &conn->gpu.frames, tcp_take) : 0;
    if (!err && !conn->gpu.frames.mem && conn->gpu.records.mem)
        err = again(conn, &conn->gpu.records, tcp_open);
    return err;
}
