/* Frames out. One sendmsg has all that is due, up to TCP_TURN bytes: pieces of 256 KiB cost half of the rate, and each call
 * 1 us. Frames are built anew for each call from the operations. A frame that the socket takes in part keeps its header. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "gr_failpoint.h"
#include "sock.h"

enum {
    FRAMES = 64,             /* of one sendmsg */
    HEADS = 64 << 10,        /* bytes of headers and segments of one sendmsg */
};

/* What one sendmsg is made of. */
typedef struct plan {
    tcp_out frame[FRAMES];
    int nframes, niov;
    size_t bytes, heads;
    uint64_t seq;      /* last frame number that was given */
    tcp_op *op;        /* next operation */
    tcp_answer *answer; /* next answer */
    uint32_t reads;
    uint64_t read_bytes;
    int acks; /* a header says what we have taken in */
} plan;

static int room(const plan *p, size_t head)
{
    return p->nframes < FRAMES && p->heads + head <= HEADS && p->niov + TCP_SEGMENTS + 1 < TCP_IOV && p->bytes < TCP_TURN;
}

static void add_piece(tcp_conn *conn, plan *p, const void *at, size_t len)
{
    if (!len)
        return;
    conn->rail->iov[p->niov++] = (struct iovec){(void *)(uintptr_t)at, len};
    p->bytes += len;
}

/* Adds the bytes of the frame from `skip` on. An errno: memory that an answer needs was deregistered. */
static int add_frame(tcp_conn *conn, plan *p, const tcp_out *f, size_t skip)
{
    if (skip < f->head_len)
        add_piece(conn, p, f->head + skip, f->head_len - skip);
    skip = skip > f->head_len ? skip - f->head_len : 0;
    if (f->kind == TCP_ANSWER && f->body_len) {
        for (uint32_t i = 0; i < f->answer->nseg; i++) {
            const tcp_segment *s = &f->answer->seg[i];
            int err = 0;
            const uint8_t *at = tcp_region_find(conn, s, TCP_PEERS_READ, &err);
            if (!at)
                return err;
            size_t off = skip < s->len ? skip : s->len;
            add_piece(conn, p, at + off, s->len - off);
            skip -= off;
        }
        return 0;
    }
    if (!f->body_len)
        return 0;
    for (tcp_op *op = f->first;; op = STAILQ_NEXT(op, next)) {
        for (uint32_t i = 0; i < op->nseg; i++) {
            size_t off = skip < op->seg[i].len ? skip : op->seg[i].len;
            add_piece(conn, p, (const uint8_t *)(uintptr_t)op->seg[i].laddr + off, op->seg[i].len - off);
            skip -= off;
        }
        if (op == f->last)
            return 0;
    }
}

/* Adds a frame. Its header is put before its segments. */
static int begin_frame(tcp_conn *conn, plan *p, tcp_out *f, tcp_header *h)
{
    h->op = f->kind;
    h->seq = f->seq;
    h->len = f->body_len;
    h->ack = conn->got_seq;
    tcp_put_header(f->head, h);
    p->heads += f->head_len;
    p->frame[p->nframes++] = *f;
    p->acks = 1;
    return add_frame(conn, p, f, 0);
}

static uint32_t put_segments(uint8_t *at, const tcp_op *op)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->nseg; i++) {
        if (!op->seg[i].len)
            continue;
        tcp_segment s = {op->seg[i].rkey, op->seg[i].raddr, (uint32_t)op->seg[i].len};
        tcp_put_segment(at + n++ * TCP_SEGMENT, &s);
    }
    return n;
}

/* Operations in a row become one WRITE while they fit. */
static int add_write(tcp_conn *conn, plan *p)
{
    tcp_out f = {.kind = TCP_WRITE, .head = conn->rail->heads + p->heads, .first = p->op, .seq = ++p->seq};
    tcp_header h = {0};
    for (tcp_op *op = p->op; op && op->kind == TCP_WRITE; op = STAILQ_NEXT(op, next)) {
        if (f.last && (h.segments + op->nseg > TCP_SEGMENTS || f.body_len + op->bytes > TCP_BODY))
            break;
        h.segments = (uint16_t)(h.segments + put_segments(f.head + TCP_HEADER + h.segments * TCP_SEGMENT, op));
        f.body_len += (uint32_t)op->bytes;
        op->seq = f.seq;
        op->end_seg = h.segments;
        f.last = op;
        if (op->signaled)
            h.flags |= TCP_ASK;
    }
    f.head_len = TCP_HEADER + h.segments * TCP_SEGMENT;
    p->op = STAILQ_NEXT(f.last, next);
    return begin_frame(conn, p, &f, &h);
}

static int add_message(tcp_conn *conn, plan *p)
{
    tcp_op *op = p->op;
    tcp_out f = {.kind = TCP_SEND, .head = conn->rail->heads + p->heads, .first = op, .last = op, .seq = ++p->seq, .head_len = TCP_HEADER,
                 .body_len = (uint32_t)op->bytes};
    tcp_header h = {.flags = TCP_ASK};
    op->seq = f.seq;
    p->op = STAILQ_NEXT(op, next);
    return begin_frame(conn, p, &f, &h);
}

/* A READ waits while the peer has as many as it takes. What was posted behind it waits, too. */
static int read_waits(const plan *p) { return p->reads >= TCP_READS || (p->reads && p->read_bytes + p->op->bytes > TCP_READ_BYTES); }

static int add_read(tcp_conn *conn, plan *p)
{
    tcp_op *op = p->op;
    tcp_out f = {.kind = TCP_READ, .head = conn->rail->heads + p->heads, .first = op, .last = op};
    tcp_header h = {.id = op->id};
    h.segments = (uint16_t)put_segments(f.head + TCP_HEADER, op);
    f.head_len = TCP_HEADER + h.segments * TCP_SEGMENT;
    p->reads++;
    p->read_bytes += op->bytes;
    p->op = STAILQ_NEXT(op, next);
    return begin_frame(conn, p, &f, &h);
}

static int add_answer(tcp_conn *conn, plan *p)
{
    tcp_answer *a = p->answer;
    int err = 0;
    for (uint32_t i = 0; i < a->nseg && !a->status; i++)
        if (!tcp_region_find(conn, &a->seg[i], TCP_PEERS_READ, &err))
            a->status = (uint32_t)err;
    tcp_out f = {.kind = TCP_ANSWER, .head = conn->rail->heads + p->heads, .head_len = TCP_HEADER, .answer = a,
                 .body_len = a->status ? 0 : (uint32_t)a->bytes};
    tcp_header h = {.id = a->id, .status = a->status};
    p->answer = STAILQ_NEXT(a, next);
    return begin_frame(conn, p, &f, &h);
}

static int add_bare(tcp_conn *conn, plan *p, uint8_t kind)
{
    tcp_out f = {.kind = kind, .head = conn->rail->heads + p->heads, .head_len = TCP_HEADER};
    tcp_header h = {.id = conn->refusal.seg, .status = conn->refusal.status};
    if (kind == TCP_REFUSED)
        f.seq = conn->refusal.seq;
    return begin_frame(conn, p, &f, &h);
}

/* Plans what one sendmsg sends: the rest of a frame, then answers and operations in turn. */
static int plan_frames(tcp_conn *conn, plan *p)
{
    int err = 0;
    p->nframes = p->niov = p->acks = 0;
    p->bytes = p->heads = 0;
    p->seq = conn->sent_seq;
    p->op = STAILQ_FIRST(&conn->tx);
    p->answer = STAILQ_FIRST(&conn->answers);
    p->reads = conn->reads;
    p->read_bytes = conn->read_bytes;
    if (conn->out.kind) {
        p->frame[p->nframes++] = conn->out;
        if (conn->out.last)
            p->op = STAILQ_NEXT(conn->out.last, next);
        if (conn->out.answer)
            p->answer = STAILQ_NEXT(conn->out.answer, next);
        err = add_frame(conn, p, &conn->out, conn->out.sent);
    }
    if (!err && conn->refusal.seq && !conn->refusal.sent && room(p, TCP_HEADER)) {
        err = add_bare(conn, p, TCP_REFUSED);
        p->op = NULL;
    }
    const size_t most = TCP_HEADER + TCP_SEGMENTS * TCP_SEGMENT;
    for (int more = 1; more && !err && room(p, most);) {
        more = 0;
        if (p->answer)
            err = add_answer(conn, p), more = 1;
        if (err || !p->op || !room(p, most) || conn->refusal.seq)
            continue;
        if (p->op->kind == TCP_READ && read_waits(p))
            continue;
        err = p->op->kind == TCP_WRITE ? add_write(conn, p) : p->op->kind == TCP_SEND ? add_message(conn, p) : add_read(conn, p);
        more = 1;
    }
    if (!err && conn->ask && !p->acks && room(p, TCP_HEADER))
        err = add_bare(conn, p, TCP_ACK);
    return err;
}

/* Moves the first operation of tx to where it waits for the peer, or ends it. */
static void op_sent(tcp_conn *conn)
{
    tcp_op *op = STAILQ_FIRST(&conn->tx);
    STAILQ_REMOVE_HEAD(&conn->tx, next);
    if (op->kind == TCP_WRITE && !op->signaled) {
        conn->ops--;
        tcp_op_done(conn->rail, op, 0); /* the socket has its bytes */
    } else if (op->kind == TCP_READ) {
        STAILQ_INSERT_TAIL(&conn->reading, op, next);
    } else {
        STAILQ_INSERT_TAIL(&conn->unacked, op, next);
    }
}

static void frame_sent(tcp_conn *conn, const tcp_out *f)
{
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
    if (f->kind == TCP_READ) {
        conn->reads++;
        conn->read_bytes += f->first->bytes;
    }
    if (f->kind == TCP_ANSWER)
        conn->rail->count.refused += f->answer->status != 0;
    if (f->kind == TCP_REFUSED)
        conn->refusal.sent = 1;
    conn->ask = 0;
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
        if (!goes_on) {
            uint8_t *head = GR_ALLOC(tcp_head, malloc(f.head_len));
            if (!head)
                return ENOMEM;
            memcpy(head, f.head, f.head_len);
            f.head = head;
        }
        conn->out = f;
        return 0;
    }
    return 0;
}

void tcp_send(tcp_conn *conn)
{
    tcp_rail *rail = conn->rail;
    plan p;
    size_t total = 0;
    while (conn->state == TCP_UP && !conn->blocked) {
        int err = plan_frames(conn, &p);
        if (!err && !p.bytes)
            return;
        if (err) {
            tcp_conn_fail(conn, err);
            return;
        }
        if (total >= TCP_TURN) { /* others first; the next poll goes on */
            tcp_conn_ready(conn);
            return;
        }
        struct msghdr m = {.msg_iov = rail->iov, .msg_iovlen = (size_t)p.niov};
        ssize_t n = sendmsg(conn->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        rail->count.sends++;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            if (errno == EPIPE || errno == ECONNRESET) { /* what the peer has sent before its end still counts */
                conn->blocked = 1;
                tcp_conn_ready(conn);
                return;
            }
            tcp_conn_fail(conn, errno);
            return;
        }
        n = n < 0 ? 0 : n;
        conn->blocked = (size_t)n < p.bytes;
        total += (size_t)n;
        if ((err = book(conn, &p, (size_t)n)))
            tcp_conn_fail(conn, err);
    }
}
