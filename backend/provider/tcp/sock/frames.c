/* What frames mean. Each range that a peer names is checked before the first byte of the frame is placed, and again before each
 * receive after a deregistration. */
#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "sock.h"

enum { EARLY = 32 }; /* messages that came before their receives: as many as a sender has credits */

/* All frames of ours up to n have been placed or delivered. A frame that is sent in part is none of them. */
static int acknowledged(tcp_conn *conn, uint64_t n)
{
    tcp_op *op;
    int in_part = conn->out.kind == TCP_WRITE || conn->out.kind == TCP_SEND;
    if (n < conn->acked || n > conn->sent_seq - in_part)
        return EPROTO;
    conn->acked = n;
    while ((op = STAILQ_FIRST(&conn->unacked)) && op->seq <= n) {
        STAILQ_REMOVE_HEAD(&conn->unacked, next);
        conn->ops--;
        tcp_pace_ends(conn, op);
        tcp_op_done(conn->rail, op, 0);
    }
    return 0;
}

/* What a peer may say about an operation of ours. Other numbers of errno have meanings of their own in this process. */
static int is_refusal(uint32_t status) { return status == EACCES || status == EFAULT || status == ESTALE; }

/* The peer has refused one of our frames. The operation of the segment that it names fails with the status, and first; the
 * rest is cancelled, since nothing after it was taken in. */
static int was_refused(tcp_conn *conn)
{
    const tcp_header *h = &conn->in.h;
    tcp_op *op, *guilty = NULL;
    if (h->seq != conn->acked + 1 || h->seq > conn->sent_seq || !is_refusal(h->status))
        return EPROTO;
    struct tcp_ops *lists[] = {&conn->unacked, &conn->tx};
    for (int i = 0; i < 2 && !guilty; i++) {
        STAILQ_FOREACH(op, lists[i], next)
        {
            if (op->seq != h->seq)
                continue;
            guilty = op;
            if (h->id < op->end_seg) /* or of an unsignaled WRITE before it, which it proves */
                break;
        }
        if (guilty)
            STAILQ_REMOVE(lists[i], guilty, tcp_op, next);
    }
    if (!guilty) /* an unsignaled WRITE, which had ended already */
        return (int)h->status;
    tcp_op_done(conn->rail, guilty, (int)h->status);
    return ECANCELED;
}

static int answer_new(tcp_conn *conn, tcp_answer **out)
{
    tcp_rail *rail = conn->rail;
    if (conn->nanswers >= TCP_READS)
        return EPROTO;
    tcp_answer *a = STAILQ_FIRST(&rail->answer_pool);
    if (a)
        STAILQ_REMOVE_HEAD(&rail->answer_pool, next);
    else if (!(a = GR_ALLOC(tcp_answer, malloc(sizeof(*a))))) /* limit:tcp_reads */
        return ENOMEM;
    *a = (tcp_answer){.id = conn->in.h.id};
    *out = a;
    return 0;
}

/* The peer asks whether our memory is what it has mapped. The answer has no bytes. */
static int confirm_asked(tcp_conn *conn)
{
    tcp_answer *a;
    int err = answer_new(conn, &a);
    if (err)
        return err;
    a->status = (uint32_t)tcp_same(conn);
    STAILQ_INSERT_TAIL(&conn->answers, a, next);
    conn->nanswers++;
    tcp_conn_dirty(conn);
    return 0;
}

static int read_asked(tcp_conn *conn)
{
    const tcp_header *h = &conn->in.h;
    tcp_answer *a;
    int err = answer_new(conn, &a);
    if (err)
        return err;
    a->nseg = h->segments;
    a->packs = conn->packs && h->flags & TCP_PACKED;
    for (uint32_t i = 0; i < a->nseg; i++) {
        a->seg[i] = tcp_get_segment(conn->in.segments + i * TCP_SEGMENT);
        a->bytes += a->seg[i].len;
    }
    err = a->bytes > TCP_BODY ? 0 : tcp_gpu_answer(conn, a);
    a->status = err && err != -EAGAIN ? (uint32_t)-err : 0;
    STAILQ_INSERT_TAIL(&conn->answers, a, next);
    conn->nanswers++;
    conn->answer_bytes += a->bytes;
    tcp_conn_dirty(conn);
    return a->bytes > TCP_BODY || (conn->nanswers > 1 && conn->answer_bytes > TCP_READ_BYTES) ? EPROTO : 0;
}

static int answer_begins(tcp_conn *conn)
{
    const tcp_header *h = &conn->in.h;
    tcp_op *op;
    STAILQ_FOREACH(op, &conn->reading, next)
    if (op->id == h->id)
        break;
    int packed = h->flags & TCP_PACKED && !h->status;
    if (!op || h->segments || (!packed && h->len != (h->status ? 0 : op->bytes)) || (h->status && (h->len || !is_refusal(h->status))))
        return EPROTO;
    conn->in.op = op;
    return packed ? tcp_unpack_begin(conn, op->bytes) : 0;
}

static tcp_op *oldest_receive(tcp_conn *conn)
{
    tcp_op *op = STAILQ_FIRST(&conn->rx);
    if (op) {
        STAILQ_REMOVE_HEAD(&conn->rx, next);
        conn->recvs--;
    }
    return op;
}

/* A message goes into the oldest receive. If that has not been posted yet, it goes into memory of its own. */
static int message_begins(tcp_conn *conn)
{
    const tcp_header *h = &conn->in.h;
    if (h->segments || h->len > TCP_MESSAGE)
        return EPROTO;
    tcp_op *op = conn->gpu.late ? NULL : oldest_receive(conn); /* messages that wait for a copy take the receives first */
    if (!op) {
        if (conn->earlies + conn->gpu.late >= EARLY)
            return EPROTO;
        void *buf = GR_ALLOC(tcp_early, malloc(h->len ? h->len : 1)); /* limit:tcp_early */
        op = buf ? tcp_op_new(conn->rail) : NULL;
        if (!op) {
            free(buf);
            return ENOMEM;
        }
        op->ctx = NULL;
        op->kind = 0;
        op->nseg = 1;
        op->seg[0] = (gr_seg){.laddr = (uintptr_t)buf, .len = h->len};
    }
    conn->in.op = op;
    return h->len > op->seg[0].len ? EPROTO : 0;
}

int tcp_frame_header(tcp_conn *conn)
{
    tcp_in *in = &conn->in;
    tcp_header *h = &in->h;
    if (tcp_get_header(in->header, h) || conn->leaving || h->len > TCP_BODY || (h->op >= TCP_ACK && h->op <= TCP_GOODBYE && (h->segments || h->len)))
        return EPROTO;
    int err = acknowledged(conn, h->ack);
    if (err)
        return err;
    in->have = 0;
    in->left = h->len;
    in->seg = in->seg_off = 0;
    in->state = h->segments ? TCP_IN_SEGMENTS : TCP_IN_BODY;
    if ((h->op == TCP_WRITE || h->op == TCP_SEND) && h->seq != conn->got_seq + 1)
        return EPROTO;
    if (h->flags & TCP_PACKED && (h->op == TCP_WRITE || h->op == TCP_ANSWER) && (!conn->packs || !h->len))
        return EPROTO;
    switch (h->op) {
    case TCP_WRITE: err = h->segments > TCP_SEGMENTS || (h->len && !h->segments) ? EPROTO : 0; break;
    case TCP_READ: err = h->segments > TCP_READ_SEGMENTS || h->len ? EPROTO : 0; break;
    case TCP_CONFIRM: err = !conn->rail->bulk || h->segments > TCP_READ_SEGMENTS || h->len ? EPROTO : 0; break;
    case TCP_SEND: return message_begins(conn);
    case TCP_ANSWER: return answer_begins(conn);
    default: return 0;
    }
    if (!err && h->segments && !(in->segments = GR_ALLOC(tcp_segments, malloc((size_t)h->segments * TCP_SEGMENT)))) /* limit:tcp_segments */
        return ENOMEM;
    return err;
}

void tcp_frame_refuse(tcp_conn *conn, uint32_t seg, int err)
{
    conn->refusal.seq = conn->in.h.seq;
    conn->refusal.seg = seg;
    conn->refusal.status = (uint32_t)err;
    conn->rail->count.refused++;
    tcp_conn_dirty(conn);
}

void tcp_frame_check(tcp_conn *conn, uint32_t from)
{
    tcp_in *in = &conn->in;
    in->changes = conn->rail->table.changes;
    for (uint32_t i = from; i < in->h.segments; i++) {
        tcp_segment s = tcp_get_segment(in->segments + i * TCP_SEGMENT);
        int err = 0;
        if (tcp_region_find(conn, &s, TCP_PEERS_WRITE, &err))
            continue;
        tcp_frame_refuse(conn, i, err);
        return;
    }
}

int tcp_frame_segments(tcp_conn *conn)
{
    tcp_in *in = &conn->in;
    uint64_t bytes = 0;
    in->state = TCP_IN_BODY;
    if (in->h.op == TCP_READ || in->h.op == TCP_CONFIRM)
        return 0;
    for (uint32_t i = 0; i < in->h.segments; i++)
        bytes += tcp_get_segment(in->segments + i * TCP_SEGMENT).len;
    int err = in->h.flags & TCP_PACKED ? tcp_unpack_begin(conn, bytes) : bytes != in->h.len ? EPROTO : 0;
    if (!err)
        tcp_frame_check(conn, 0);
    return err;
}

void tcp_frame_took(tcp_conn *conn, tcp_op *op)
{
    if (op->ctx) {
        tcp_op_done(conn->rail, op, op->err);
        return;
    }
    STAILQ_INSERT_TAIL(&conn->early, op, next);
    conn->earlies++;
    if ((op = oldest_receive(conn))) /* posted since the message began */
        tcp_take_early(conn, op);
}

/* Bytes that came before may still be on their way to a GPU. */
static void took(tcp_conn *conn, tcp_op *op)
{
    tcp_copy *last = tcp_gpu_last(conn);
    conn->in.op = NULL;
    if (!last) {
        tcp_frame_took(conn, op);
        return;
    }
    conn->gpu.late += !op->ctx;
    STAILQ_INSERT_TAIL(&last->after, op, next);
}

static void message_ends(tcp_conn *conn)
{
    conn->in.op->len = conn->in.h.len;
    took(conn, conn->in.op);
}

static void answer_ends(tcp_conn *conn)
{
    tcp_op *op = conn->in.op;
    STAILQ_REMOVE(&conn->reading, op, tcp_op, next);
    conn->ops--;
    conn->reads--;
    conn->read_bytes -= op->bytes;
    if (op->kind == TCP_READ && !conn->in.h.status)
        tcp_pace_moved(conn, 1, op->packing, (uint32_t)op->bytes);
    tcp_pace_ends(conn, op);
    if (!op->err) /* its memory may have been absent */
        op->err = (int)conn->in.h.status;
    if (op->kind == TCP_CONFIRM) {
        conn->in.op = NULL;
        tcp_job_answered(conn, op, op->err);
    } else {
        took(conn, op);
    }
    if (!STAILQ_EMPTY(&conn->tx))
        tcp_conn_dirty(conn); /* the next READ may go */
}

/* A WRITE or a message was taken in. It is acknowledged once its bytes, and all before them, are in place. */
static void numbered(tcp_conn *conn)
{
    const tcp_header *h = &conn->in.h;
    tcp_copy *last = tcp_gpu_last(conn);
    conn->got_seq = h->seq;
    if (last) {
        last->seq = h->seq;
        last->ask |= h->flags & TCP_ASK;
        return;
    }
    conn->placed_seq = h->seq;
    if (h->flags & TCP_ASK) {
        conn->ask = 1;
        tcp_conn_dirty(conn);
    }
}

int tcp_frame_end(tcp_conn *conn)
{
    tcp_in *in = &conn->in;
    int err = 0;
    switch (in->h.op) {
    case TCP_SEND: message_ends(conn); break;
    case TCP_ANSWER: answer_ends(conn); break;
    case TCP_READ: err = read_asked(conn); break;
    case TCP_CONFIRM: err = confirm_asked(conn); break;
    case TCP_REFUSED: err = was_refused(conn); break;
    case TCP_GOODBYE: conn->leaving = 1; break;
    default: break;
    }
    free(in->segments);
    in->segments = NULL;
    tcp_unpack_end(conn);
    if (in->h.op == TCP_WRITE || in->h.op == TCP_SEND)
        numbered(conn);
    return err;
}
