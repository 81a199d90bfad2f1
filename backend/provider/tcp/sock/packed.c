/* Packed bodies of frames, out and in. A body is packed from a snapshot, since the application may change its memory at any time. */
#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "packed.h"
#include "plan.h"

enum {
    PACK_PIECES = 64,
    PACK_GAIN = 33, /* a packed body is smaller by one of so many bytes, or it goes as it is */
    PACK_LOOK = 2,  /* blocks after which a body that does not gain is given up */
};

int tcp_rail_pack(tcp_rail *rail, uint8_t mode)
{
    tcp_pack_rail *r = GR_ALLOC(tcp_pack_rail, calloc(1, sizeof(*r)));
    if (!r)
        return ENOMEM;
    r->mode = mode;
    r->least = TCP_PACK_LEAST;
    rail->base.limit.max_msg = TCP_PACK_BODY;
    rail->base.limit.window_ns = 1000000; /* both codecs work beside the wire. 5 Gbit/s, MB/s: WRITE 794 (725 before), READ 686 (839), one run each */
    SLIST_INIT(&r->packed);
    SLIST_INIT(&r->unpacking);
    rail->pack = r;
    return 0;
}

void tcp_rail_tune_packing(tcp_rail *rail, uint32_t least, int gainless)
{
    gr_rail_lock(&rail->base);
    rail->pack->least = least;
    rail->pack->gainless = (uint8_t)gainless;
    gr_rail_unlock(&rail->base);
}

void tcp_pack_free(tcp_pack_rail *r)
{
    tcp_packed *p;
    tcp_unpacking *u;
    if (!r)
        return;
    while ((p = SLIST_FIRST(&r->packed))) {
        SLIST_REMOVE_HEAD(&r->packed, next);
        free(p);
    }
    while ((u = SLIST_FIRST(&r->unpacking))) {
        SLIST_REMOVE_HEAD(&r->unpacking, next);
        free(u);
    }
    free(r);
}

void tcp_conn_pack(tcp_conn *conn, tcp_paces *paces)
{
    gr_rail_lock(&conn->rail->base);
    conn->packs = conn->rail->pack != NULL;
    conn->paces = paces;
    gr_rail_unlock(&conn->rail->base);
}

/* ---- out ---- */

static tcp_packed *packed_take(tcp_pack_rail *r)
{
    tcp_packed *p = SLIST_FIRST(&r->packed);
    if (r->taken >= TCP_PACK_MOST)
        return NULL;
    if (p) {
        SLIST_REMOVE_HEAD(&r->packed, next);
        r->npacked--;
    } else if (!(p = GR_ALLOC(tcp_packed, malloc(sizeof(*p))))) { /* limit:tcp_packed */
        return NULL;
    }
    r->taken++;
    return p;
}

void tcp_packed_give(tcp_rail *rail, tcp_packed *p)
{
    tcp_pack_rail *r = rail->pack;
    if (!p)
        return;
    r->taken--;
    if (r->npacked >= TCP_PACK_KEPT) {
        free(p);
        return;
    }
    SLIST_INSERT_HEAD(&r->packed, p, next);
    r->npacked++;
}

/* Where in the pieces of a body the next block begins. */
typedef struct source {
    const struct iovec *v;
    size_t in; /* of the first one */
} source;

/* The next n bytes, as a snapshot. 0: memory of the application is not there. */
static int load(source *s, uint8_t *to, size_t n, int ours)
{
    struct iovec v[PACK_PIECES];
    while (n) {
        int k = 0;
        size_t bytes = 0;
        for (; k < PACK_PIECES && bytes < n; k++) {
            size_t left = s->v->iov_len - s->in, take = left < n - bytes ? left : n - bytes;
            v[k] = (struct iovec){(uint8_t *)s->v->iov_base + s->in, take};
            bytes += take;
            s->in += take;
            if (s->in == s->v->iov_len)
                s->v++, s->in = 0;
        }
        if (!ours && gr_guard_load(to, v, k) < k)
            return 0;
        for (int i = 0; i < k && ours; i++) {
            memcpy(to, v[i].iov_base, v[i].iov_len); /* ours: bounce buffers */
            to += v[i].iov_len;
        }
        to += ours ? 0 : bytes;
        n -= bytes;
    }
    return 1;
}

/* Packs a body of n bytes. Returns the packed bytes; 0: it does not gain, or its memory is not there, which the send call finds. */
static uint32_t pack(tcp_conn *conn, tcp_packed *to, source *from, uint32_t n, int ours)
{
    tcp_pack_rail *r = conn->rail->pack;
    uint32_t done = 0, text = 0;
    for (int i = 1; text < n; i++) {
        uint32_t len = n - text < PACK_BLOCK ? n - text : PACK_BLOCK;
        if (!load(from, r->text, len, ours))
            return 0;
        done += pack_encode(&r->scratch, &conn->pack_hint, to->mem + done, r->text, len);
        to->mem[done++] = 0;
        text += len;
        if ((i == PACK_LOOK || text == n) && done > text - text / PACK_GAIN && !r->gainless)
            return 0;
    }
    if (done > TCP_BODY)
        return 0;
    to->text = n;
    return done;
}

static int in_bounce_buffers(const tcp_out *f)
{
    if (f->kind == TCP_ANSWER)
        return f->answer->copy != NULL;
    for (tcp_op *op = f->first;; op = STAILQ_NEXT(op, next)) {
        if (!op->copy)
            return 0;
        if (op == f->last)
            return 1;
    }
}

int tcp_pack(tcp_conn *conn, plan *p, tcp_out *f, int from)
{
    tcp_rail *rail = conn->rail;
    int wanted = f->kind == TCP_ANSWER ? f->answer->packs : f->packing;
    if (!wanted || f->body_len < rail->pack->least)
        return 0;
    tcp_packed *to = packed_take(rail->pack);
    if (!to)
        return 0; /* in clear, then */
    source s = {.v = &rail->iov[from]};
    uint32_t n = pack(conn, to, &s, f->body_len, in_bounce_buffers(f));
    if (!n) {
        tcp_packed_give(rail, to);
        return 0;
    }
    rail->count.texts += f->body_len;
    rail->count.packed += n;
    p->bytes = p->bytes - f->body_len + n;
    p->niov = from + 1;
    rail->iov[from] = (struct iovec){to->mem, n};
    p->text = f->body_len;
    p->theirs = 0; /* the frame is alone: what is sent of it is ours */
    f->packed = to;
    f->body_len = n;
    return 1;
}

/* ---- in ---- */

int tcp_unpack_begin(tcp_conn *conn, uint64_t text)
{
    tcp_in *in = &conn->in;
    tcp_pack_rail *r = conn->rail->pack;
    if (!text || text > TCP_BODY)
        return EPROTO;
    tcp_unpacking *u = SLIST_FIRST(&r->unpacking);
    if (u) {
        SLIST_REMOVE_HEAD(&r->unpacking, next);
        r->nunpacking--;
    } else if (!(u = GR_ALLOC(tcp_unpacking, malloc(sizeof(*u))))) { /* limit:tcp_unpacking */
        return ENOMEM;
    }
    u->have = u->need = u->at = u->len = 0;
    in->unpacking = u;
    in->packed = in->h.len;
    in->left = (uint32_t)text;
    return 0;
}

void tcp_unpack_end(tcp_conn *conn)
{
    tcp_pack_rail *r = conn->rail->pack;
    tcp_unpacking *u = conn->in.unpacking;
    conn->in.unpacking = NULL;
    conn->in.packed = 0;
    if (!u)
        return;
    if (r->nunpacking >= TCP_PACK_KEPT) {
        free(u);
        return;
    }
    SLIST_INSERT_HEAD(&r->unpacking, u, next);
    r->nunpacking++;
}

/* n bytes of the block have come. An errno: they are no block. */
static int came(tcp_conn *conn, uint32_t n)
{
    tcp_in *in = &conn->in;
    tcp_unpacking *u = in->unpacking;
    uint32_t text = in->left < PACK_BLOCK ? in->left : PACK_BLOCK;
    u->have += n;
    in->packed -= n;
    if (u->have == PACK_HEAD && !u->need) {
        u->need = pack_length(u->block, text);
        if (!u->need || u->need - PACK_HEAD + TCP_PACK_TAIL > in->packed)
            return EPROTO;
    }
    if (u->have < PACK_HEAD || u->have < u->need)
        return 0;
    if (pack_decode(&conn->rail->pack->scratch, u->text, text, u->block, u->need))
        return EPROTO;
    u->len = text;
    return 0;
}

/* Bytes of the block that are to come. 0: the block waits for its place. -1: the body ends before it does. */
static int wanted(const tcp_conn *conn)
{
    const tcp_in *in = &conn->in;
    const tcp_unpacking *u = in->unpacking;
    if (u->len)
        return 0;
    if (u->have < PACK_HEAD)
        return in->packed < PACK_HEAD - u->have + TCP_PACK_TAIL ? -1 : (int)(PACK_HEAD - u->have);
    return (int)(u->need - u->have);
}

int tcp_unpack_room(tcp_conn *conn, struct iovec *iov)
{
    tcp_unpacking *u = conn->in.unpacking;
    if (u->len || u->have < PACK_HEAD)
        return 0;
    *iov = (struct iovec){u->block + u->have, u->need - u->have};
    return 1;
}

/* The last byte of a block, and the next one's head. A body that has just begun, or whose head was cut: as much as fits. */
size_t tcp_unpack_beside(const tcp_conn *conn, size_t room)
{
    const tcp_unpacking *u = conn->in.unpacking;
    size_t more = conn->in.packed > TCP_PACK_TAIL + u->need - u->have ? PACK_HEAD : TCP_HEADER;
    return u->have < PACK_HEAD ? room : TCP_PACK_TAIL + more;
}

int tcp_unpack_came(tcp_conn *conn, size_t n) { return came(conn, (uint32_t)n); }

/* The block is in place, and its last byte is there. */
static int block_ends(tcp_conn *conn)
{
    tcp_in *in = &conn->in;
    tcp_unpacking *u = in->unpacking;
    u->have = u->need = u->at = u->len = 0;
    in->packed -= TCP_PACK_TAIL;
    return !in->packed == !in->left ? 0 : EPROTO;
}

int tcp_unpack(tcp_conn *conn, uint8_t *at, size_t n, int sealed, size_t *done)
{
    tcp_in *in = &conn->in;
    tcp_unpacking *u = in->unpacking;
    int err = 0;
    for (*done = 0; *done < n && in->packed && !err && !conn->refusal.seq;) {
        int want = wanted(conn);
        size_t take = want <= 0 ? TCP_PACK_TAIL : n - *done < (size_t)want ? n - *done : (size_t)want, placed;
        if (want < 0) {
            err = EPROTO;
            break;
        }
        if (!want && in->unpacked >= TCP_TURN) { /* others first: the next receive goes on */
            err = EAGAIN;
            break;
        }
        if (!want) {
            err = tcp_place(conn, u->text + u->at, u->len - u->at, 0, &placed);
            u->at += (uint32_t)placed;
            in->unpacked += placed;
            if (err || u->at < u->len)
                break;
        }
        uint8_t tail, *to = want ? u->block + u->have : &tail;
        if (sealed)
            err = tcp_record_place(conn, to, at + *done, take);
        else
            memcpy(to, at + *done, take); /* ours */
        if (!err)
            err = want ? came(conn, (uint32_t)take) : block_ends(conn);
        *done += take;
    }
    return err == EPROTO && sealed ? EBADMSG : err;
}
