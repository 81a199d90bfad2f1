/* Bytes in. One receive takes header, small bodies and what follows into the staging buffer of the rail; the rest of a body goes
 * straight into place, and the staging buffer takes the next header along. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "sock.h"

enum { SOON_BYTES = 68 << 10 }; /* frames of up to 64 KiB */

/* Completes a part of the frame, `have` of `want` bytes, from at. Returns what it took. */
static size_t collect(uint8_t *to, uint32_t *have, uint32_t want, const uint8_t *at, size_t n)
{
    size_t take = want - *have < n ? want - *have : n;
    memcpy(to + *have, at, take); /* ours */
    *have += (uint32_t)take;
    return take;
}

/* Length of a segment of the body, its address, and its GPU or NULL. A WRITE's segment was found. */
static uint64_t segment(const tcp_conn *conn, uint32_t i, uint64_t *at, tcp_gpu **gpu, int *ours)
{
    const tcp_in *in = &conn->in;
    if (in->h.op != TCP_WRITE) {
        const gr_seg *s = &in->op->seg[i];
        *at = s->laddr;
        *gpu = in->h.op == TCP_ANSWER ? s->ldesc : NULL;
        *ours = 0;
        return s->len;
    }
    tcp_segment s = tcp_get_segment(in->segments + i * TCP_SEGMENT);
    *at = (uintptr_t)tcp_region_at(conn->rail, &s);
    const tcp_region *r = &conn->rail->table.at[TCP_REGION(s.addr)];
    *gpu = r->gpu;
    *ours = r->peers & TCP_OURS;
    return s.len;
}

/* Room in a bounce buffer for the next bytes of the body, which go to the GPU. */
static int bounce_piece(tcp_conn *conn, tcp_gpu *gpu, struct iovec *iov, size_t most)
{
    tcp_in *in = &conn->in;
    uint64_t total = 0, at;
    tcp_gpu *same;
    int ours;
    if (!(in->copy = tcp_gpu_in(conn, gpu)))
        return 0;
    uint32_t room = in->copy->size - in->copy->used, nops = in->copy->nops, off = in->seg_off;
    most = most < in->left ? most : in->left;
    most = most < room ? most : room;
    for (uint32_t i = in->seg; total < most && nops < TCP_COPY_OPS; i++, off = 0) {
        uint64_t len = segment(conn, i, &at, &same, &ours) - off;
        if (len && same != gpu)
            break;
        nops += len > 0;
        total += len;
    }
    *iov = (struct iovec){in->copy->mem + in->copy->used, total < most ? total : most};
    return 1;
}

/* Whether the body is the answer to a READ that has failed: its bytes are dropped, and the connection goes on. */
static int dropped(const tcp_in *in) { return in->h.op == TCP_ANSWER && in->op->err; }

/* Pieces for bytes that are dropped. The staging buffer takes them one over the other. */
static int drop_pieces(tcp_conn *conn, struct iovec *iov, int max, size_t most)
{
    int n = 0;
    for (size_t left = conn->in.left < most ? conn->in.left : most; left && n < max; left -= iov[n++].iov_len)
        iov[n] = (struct iovec){conn->rail->staging, left < TCP_STAGING ? left : TCP_STAGING};
    return n;
}

int tcp_frame_pieces(tcp_conn *conn, struct iovec *iov, int max, size_t most)
{
    tcp_in *in = &conn->in;
    int n = 0;
    in->copy = NULL;
    if (in->h.op == TCP_WRITE && in->changes != conn->rail->table.changes)
        tcp_frame_check(conn, in->seg);
    if (conn->refusal.seq)
        return 0;
    if (dropped(in))
        return drop_pieces(conn, iov, max, most);
    uint32_t seg = in->seg, off = in->seg_off;
    for (uint32_t left = in->left; left && n < max && most; seg++, off = 0) {
        uint64_t at;
        tcp_gpu *gpu;
        int ours;
        uint64_t len = segment(conn, seg, &at, &gpu, &ours) - off;
        len = len < left ? len : left;
        len = len < most ? len : most;
        if (!len)
            continue;
        if (gpu)
            return n ? n : bounce_piece(conn, gpu, iov, most);
        iov[n++] = (struct iovec){(uint8_t *)(uintptr_t)at + off, len};
        left -= (uint32_t)len;
        most -= len;
    }
    return n;
}

void tcp_frame_advance(tcp_conn *conn, size_t n)
{
    tcp_in *in = &conn->in;
    in->left -= (uint32_t)n;
    while (n) {
        uint64_t at;
        tcp_gpu *gpu;
        int ours;
        uint64_t len = segment(conn, in->seg, &at, &gpu, &ours) - in->seg_off, take = n < len ? n : len;
        if (take && in->copy)
            tcp_copy_add(in->copy, at + in->seg_off, (uint32_t)take, ours);
        if (n < len) {
            in->seg_off += (uint32_t)n;
            return;
        }
        n -= take;
        in->seg++;
        in->seg_off = 0;
    }
}

/* The application's memory for the next byte of the body is not there. 1: the frame was refused, 0: its bytes are dropped. */
static int absent(tcp_conn *conn)
{
    tcp_in *in = &conn->in;
    uint64_t at;
    tcp_gpu *gpu;
    int ours;
    uint32_t i = in->seg;
    if (in->h.op == TCP_ANSWER) {
        in->op->err = EFAULT;
        return 0;
    }
    while (segment(conn, i, &at, &gpu, &ours) == 0)
        i++;
    tcp_frame_refuse(conn, i, EFAULT);
    return 1;
}

enum { PLACE_PIECES = 64, PLACE_BYTES = 32 << 10 /* are decrypted, then copied while they are in the cache: 64 KiB 82 us, with 16 KiB 82, with 64 KiB 86 */ };

static size_t sum(const struct iovec *v, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += v[i].iov_len;
    return bytes;
}

int tcp_place(tcp_conn *conn, uint8_t *at, size_t n, int sealed, size_t *done)
{
    int err = 0;
    for (*done = 0; *done < n && conn->in.left && !err;) {
        tcp_in *in = &conn->in;
        struct iovec to[PLACE_PIECES];
        size_t most = n - *done;
        int k = tcp_frame_pieces(conn, to, PLACE_PIECES, sealed && most > PLACE_BYTES ? PLACE_BYTES : most);
        if (k == 0) {
            err = conn->refusal.seq ? 0 : conn->gpu.failed ? EIO : EAGAIN;
            break;
        }
        int ours = in->copy || in->h.op == TCP_SEND, drop = dropped(in); /* a bounce buffer; the core's receive */
        size_t len = sum(to, k);
        if (sealed)
            err = tcp_record_place(conn, ours ? to[0].iov_base : at + *done, at + *done, len);
        else if (ours)
            memcpy(to[0].iov_base, at + *done, len); /* ours */
        int whole = err || ours || drop ? k : gr_guard_store(to, k, at + *done);
        if (whole < k) {
            size_t placed = sum(to, whole);
            tcp_frame_advance(conn, placed);
            *done += placed;
            len -= placed;
            if (absent(conn))
                break;
        }
        tcp_frame_advance(conn, len);
        *done += len;
    }
    return err;
}

int tcp_take_body(tcp_conn *conn, uint8_t *at, size_t n, int sealed, size_t *done)
{
    return conn->in.packed ? tcp_unpack(conn, at, n, sealed, done) : tcp_place(conn, at, n, sealed, done);
}

int tcp_take_end(tcp_conn *conn)
{
    int err = tcp_frame_end(conn);
    if (conn->in.h.len >= GR_BULK)
        atomic_fetch_add_explicit(&conn->rail->base.bulks, 1, memory_order_relaxed);
    if (conn->in.h.len >= 2 * TCP_STAGING)
        conn->bulk = 1;
    else if (conn->in.h.len > TCP_GLANCE)
        conn->bulk = 0;
    uint8_t data = conn->in.h.len && (conn->in.h.op == TCP_WRITE || conn->in.h.op == TCP_ANSWER);
    conn->then[conn->data] = data;
    conn->data = data;
    if (data)
        conn->head = TCP_HEADER + conn->in.h.segments * TCP_SEGMENT;
    conn->in.state = TCP_IN_HEADER;
    conn->in.have = conn->in.careful = 0;
    return err;
}

int tcp_take(tcp_conn *conn, uint8_t *at, size_t n)
{
    tcp_in *in = &conn->in;
    int err = 0;
    while (n && !err && conn->state == TCP_UP && !conn->refusal.seq) {
        size_t took = 0;
        switch (in->state) {
        case TCP_IN_HEADER:
            took = collect(in->header, &in->have, TCP_HEADER, at, n);
            if (in->have < TCP_HEADER)
                return 0;
            err = tcp_frame_header(conn);
            break;
        case TCP_IN_SEGMENTS:
            took = collect(in->segments, &in->have, in->h.segments * TCP_SEGMENT, at, n);
            if (in->have < (uint32_t)in->h.segments * TCP_SEGMENT)
                return 0;
            err = tcp_frame_segments(conn);
            break;
        default: err = tcp_take_body(conn, at, n, 0, &took);
        }
        if (!err && in->state == TCP_IN_BODY && !in->left && !conn->refusal.seq)
            err = tcp_take_end(conn);
        at += took;
        n -= took;
    }
    return err == EAGAIN ? tcp_keep(&conn->gpu.frames, at, n) : err;
}

/* After a refusal nothing is taken in: bytes are discarded until the peer closes. */
static ssize_t rx_discard(tcp_conn *conn) { return recv(conn->fd, NULL, TCP_TURN, MSG_TRUNC | MSG_DONTWAIT); }

/* Bytes that a receive has left in the socket. It stops without an error at memory that is not there, so that a short one does not mean
 * that the socket is empty. Implements TCP_INQ, SIOCINQ. */
static int left_over(const tcp_conn *conn, struct msghdr *m)
{
    int n = 0;
    if (conn->inq)
        for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
            if (c->cmsg_level == IPPROTO_TCP && c->cmsg_type == TCP_INQ)
                memcpy(&n, CMSG_DATA(c), sizeof(n)); /* ours */
    if (!conn->inq && ioctl(conn->fd, SIOCINQ, &n))
        n = 0;
    return n;
}

/* Most bytes that a receive takes into the staging buffer. If the next frame is expected to have bytes for the application's memory, it
 * takes their header alone: another receive in place costs less than a guarded copy. A WRITE of 4 KiB with a message behind, us: 34.2 with
 * the copy, 31.7 so, 34.3 with a memcpy; 64 KiB 53.9, 50.8, 52.1 (BenchmarkWrite, medians of seven). */
static size_t glance(const tcp_conn *conn, size_t room, int direct)
{
    const tcp_in *in = &conn->in;
    if (conn->records)
        return room;
    if (in->state == TCP_IN_SEGMENTS && in->h.op == TCP_WRITE)
        return in->h.segments * TCP_SEGMENT - in->have;
    uint8_t data = direct ? 1 : conn->data;
    if (conn->then[data])
        return direct ? conn->head : conn->head > in->have ? conn->head - in->have : TCP_HEADER;
    return conn->bulk ? TCP_GLANCE : room;
}

/* A receive has found memory that is not there, and has taken nothing from the socket. */
static void not_received(tcp_conn *conn, int pieces)
{
    if (pieces > 1)
        conn->in.careful = 1;
    else
        (void)absent(conn);
}

/* Breaks the connection if err is one. */
static void took_in(tcp_conn *conn, int err)
{
    if (!err)
        return;
    conn->rail->count.broken += err == EPROTO;
    conn->rail->count.forged += err == EBADMSG;
    tcp_conn_fail(conn, err);
}

size_t tcp_receive(tcp_conn *conn)
{
    tcp_rail *rail = conn->rail;
    tcp_in *in = &conn->in;
    size_t total = 0, room;
    uint8_t *staging = tcp_received(conn, &room);
    tcp_gpu_busy(conn, 1);
    in->unpacked = 0;
    while (total < TCP_TURN && in->unpacked < TCP_TURN) {
        if (tcp_keeps(conn)) {
            took_in(conn, tcp_resume(conn));
            if (tcp_keeps(conn))
                tcp_conn_wait(conn);
            if (tcp_keeps(conn) || conn->state != TCP_UP)
                break;
        }
        struct iovec *iov = rail->iov;
        int k = 0;
        size_t direct = 0;
        if (in->state == TCP_IN_BODY && !conn->refusal.seq && !conn->records)
            k = in->packed ? tcp_unpack_room(conn, iov) : tcp_frame_pieces(conn, iov, in->careful ? 1 : TCP_IOV - 1, TCP_TURN);
        if (conn->gpu.failed)
            break;
        if (!k && in->state == TCP_IN_BODY && !conn->refusal.seq && !conn->records && !in->packed) {
            tcp_conn_wait(conn);
            break;
        }
        direct = sum(iov, k);
        size_t beside = in->packed && !conn->records ? tcp_unpack_beside(conn, room) : direct && direct < in->left ? 0 : glance(conn, room, k > 0);
        iov[k] = (struct iovec){staging, beside};
        _Alignas(struct cmsghdr) char told[CMSG_SPACE(sizeof(int))];
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)k + 1, .msg_control = k ? told : NULL, .msg_controllen = k ? sizeof(told) : 0};
        rail->count.receives++;
        ssize_t n = conn->refusal.seq ? rx_discard(conn) : recvmsg(conn->fd, &m, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0 && conn->leaving && tcp_gpu_last(conn)) { /* what it has sent takes effect first */
            tcp_conn_wait(conn);
            break;
        }
        if (n <= 0 && conn->leaving) { /* a reset, too: it closed before it received all that we sent */
            tcp_conn_left(conn);
            break;
        }
        if (n < 0 && errno == EFAULT && k) {
            not_received(conn, k);
            continue;
        }
        if (n <= 0) {
            tcp_conn_fail(conn, n == 0 ? ECONNRESET : errno);
            break;
        }
        tcp_conn_hot(conn);
        total += (size_t)n;
        if (conn->refusal.seq)
            continue;
        size_t straight = (size_t)n < direct ? (size_t)n : direct;
        int err = 0;
        if (straight && in->packed) {
            err = tcp_unpack_came(conn, straight);
        } else if (straight) {
            tcp_frame_advance(conn, straight);
            if (!in->left)
                err = tcp_take_end(conn);
        }
        if (!err && (size_t)n > straight)
            err = conn->records ? tcp_open(conn, staging, (size_t)n) : tcp_take(conn, staging, (size_t)n - straight);
        took_in(conn, err);
        if (conn->state != TCP_UP || ((size_t)n < direct + beside && !conn->ending && !((size_t)n < direct && left_over(conn, &m))))
            break; /* a short receive has drained the socket; the next byte gives an edge, an end that was there does not */
    }
    if (total && total <= SOON_BYTES)
        rail->base.soon = 1;
    tcp_gpu_busy(conn, 0);
    if (conn->gpu.in)
        tcp_gpu_post(conn);
    return total < in->unpacked ? in->unpacked : total;
}
