/* Plans what one sendmsg sends. Frames are built anew for each call from the operations that wait. */
#include <errno.h>

#include "plan.h"

static int plan_room(const plan *p, size_t head)
{
    return !p->full && p->nframes < FRAMES && p->heads + head <= HEADS && p->niov + TCP_SEGMENTS + 1 < TCP_IOV && p->bytes < TCP_TURN;
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
    if (f->packed) {
        add_piece(conn, p, f->packed->mem + skip, f->body_len - skip);
        return 0;
    }
    if (f->kind == TCP_ANSWER && f->answer->copy && !f->answer->status) {
        add_piece(conn, p, f->answer->mem + skip, f->answer->bytes - skip);
        return 0;
    }
    p->theirs |= f->kind == TCP_ANSWER || f->kind == TCP_WRITE;
    if (f->kind == TCP_ANSWER) {
        for (uint32_t i = 0; i < f->answer->nseg && !f->answer->status; i++) {
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
    int body = p->niov + 1, err = add_frame(conn, p, f, 0);
    if (!err && conn->packs && tcp_pack(conn, p, f, body)) {
        h->flags |= TCP_PACKED;
        p->full = 1;
    }
    h->op = f->kind;
    h->seq = f->seq;
    h->len = f->body_len;
    h->ack = conn->placed_seq;
    tcp_put_header(f->head, h);
    p->heads += f->head_len;
    p->frame[p->nframes++] = *f;
    p->acks = 1;
    return err;
}

static uint32_t put_segments(uint8_t *at, const tcp_op *op)
{
    uint32_t n = 0;
    int ranges = op->kind == TCP_CONFIRM; /* of any length */
    for (uint32_t i = 0; i < op->nseg; i++) {
        if (!op->seg[i].len)
            continue;
        tcp_segment s = {op->seg[i].rkey, op->seg[i].raddr, (uint32_t)op->seg[i].len};
        tcp_put_segment(at + n * TCP_SEGMENT, &s);
        if (ranges)
            tcp_put32(at + n * TCP_SEGMENT + 20, (uint32_t)(op->seg[i].len >> 32));
        n++;
    }
    return n;
}

/* Operations in a row become one WRITE while they fit. */
static int add_write(tcp_conn *conn, plan *p)
{
    tcp_out f = {.kind = TCP_WRITE, .packing = (uint8_t)p->packs, .head = conn->rail->heads + p->heads, .first = p->op, .seq = ++p->seq};
    tcp_header h = {0};
    uint32_t most = p->packs ? TCP_PACK_BODY : TCP_BODY;
    for (tcp_op *op = p->op; op && op->kind == TCP_WRITE && tcp_copied(op->copy); op = STAILQ_NEXT(op, next)) {
        if (f.last && (h.segments + op->nseg > TCP_SEGMENTS || f.body_len + op->bytes > most))
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
    tcp_out f = {.kind = TCP_SEND,
                 .head = conn->rail->heads + p->heads,
                 .first = op,
                 .last = op,
                 .seq = ++p->seq,
                 .head_len = TCP_HEADER,
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
    tcp_out f = {.kind = op->kind, .head = conn->rail->heads + p->heads, .first = op, .last = op};
    tcp_header h = {.id = op->id, .flags = op->kind == TCP_CONFIRM && op->signaled ? TCP_FOR_WRITE : 0};
    op->packing = op->kind == TCP_READ && tcp_pace_packs(conn, 1);
    if (op->packing && op->bytes >= conn->rail->pack->least)
        h.flags |= TCP_PACKED;
    h.segments = (uint16_t)put_segments(f.head + TCP_HEADER, op);
    f.head_len = TCP_HEADER + h.segments * TCP_SEGMENT;
    p->reads++;
    p->read_bytes += op->bytes;
    p->op = STAILQ_NEXT(op, next);
    return begin_frame(conn, p, &f, &h);
}

/* Memory that the answer needs may have been deregistered: then it is a status instead. */
static int add_answer(tcp_conn *conn, plan *p)
{
    tcp_answer *a = p->answer;
    tcp_out f = {.kind = TCP_ANSWER, .head = conn->rail->heads + p->heads, .head_len = TCP_HEADER, .answer = a};
    tcp_header h = {.id = a->id};
    int niov = p->niov;
    size_t bytes = p->bytes;
    p->answer = STAILQ_NEXT(a, next);
    if (!a->status && !tcp_answer_readable(conn, a, 0))
        a->status = EFAULT;
    if (!a->status) {
        f.body_len = (uint32_t)a->bytes;
        int err = begin_frame(conn, p, &f, &h);
        if (!err)
            return 0;
        a->status = (uint32_t)err;
        p->niov = niov;
        p->bytes = bytes;
        p->heads -= f.head_len;
        p->nframes--;
    }
    f.body_len = 0;
    h.status = a->status;
    return begin_frame(conn, p, &f, &h);
}

/* The bytes are not in its bounce buffer yet, or it has none yet. */
static int answer_waits(tcp_conn *conn, tcp_answer *a)
{
    if (a->gpu && !a->copy && !a->status) {
        int rc = tcp_gpu_answer(conn, a);
        if (rc == -EAGAIN)
            tcp_conn_wait(conn); /* then a poll tries again */
        else if (rc == 0)
            tcp_conn_dirty(conn); /* posts it */
        else
            a->status = (uint32_t)-rc;
    }
    return !a->status && a->gpu && (!a->copy || !tcp_copied(a->copy));
}

/* The next frame may be packed: it begins a plan. */
static int wants_plan(const tcp_conn *conn, const plan *p)
{
    if (!conn->packs || !p->nframes)
        return 0;
    if (p->answer && p->answer->packs && p->answer->bytes >= conn->rail->pack->least)
        return 1;
    uint64_t bytes = 0;
    for (const tcp_op *op = p->packs ? p->op : NULL; op && op->kind == TCP_WRITE && bytes < conn->rail->pack->least; op = STAILQ_NEXT(op, next))
        bytes += op->bytes;
    return bytes >= conn->rail->pack->least;
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
int tcp_plan(tcp_conn *conn, plan *p)
{
    int err = 0;
    p->nframes = p->niov = p->acks = p->theirs = p->full = 0;
    p->bytes = p->heads = p->text = 0;
    p->packs = tcp_pace_packs(conn, 0);
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
    if (!err && conn->refusal.seq && !conn->refusal.sent && TAILQ_EMPTY(&conn->gpu.ins) && plan_room(p, TCP_HEADER)) {
        err = add_bare(conn, p, TCP_REFUSED);
        p->op = NULL;
    }
    for (int more = 1; more && !err && plan_room(p, MOST_HEAD) && !wants_plan(conn, p);) {
        more = 0;
        if (p->answer && answer_waits(conn, p->answer))
            p->answer = NULL;
        if (p->answer)
            err = add_answer(conn, p), more = 1;
        if (p->op && !tcp_copied(p->op->copy))
            p->op = NULL;
        if (err || !p->op || !plan_room(p, MOST_HEAD) || conn->refusal.seq || wants_plan(conn, p))
            continue;
        if ((p->op->kind == TCP_READ || p->op->kind == TCP_CONFIRM) && read_waits(p))
            continue;
        err = p->op->kind == TCP_WRITE ? add_write(conn, p) : p->op->kind == TCP_SEND ? add_message(conn, p) : add_read(conn, p);
        more = 1;
    }
    if (!err && conn->ask && !p->acks && plan_room(p, TCP_HEADER))
        err = add_bare(conn, p, TCP_ACK);
    return err;
}
