/* Records out. A record goes to the socket as soon as it is sealed, so that the peer opens it while the next one is sealed. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "gr_failpoint.h"
#include "record.h"

/* Behind a record of this size another one completes the last packet (MSG_MORE): 1 MiB takes the sender 460 instead of 482 us. A shorter
 * one would wait for it: a packet of the loopback interface has 64 KiB. */
enum { LONG = 64 << 10 };

/* Where in a plan's bytes the next record begins. */
typedef struct place {
    const plan *p;
    int frame, iov;
    size_t skip;  /* bytes of the frame before it, also those of earlier plans */
    size_t in;    /* of the iovec */
} place;

static size_t head_left(const tcp_out *f, size_t skip) { return skip < f->head_len ? f->head_len - skip : 0; }
static size_t frame_left(const tcp_out *f, size_t skip) { return f->head_len + (size_t)f->body_len - skip; }

/* Bytes of the next record. A long body has records of its own, which the peer puts straight into place. */
static size_t next_record(const place *at, uint32_t body)
{
    size_t skip = at->skip, sum = 0;
    for (int i = at->frame; i < at->p->nframes; i++, skip = 0) {
        const tcp_out *f = &at->p->frame[i];
        size_t head = head_left(f, skip), all = frame_left(f, skip);
        if (sum == 0 && head == 0 && all > TCP_RECORD_WHOLE)
            return all < body ? all : body;
        if (sum + all <= TCP_RECORD_WHOLE) {
            sum += all;
            continue;
        }
        return sum + head <= TCP_RECORD_WHOLE ? sum + head : sum;
    }
    return sum;
}

static void advance(place *at, size_t n)
{
    at->skip += n;
    for (const tcp_out *f = &at->p->frame[at->frame]; at->frame < at->p->nframes && at->skip >= frame_left(f, 0); f++) {
        at->skip -= frame_left(f, 0);
        at->frame++;
    }
}

/* Begins a record of len bytes at `to`. */
static int seal_begin(tcp_conn *conn, uint8_t *to, size_t len)
{
    tcp_records *r = conn->records;
    tcp_record_rail *rail = conn->rail->records;
    uint32_t head = (uint32_t)len;
    if (r->out.records >= rail->most_records || (r->out.records && r->out.bytes + len > rail->most_bytes)) {
        if (!tcp_next_key(r, &r->out, 1))
            return 0;
        head |= TCP_GENERATION;
    }
    r->out.bytes += len;
    tcp_put32(to, head);
    return tcp_record_begin(r, &r->out, to);
}

enum { LOAD_PIECES = 64, LOAD_BYTES = 32 << 10 /* are copied, then encrypted while they are in the cache */ };

/* The next pieces of the plan, of `most` bytes at most. */
static int seal_pieces(const tcp_conn *conn, place *at, struct iovec *to, size_t most, size_t *bytes)
{
    int k = 0;
    for (*bytes = 0; k < LOAD_PIECES && *bytes < most; k++) {
        const struct iovec *v = &conn->rail->iov[at->iov];
        size_t n = v->iov_len - at->in < most - *bytes ? v->iov_len - at->in : most - *bytes;
        to[k] = (struct iovec){(uint8_t *)v->iov_base + at->in, n};
        *bytes += n;
        at->in += n;
        if (at->in == v->iov_len)
            at->iov++, at->in = 0;
    }
    return k;
}

static uint8_t *not_sealed(int err)
{
    errno = err;
    return NULL;
}

/* Seals len bytes of the plan at `to`. Returns the end of the record, or NULL and errno: EIO if libcrypto failed, EFAULT if memory of the
 * application is not there. */
static uint8_t *seal(tcp_conn *conn, place *at, uint8_t *to, size_t len)
{
    const tcp_records *r = conn->records;
    struct iovec v[LOAD_PIECES];
    if (!seal_begin(conn, to, len))
        return not_sealed(EIO);
    to += TCP_RECORD_HEAD;
    for (size_t left = len, n; left; left -= n, to += n) {
        int k = seal_pieces(conn, at, v, left < LOAD_BYTES ? left : LOAD_BYTES, &n);
        if (at->p->theirs && gr_guard_load(to, v, k) < k)
            return not_sealed(EFAULT);
        uint8_t *end = to;
        for (int i = 0; i < k && !at->p->theirs; end += v[i++].iov_len)
            memcpy(end, v[i].iov_base, v[i].iov_len); /* ours: headers and messages */
        if (!tcp_crypto_update(r->crypto, r->out.ctx, to, to, n)) /* ours */
            return not_sealed(EIO);
    }
    advance(at, len);
    return tcp_crypto_tag(r->crypto, r->out.ctx, to) ? to + TCP_TAG : not_sealed(EIO);
}

/* Sends sealed bytes, and keeps those that the socket does not take. An errno: EAGAIN if there are any. */
static int give(tcp_conn *conn, const uint8_t *at, size_t len, int more)
{
    tcp_records *r = conn->records;
    ssize_t n;
    do {
        n = send(conn->fd, at, len, MSG_DONTWAIT | MSG_NOSIGNAL | more);
        conn->rail->count.sends++;
    } while (n < 0 && errno == EINTR);
    int err = n < 0 ? errno : (size_t)n < len ? EAGAIN : 0;
    size_t sent = n < 0 ? 0 : (size_t)n;
    if (err) {
        r->rest = GR_ALLOC(tcp_sealed, malloc(len - sent)); /* limit:tcp_sealed */
        if (!r->rest)
            return ENOMEM;
        r->rest_len = len - sent;
        r->rest_sent = 0;
        memcpy(r->rest, at + sent, len - sent); /* ours */
    }
    return err;
}

int tcp_sealed_left(const tcp_conn *conn) { return conn->records && conn->records->rest; }

int tcp_send_sealed(tcp_conn *conn)
{
    tcp_records *r = conn->records;
    while (r->rest_sent < r->rest_len) {
        ssize_t n = send(conn->fd, r->rest + r->rest_sent, r->rest_len - r->rest_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        conn->rail->count.sends++;
        if (n < 0 && errno != EINTR)
            return errno;
        r->rest_sent += n < 0 ? 0 : (size_t)n;
    }
    free(r->rest);
    r->rest = NULL;
    return 0;
}

ssize_t tcp_seal(tcp_conn *conn, const plan *p)
{
    tcp_record_rail *rail = conn->rail->records;
    place at = {.p = p, .skip = p->frame[0].sent};
    uint32_t body = (uint32_t)(p->bytes / TCP_RECORD_STEPS);
    body = body < TCP_RECORD_LEAST ? TCP_RECORD_LEAST : body < rail->body ? body : rail->body;
    uint8_t *end = rail->sealed;
    size_t total = 0;
    int err = 0;
    while (total < p->bytes && !err) {
        size_t len = next_record(&at, body);
        end = seal(conn, &at, end, len);
        if (!end)
            return -1;
        total += len;
        if ((size_t)(end - rail->sealed) >= body || total == p->bytes) {
            size_t sealed = (size_t)(end - rail->sealed);
            err = give(conn, rail->sealed, sealed, total < p->bytes && sealed >= LONG ? MSG_MORE : 0);
            end = rail->sealed;
        }
    }
    if (!err || err == EAGAIN || tcp_sealed_left(conn)) /* another error comes again when the rest is sent */
        return (ssize_t)total;
    errno = err;
    return -1;
}

void tcp_seal_last(tcp_conn *conn, const uint8_t *text, size_t len)
{
    uint8_t record[TCP_HEADER + TCP_RECORD_ROOM];
    tcp_records *r = conn->records;
    if (tcp_sealed_left(conn) || !seal_begin(conn, record, len) ||
        !tcp_crypto_update(r->crypto, r->out.ctx, record + TCP_RECORD_HEAD, text, len) || /* ours */
        !tcp_crypto_tag(r->crypto, r->out.ctx, record + TCP_RECORD_HEAD + len))
        return;
    (void)give(conn, record, len + TCP_RECORD_ROOM, 0);
}
