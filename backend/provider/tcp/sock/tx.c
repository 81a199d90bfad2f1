/* Frames out. One sendmsg has all that is due, up to TCP_TURN bytes: pieces of 256 KiB cost half of the rate, and each call
 * 1 us. A frame that the socket takes in part keeps its header. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "gr_failpoint.h"
#include "plan.h"

/* Moves the first operation of tx to where it waits for the peer, or ends it. */
static void op_sent(tcp_conn *conn)
{
    tcp_op *op = STAILQ_FIRST(&conn->tx);
    STAILQ_REMOVE_HEAD(&conn->tx, next);
    tcp_gpu_sent(op, NULL);
    if (op->kind == TCP_WRITE && !op->signaled) {
        conn->ops--;
        tcp_pace_ends(conn, op);
        tcp_op_done(conn->rail, op, 0); /* the socket has its bytes */
    } else if (op->kind == TCP_READ || op->kind == TCP_CONFIRM) {
        STAILQ_INSERT_TAIL(&conn->reading, op, next);
    } else {
        STAILQ_INSERT_TAIL(&conn->unacked, op, next);
    }
}

static void frame_sent(tcp_conn *conn, const tcp_out *f)
{
    if (f->kind == TCP_WRITE)
        tcp_pace_moved(conn, 0, f->packing, f->packed ? f->packed->text : f->body_len);
    tcp_packed_give(conn->rail, f->packed);
    if (f->kind == TCP_ANSWER) {
        tcp_answer_done(conn);
        return;
    }
    for (tcp_op *last = f->last, *op = last ? STAILQ_FIRST(&conn->tx) : NULL; op; op = op == last ? NULL : STAILQ_FIRST(&conn->tx))
        op_sent(conn);
}

/* Numbers and windows of a frame that has begun: they count from its first byte on. */
static void frame_began(tcp_conn *conn, const tcp_out *f)
{
    if (f->kind == TCP_WRITE || f->kind == TCP_SEND)
        conn->sent_seq = f->seq;
    if (f->kind == TCP_READ || f->kind == TCP_CONFIRM) {
        conn->reads++;
        conn->read_bytes += f->first->bytes;
    }
    if (f->kind == TCP_ANSWER)
        conn->rail->count.refused += f->answer->status != 0;
    if (f->kind == TCP_REFUSED)
        conn->refusal.sent = 1;
    conn->ask = 0;
}

/* Gives a frame a header of its own. 0: no memory. */
static int keep_head(tcp_out *f)
{
    uint8_t *head = GR_ALLOC(tcp_head, malloc(f->head_len));
    if (!head)
        return 0;
    memcpy(head, f->head, f->head_len); /* ours */
    f->head = head;
    return 1;
}

/* A packed frame begins before its first byte is sent: it is not packed again. 0: no memory. */
static int begin_packed(tcp_conn *conn, plan *p)
{
    tcp_out *f = &p->frame[0];
    if (!p->nframes || conn->out.kind || !f->packed)
        return 1;
    if (!keep_head(f)) {
        tcp_packed_give(conn->rail, f->packed);
        return 0;
    }
    frame_began(conn, f);
    conn->out = *f;
    return 1;
}

/* Books n sent bytes. An errno: no memory to keep a header. */
static int book(tcp_conn *conn, const plan *p, size_t n)
{
    for (int i = 0; i < p->nframes; i++) {
        tcp_out f = p->frame[i];
        int goes_on = i == 0 && conn->out.kind;
        size_t rest = f.head_len + f.body_len - f.sent;
        if (!goes_on && n == 0)
            return 0;
        if (!goes_on)
            frame_began(conn, &f);
        if (n >= rest) {
            n -= rest;
            if (goes_on) {
                free(conn->out.head);
                conn->out = (tcp_out){0};
            }
            frame_sent(conn, &f);
            continue;
        }
        f.sent += (uint32_t)n;
        if (!goes_on && !keep_head(&f))
            return ENOMEM;
        conn->out = f;
        return 0;
    }
    return 0;
}

/* A send call has failed. */
static void not_sent(tcp_conn *conn, int err)
{
    if (err == EAGAIN) { /* only EAGAIN promises an edge: after a part the next call tells a full socket from memory that is gone */
        conn->blocked = 1;
    } else if (err == EPIPE || err == ECONNRESET) { /* what the peer has sent before its end still counts */
        conn->blocked = 1;
        tcp_conn_ready(conn);
    } else {
        tcp_conn_fail(conn, err);
    }
}

static int readable(const gr_seg *seg, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!gr_guard_readable((void *)(uintptr_t)seg[i].laddr, seg[i].len))
            return 0;
    return 1;
}

int tcp_answer_readable(const tcp_conn *conn, const tcp_answer *a, int all)
{
    int err = 0, ok = 1;
    for (uint32_t i = 0; i < a->nseg && !a->gpu; i++) {
        const void *at = tcp_region_find(conn, &a->seg[i], TCP_PEERS_READ, &err);
        tcp_region *r = at ? &conn->rail->table.at[TCP_REGION(a->seg[i].addr)] : NULL;
        if (!at || (!all && !r->absent) || gr_guard_readable(at, a->seg[i].len))
            continue;
        r->absent = 1;
        ok = 0;
    }
    return ok;
}

/* Memory that is to be sent is not there, and a part of its frame may have been sent. Its operation fails with that, and first. The peer's
 * READ comes again over another connection, and is then refused. */
static void absent(tcp_conn *conn, const plan *p)
{
    tcp_op *guilty = NULL;
    for (int i = 0; i < p->nframes && !guilty; i++) {
        const tcp_out *f = &p->frame[i];
        if (f->answer)
            (void)tcp_answer_readable(conn, f->answer, 1);
        for (tcp_op *op = f->kind == TCP_WRITE ? f->first : NULL; op; op = op == f->last ? NULL : STAILQ_NEXT(op, next))
            if (!readable(op->seg, op->nseg)) {
                guilty = op;
                break;
            }
    }
    if (guilty) {
        STAILQ_REMOVE(&conn->tx, guilty, tcp_op, next);
        tcp_op_done(conn->rail, guilty, EFAULT);
    }
    tcp_conn_fail(conn, ECANCELED);
}

/* Sends what is planned. Returns how many bytes of it have left the operations' memory, or -1 and errno. */
static ssize_t give(tcp_conn *conn, const plan *p)
{
    if (conn->records)
        return tcp_seal(conn, p);
    struct msghdr m = {.msg_iov = conn->rail->iov, .msg_iovlen = (size_t)p->niov};
    conn->rail->count.sends++;
    return sendmsg(conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void tcp_send(tcp_conn *conn)
{
    plan p;
    size_t total = 0;
    while (conn->state == TCP_UP && !conn->blocked) {
        int err = tcp_sealed_left(conn) ? tcp_send_sealed(conn) : 0;
        if (err) {
            not_sent(conn, err);
            return;
        }
        if (total >= TCP_TURN && conn->packs && tcp_conn_has_output(conn)) { /* nothing is packed in vain */
            tcp_conn_ready(conn);
            return;
        }
        err = tcp_plan(conn, &p);
        if (!err && !p.bytes)
            return;
        if (!err && !begin_packed(conn, &p))
            err = ENOMEM;
        if (err) {
            tcp_conn_fail(conn, err);
            return;
        }
        if (total >= TCP_TURN) { /* others first; the next poll goes on */
            tcp_conn_ready(conn);
            return;
        }
        ssize_t n = give(conn, &p);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EFAULT) {
            absent(conn, &p);
            return;
        }
        if (n < 0) {
            not_sent(conn, errno);
            return;
        }
        total += (size_t)n > p.text ? (size_t)n : p.text;
        if ((err = book(conn, &p, (size_t)n)))
            tcp_conn_fail(conn, err);
    }
}
