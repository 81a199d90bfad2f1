/* Keys of records, and what a connection and a rail have for them. Records in. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "record.h"

static uint8_t *put_part(uint8_t *to, const void *part, size_t len)
{
    for (int i = 0; i < 8; i++)
        *to++ = (uint8_t)((uint64_t)len >> (56 - 8 * i));
    memcpy(to, part, len); /* ours */
    return to + len;
}

/* HKDF-Expand with SHA-256, for 32 bytes at most: trust.RecordSecret.Key. 1, or 0 if libcrypto failed. */
static int expand(const tcp_crypto *c, const uint8_t secret[32], const char *label, uint8_t direction, uint32_t generation, uint8_t *to, size_t len)
{
    uint8_t info[64], out[32], number[8] = {0};
    for (int i = 0; i < 4; i++)
        number[4 + i] = (uint8_t)(generation >> (24 - 8 * i));
    uint8_t *p = put_part(info, label, strlen(label));
    p = put_part(p, &direction, 1);
    p = put_part(p, number, sizeof(number));
    *p++ = 1;
    int ok = c->HMAC(c->EVP_sha256(), secret, 32, info, (size_t)(p - info), out, NULL) != NULL;
    if (ok)
        memcpy(to, out, len); /* ours */
    explicit_bzero(out, sizeof(out));
    return ok;
}

int tcp_record_key(const tcp_crypto *c, const uint8_t secret[32], uint8_t direction, uint32_t generation, uint8_t key[TCP_KEY], uint8_t iv[TCP_IV])
{
    return expand(c, secret, "gorail key", direction, generation, key, TCP_KEY) && expand(c, secret, "gorail iv", direction, generation, iv, TCP_IV);
}

static int set_key(tcp_records *r, tcp_cipher *k, int encrypt)
{
    uint8_t key[TCP_KEY];
    if (!tcp_crypto_begin_keys())
        return 0;
    int ok = tcp_record_key(r->crypto, r->secret, k->direction, k->generation, key, k->iv) && tcp_crypto_key(r->crypto, k->ctx, key, encrypt);
    tcp_crypto_end_keys();
    explicit_bzero(key, sizeof(key));
    k->records = k->bytes = 0;
    return ok;
}

int tcp_next_key(tcp_records *r, tcp_cipher *k, int encrypt)
{
    k->generation++;
    return set_key(r, k, encrypt);
}

/* The nonce is the key's base and the number of the record, so that no record can be repeated, left out or moved. */
int tcp_record_begin(const tcp_records *r, tcp_cipher *k, const uint8_t head[TCP_RECORD_HEAD])
{
    uint8_t nonce[TCP_IV];
    memcpy(nonce, k->iv, TCP_IV); /* ours */
    for (int i = 0; i < 8; i++)
        nonce[4 + i] ^= (uint8_t)(k->records >> (56 - 8 * i));
    k->records++;
    return tcp_crypto_begin(r->crypto, k->ctx, nonce, head, TCP_RECORD_HEAD);
}

int tcp_rail_encrypt(tcp_rail *rail, const char *path, char *why, size_t size)
{
    tcp_record_rail *r = GR_ALLOC(tcp_record_rail, calloc(1, sizeof(*r)));
    if (!r) {
        snprintf(why, size, "no memory");
        return -1;
    }
    if (tcp_crypto_load(&r->crypto, path, why, size)) {
        free(r);
        return -1;
    }
    r->most_records = 1 << 22;
    r->most_bytes = UINT64_C(64) << 30;
    r->least_records = TCP_LEAST_RECORDS;
    r->body = TCP_RECORD_BODY;
    rail->records = r;
    return 0;
}

void tcp_rail_tune(tcp_rail *rail, uint64_t records, uint64_t bytes, uint32_t body)
{
    gr_rail_lock(&rail->base);
    rail->records->most_records = records;
    rail->records->most_bytes = bytes;
    rail->records->least_records = 0;
    rail->records->body = body < TCP_RECORD_BODY ? body : TCP_RECORD_BODY;
    gr_rail_unlock(&rail->base);
}

int tcp_conn_encrypt(tcp_conn *conn, const uint8_t secret[32], int initiator)
{
    const tcp_crypto *c = &conn->rail->records->crypto;
    tcp_records *r = GR_ALLOC(tcp_records, calloc(1, sizeof(*r)));
    if (!r)
        return ENOMEM;
    r->crypto = c;
    memcpy(r->secret, secret, sizeof(r->secret)); /* ours */
    r->out.direction = initiator ? 0 : 1;
    r->in.direction = initiator ? 1 : 0;
    r->out.ctx = c->EVP_CIPHER_CTX_new();
    r->in.ctx = c->EVP_CIPHER_CTX_new();
    int err = !r->out.ctx || !r->in.ctx ? ENOMEM : !set_key(r, &r->out, 1) || !set_key(r, &r->in, 0) ? EIO : 0;
    if (err) {
        tcp_records_free(r);
        return err;
    }
    gr_rail_lock(&conn->rail->base);
    tcp_records_free(conn->records);
    conn->records = r;
    gr_rail_unlock(&conn->rail->base);
    return 0;
}

void tcp_records_free(tcp_records *r)
{
    if (!r)
        return;
    r->crypto->EVP_CIPHER_CTX_free(r->out.ctx); /* NULL is allowed, and keys are wiped */
    r->crypto->EVP_CIPHER_CTX_free(r->in.ctx);
    free(r->rest);
    free(r->text);
    explicit_bzero(r, sizeof(*r));
    free(r);
}

/* ---- records in ----
 *
 * Records in. A record inside a body, whose header and segments were in records that are verified, is decrypted into place as it
 * comes. Every other record is short, and nothing of it is used before it is verified. */

/* The record's head is there. An errno: the connection ends. What is wrong with a head may have been changed on the way. */
static int record_begin(tcp_conn *conn)
{
    tcp_records *r = conn->records;
    uint32_t head = tcp_get32(r->head);
    r->len = r->left = head & ~TCP_GENERATION;
    r->tags = 0;
    r->straight = conn->in.state == TCP_IN_BODY && r->len <= (conn->in.packed ? conn->in.packed : conn->in.left);
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
    return tcp_crypto_update(r->crypto, r->in.ctx, to, from, n) ? 0 : EIO; /* ours */
}

/* Bytes of a record that is verified as a whole. One that is not cut is decrypted where it is, else in memory of its own. */
static int record_take(tcp_conn *conn, uint8_t *at, size_t n, uint8_t **text)
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
                err = record_begin(conn);
        } else if (r->left) {
            took = n < r->left ? n : r->left;
            err = r->straight ? tcp_take_body(conn, at, took, 1, &took) : record_take(conn, at, n, &text);
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
