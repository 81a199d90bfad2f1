/* Records in. A record inside a body, whose header and segments were in records that are verified, is decrypted into place as it
 * comes. Every other record is short, and nothing of it is used before it is verified. */
#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "record.h"

/* The record's head is there. An errno: the connection ends. What is wrong with a head may have been changed on the way. */
static int begin(tcp_conn *conn)
{
    tcp_records *r = conn->records;
    uint32_t head = tcp_get32(r->head);
    r->len = r->left = head & ~TCP_GENERATION;
    r->tags = 0;
    r->straight = conn->in.state == TCP_IN_BODY && r->len <= conn->in.left;
    if (!r->len || r->len > (r->straight ? TCP_RECORD_BODY : TCP_RECORD_WHOLE))
        return EBADMSG;
    if (head & TCP_GENERATION && r->in.records < conn->rail->records->least_records)
        return EBADMSG;
    if (head & TCP_GENERATION && !tcp_next_key(r, &r->in, 0))
        return EIO;
    if (r->in.records >= TCP_MOST_RECORDS)
        return EPROTO;
    return tcp_record_begin(r, &r->in, r->head) ? 0 : EIO;
}

int tcp_record_place(tcp_conn *conn, void *to, const void *from, size_t n)
{
    tcp_records *r = conn->records;
    r->left -= (uint32_t)n;
    return tcp_crypto_update(r->crypto, r->in.ctx, to, from, n) ? 0 : EIO;
}

/* Bytes of a record that is verified as a whole. One that is not cut is decrypted where it is, else in memory of its own. */
static int take(tcp_conn *conn, uint8_t *at, size_t n, uint8_t **text)
{
    tcp_records *r = conn->records;
    uint8_t *to = at;
    if (r->left < r->len || n < r->len + TCP_TAG) {
        if (!r->text && !(r->text = GR_ALLOC(tcp_opened, malloc(r->len)))) /* limit:tcp_opened */
            return ENOMEM;
        to = r->text + (r->len - r->left);
    }
    *text = r->text ? r->text : at;
    return tcp_record_place(conn, to, at, n < r->left ? n : r->left);
}

/* The tag is there. */
static int end(tcp_conn *conn, uint8_t *text)
{
    tcp_records *r = conn->records;
    r->have = 0;
    if (!tcp_crypto_verify(r->crypto, r->in.ctx, r->tag))
        return EBADMSG;
    if (r->straight)
        return conn->in.left ? 0 : tcp_take_end(conn);
    int err = tcp_take(conn, text, r->len);
    free(r->text);
    r->text = NULL;
    return err;
}

uint8_t *tcp_received(tcp_conn *conn, size_t *room)
{
    *room = conn->records ? TCP_RECEIVE : TCP_STAGING;
    return conn->records ? conn->rail->records->received : conn->rail->staging;
}

int tcp_open(tcp_conn *conn, uint8_t *at, size_t n)
{
    tcp_records *r = conn->records;
    uint8_t *text = r->text;
    int err = 0;
    while (n && !err && conn->state == TCP_UP && !conn->refusal.seq && !conn->gpu.frames.mem) {
        size_t took = 0;
        if (r->have < TCP_RECORD_HEAD) {
            for (; took < n && r->have < TCP_RECORD_HEAD; took++)
                r->head[r->have++] = at[took];
            if (r->have == TCP_RECORD_HEAD)
                err = begin(conn);
        } else if (r->left) {
            took = n < r->left ? n : r->left;
            err = r->straight ? tcp_place(conn, at, took, 1, &took) : take(conn, at, n, &text);
        } else {
            for (; took < n && r->tags < TCP_TAG; took++)
                r->tag[r->tags++] = at[took];
            if (r->tags == TCP_TAG)
                err = end(conn, text);
        }
        at += took;
        n -= took;
    }
    return err == EAGAIN || (!err && n && conn->gpu.frames.mem) ? tcp_keep(&conn->gpu.records, at, n) : err;
}
