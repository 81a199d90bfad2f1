/* Memory of GPUs. A WRITE's bytes, and those of an answer, are copied to a bounce buffer before they are sent. What is received for a
 * GPU comes into a bounce buffer, and is copied as it comes. Nothing waits for a copy but what it is for: acknowledgements, messages and
 * completions behind it. */
#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "sock.h"

enum {
    SPIN_NS = 12 * 1000, /* a copy of 4 KiB takes 7 us, one of 64 KiB 8 */
    SPIN_BYTES = 256 << 10,
};

/* A copy has failed, and its connection with it: once nothing on the stack uses the connection. */
static void copy_failed(tcp_conn *conn)
{
    if (conn->gpu.busy)
        conn->gpu.failed = 1;
    else
        tcp_conn_fail(conn, EIO);
}

void tcp_gpu_busy(tcp_conn *conn, uint8_t busy)
{
    conn->gpu.busy = busy;
    if (!busy && conn->gpu.failed)
        tcp_conn_fail(conn, EIO);
}

/* Posts an open copy. The connection fails with it. */
static void copy_launch(tcp_copy *c)
{
    tcp_conn *conn = c->conn;
    if (c == conn->gpu.in)
        conn->gpu.in = NULL;
    else
        conn->gpu.out = NULL;
    if (!c->nops) { /* nothing was received */
        TAILQ_REMOVE(&conn->gpu.ins, c, next_in);
        tcp_copy_give(c);
        return;
    }
    tcp_copy_post(c);
    if (c->state != TCP_COPY_FLYING) {
        copy_failed(conn);
        return;
    }
    conn->gpu.flying++;
    conn->rail->flying++;
}

/* The effects of copies to GPUs, in the order of the connection's bytes. */
static void effects(tcp_conn *conn)
{
    tcp_copy *c;
    tcp_op *op;
    while ((c = TAILQ_FIRST(&conn->gpu.ins)) && c->state == TCP_COPY_ENDED && !c->err) {
        TAILQ_REMOVE(&conn->gpu.ins, c, next_in);
        if (c->seq)
            conn->placed_seq = c->seq;
        conn->ask |= c->ask;
        while ((op = STAILQ_FIRST(&c->after))) {
            STAILQ_REMOVE_HEAD(&c->after, next);
            conn->gpu.late -= !op->ctx;
            tcp_frame_took(conn, op);
        }
        tcp_copy_give(c);
    }
    if (tcp_conn_has_output(conn))
        tcp_conn_dirty(conn);
}

static void copy_ended(tcp_copy *c)
{
    tcp_conn *conn = c->conn;
    tcp_op *op;
    conn->rail->flying--;
    conn->gpu.flying--;
    if (c->in ? conn->state != TCP_UP : !c->refs)
        tcp_copy_give(c);
    else if (c->err)
        copy_failed(conn); /* its operations, or tcp_gpu_drop, give the copy back */
    else if (c->in)
        effects(conn);
    else
        tcp_conn_dirty(conn);
    while (conn->state != TCP_UP && !conn->gpu.flying && (op = STAILQ_FIRST(&conn->gpu.held))) {
        STAILQ_REMOVE_HEAD(&conn->gpu.held, next);
        tcp_op_done(conn->rail, op, op->err);
        tcp_wake(conn->rail);
    }
    if (conn->gpu.closed && !conn->gpu.flying) {
        conn->rail->kept--;
        free(conn);
    }
}

void tcp_gpu_ended(tcp_rail *rail)
{
    uint32_t flying = rail->flying;
    tcp_gpu *gpu;
    tcp_copy *c;
    if (!flying)
        return;
    SLIST_FOREACH(gpu, &rail->gpus, next)
    while ((c = tcp_gpu_poll(gpu)))
        copy_ended(c);
    while (rail->flying < flying && !TAILQ_EMPTY(&rail->waiting))
        tcp_conn_ready(TAILQ_FIRST(&rail->waiting));
}

void tcp_gpu_post(tcp_conn *conn)
{
    uint64_t bytes = 0;
    tcp_copy *open[] = {conn->gpu.in, conn->gpu.out}; /* a READ behind a WRITE of the same memory sees it: the GPU copies in order */
    for (int i = 0; i < 2; i++)
        if (open[i] && conn->state == TCP_UP) {
            bytes += open[i]->used;
            copy_launch(open[i]);
        }
    if (!bytes || bytes > SPIN_BYTES)
        return;
    uint64_t until = tcp_copy_clock() + SPIN_NS;
    while (conn->gpu.flying && tcp_copy_clock() < until)
        tcp_gpu_ended(conn->rail);
}

void tcp_gpu_sent(tcp_op *op, tcp_answer *a)
{
    tcp_copy **at = op ? &op->copy : &a->copy, *c = *at;
    *at = NULL;
    if (!c || --c->refs || c->state == TCP_COPY_FLYING)
        return;
    if (c == c->conn->gpu.out)
        c->conn->gpu.out = NULL;
    tcp_copy_give(c);
}

/* Puts bytes that wait for a slow peer into other memory, so that their bounce buffer serves others. */
static int spill(tcp_gpu *gpu, uint64_t bytes)
{
    tcp_copy *c = TAILQ_FIRST(&gpu->ended), *heap;
    tcp_op *op;
    tcp_answer *a;
    while (c && (c->size < bytes || c->err))
        c = TAILQ_NEXT(c, next);
    if (!c || !(heap = GR_ALLOC(tcp_spill, malloc(sizeof(*heap) + c->used)))) /* limit:tcp_spill */
        return 0;
    *heap = (tcp_copy){.conn = c->conn, .state = TCP_COPY_SPILLED, .mem = (uint8_t *)(heap + 1), .refs = c->refs};
    memcpy(heap->mem, c->mem, c->used); /* ours */
    STAILQ_FOREACH(op, &c->conn->tx, next)
    {
        for (uint32_t i = 0; i < op->nseg && op->copy == c; i++)
            if (op->seg[i].ldesc && op->seg[i].len)
                op->seg[i].laddr = (uintptr_t)heap->mem + (op->seg[i].laddr - (uintptr_t)c->mem);
        op->copy = op->copy == c ? heap : op->copy;
    }
    STAILQ_FOREACH(a, &c->conn->answers, next)
    {
        a->mem = a->copy == c ? heap->mem + (a->mem - c->mem) : a->mem;
        a->copy = a->copy == c ? heap : a->copy;
    }
    tcp_copy_give(c);
    return 1;
}

/* An open copy from the GPU with room; NULL: there is none. */
static tcp_copy *out(tcp_conn *conn, tcp_gpu *gpu, uint64_t bytes, uint32_t n)
{
    tcp_copy *c = conn->gpu.out;
    if (c && (c->gpu != gpu || !tcp_copy_room(c, bytes, n))) {
        if (conn->gpu.in)
            copy_launch(conn->gpu.in);
        if (conn->state != TCP_FAILED)
            copy_launch(c);
        c = NULL;
    }
    if (c || conn->state == TCP_FAILED)
        return c;
    if (!(c = tcp_copy_take_out(gpu, bytes)) && spill(gpu, bytes))
        c = tcp_copy_take_out(gpu, bytes);
    if (c)
        c->conn = conn;
    return conn->gpu.out = c;
}

int tcp_gpu_write(tcp_conn *conn, tcp_op *op)
{
    uint64_t bytes = 0;
    uint32_t n = 0;
    tcp_gpu *gpu = NULL;
    for (uint32_t i = 0; i < op->nseg; i++)
        if (op->seg[i].ldesc && op->seg[i].len) {
            if (gpu && gpu != op->seg[i].ldesc)
                return -EINVAL;
            gpu = op->seg[i].ldesc;
            bytes += op->seg[i].len;
            n++;
        }
    if (!n)
        return 0;
    tcp_copy *c = out(conn, gpu, bytes, n);
    if (!c)
        return conn->state == TCP_FAILED ? -conn->err : -EAGAIN;
    for (uint32_t i = 0; i < op->nseg; i++)
        if (op->seg[i].ldesc && op->seg[i].len)
            op->seg[i].laddr = (uintptr_t)tcp_copy_add(c, op->seg[i].laddr, (uint32_t)op->seg[i].len, 0);
    op->copy = c;
    c->refs++;
    if (conn->state == TCP_CONNECTING) /* no flush comes: others could not take the buffer of an open copy (spill) */
        copy_launch(c);
    if (conn->state != TCP_FAILED)
        return 0;
    tcp_gpu_sent(op, NULL);
    return -conn->err;
}

int tcp_gpu_answer(tcp_conn *conn, tcp_answer *a)
{
    const tcp_rail *rail = conn->rail;
    uint32_t host = 0, n = 0;
    if (SLIST_EMPTY(&rail->gpus))
        return 0;
    for (uint32_t i = 0; i < a->nseg; i++) {
        int err = 0;
        if (!tcp_region_find(conn, &a->seg[i], TCP_PEERS_READ, &err))
            return -err;
        tcp_gpu *gpu = rail->table.at[TCP_REGION(a->seg[i].addr)].gpu;
        if (!a->seg[i].len)
            continue;
        if ((gpu && host) || (!gpu && a->gpu) || (a->gpu && a->gpu != gpu))
            return -EFAULT; /* no transfer has both */
        a->gpu = gpu;
        host += !gpu;
        n++;
    }
    if (!a->gpu)
        return 0;
    tcp_copy *c = out(conn, a->gpu, a->bytes, n);
    if (!c)
        return -EAGAIN;
    a->mem = c->mem + c->used;
    for (uint32_t i = 0; i < a->nseg; i++)
        if (a->seg[i].len)
            (void)tcp_copy_add(c, (uintptr_t)tcp_region_at(rail, &a->seg[i]), a->seg[i].len, rail->table.at[TCP_REGION(a->seg[i].addr)].peers & TCP_OURS);
    a->copy = c;
    c->refs++;
    return 0;
}

tcp_copy *tcp_gpu_in(tcp_conn *conn, tcp_gpu *gpu)
{
    tcp_copy *c = conn->gpu.in;
    if (c && c->gpu == gpu && tcp_copy_room(c, 1, 1))
        return c;
    if (c)
        copy_launch(c);
    if (TAILQ_EMPTY(&gpu->in))
        tcp_gpu_ended(conn->rail);
    if (conn->gpu.failed || !(c = tcp_copy_take_in(gpu)))
        return NULL;
    c->conn = conn;
    TAILQ_INSERT_TAIL(&conn->gpu.ins, c, next_in);
    return conn->gpu.in = c;
}

void tcp_gpu_drop(tcp_conn *conn)
{
    tcp_copy *c;
    tcp_op *op;
    conn->gpu.in = conn->gpu.out = NULL;
    while ((c = TAILQ_FIRST(&conn->gpu.ins))) {
        TAILQ_REMOVE(&conn->gpu.ins, c, next_in);
        while ((op = STAILQ_FIRST(&c->after))) {
            STAILQ_REMOVE_HEAD(&c->after, next);
            if (op->ctx) {
                STAILQ_INSERT_TAIL(&conn->unacked, op, next);
                continue;
            }
            free((void *)(uintptr_t)op->seg[0].laddr); /* a message without a receive */
            free(op);
        }
        if (c->state != TCP_COPY_FLYING)
            tcp_copy_give(c);
    }
    conn->gpu.late = 0;
}
