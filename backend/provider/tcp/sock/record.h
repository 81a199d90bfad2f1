/* Records: with option encryption all bytes of a connection are inside them. ../doc.go has their form. */
#ifndef GORAIL_TCP_RECORD_H
#define GORAIL_TCP_RECORD_H

#include "libcrypto.h"
#include "plan.h"

enum {
    TCP_RECORD_HEAD = 4,
    TCP_RECORD_WHOLE = TCP_STAGING, /* bytes of a record that is verified before any of it is used */
    /* Most bytes of a record inside a body. Processor time of sender and receiver for 1 MiB, with AES at 4.0 GB/s, us: 256 KiB 472 384,
     * 128 KiB 462 406, 64 KiB 485 413, 32 KiB 553 433, 16 KiB 701 454; in clear 168 136 (BenchmarkSides). Shorter ones overlap more. */
    TCP_RECORD_BODY = 128 << 10,
    TCP_RECORD_LEAST = 16 << 10, /* of one while there is more of the body */
    TCP_RECORD_STEPS = 4,        /* records of what is to be sent, if they are not longer or shorter than that: both ends work at once */
    TCP_RECORD_ROOM = TCP_RECORD_HEAD + TCP_TAG,
    TCP_RECEIVE = 128 << 10, /* bytes of one receive */
    TCP_GENERATION = 1u << 31, /* flag of a record's head: the first under the next key */
};
#define TCP_MOST_RECORDS (UINT64_C(1) << 24) /* trust.MostRecords */
/* Fewest of a peer's key: a key costs 4 us, and 1 MiB of records with a new one each 0.2 s under the rail's lock. Ours have 2^19. */
#define TCP_LEAST_RECORDS 1024

/* A direction of a connection. */
typedef struct tcp_cipher {
    evp_cipher_ctx *ctx;
    uint8_t iv[TCP_IV];
    uint8_t direction; /* trust.Direction */
    uint32_t generation;
    uint64_t records, bytes; /* under this key */
} tcp_cipher;

struct tcp_records {
    const tcp_crypto *crypto;
    uint8_t secret[32]; /* trust.RecordSecret */
    tcp_cipher out, in;

    uint8_t *rest; /* sealed bytes that the socket did not take: allocated while there are any */
    size_t rest_len, rest_sent;

    /* The record that comes in. */
    uint8_t head[TCP_RECORD_HEAD], tag[TCP_TAG];
    uint8_t have, tags; /* bytes of them */
    uint8_t straight;   /* it is part of a body: it goes into place */
    uint32_t len, left; /* bytes of the text; those to come */
    uint8_t *text;      /* of another one that is half received, else NULL */
};

/* Memory of a rail that all its connections use in turn. */
struct tcp_record_rail {
    tcp_crypto crypto;
    uint64_t most_records, most_bytes; /* of one key that we send with: tests lower them */
    uint64_t least_records;            /* of one that a peer sends with */
    uint32_t body;                     /* bytes of a record inside a body */
    uint8_t received[TCP_RECEIVE];
    uint8_t sealed[2 * (TCP_RECORD_BODY + TCP_RECORD_ROOM)];
};

/* record.c */
int tcp_next_key(tcp_records *r, tcp_cipher *k, int encrypt); /* 1, or 0 if libcrypto failed */
int tcp_record_begin(const tcp_records *r, tcp_cipher *k, const uint8_t head[TCP_RECORD_HEAD]);
/* 1, or 0 if libcrypto failed: then key and iv are none. */
int tcp_record_key(const tcp_crypto *c, const uint8_t secret[32], uint8_t direction, uint32_t generation, uint8_t key[TCP_KEY], uint8_t iv[TCP_IV]);

#endif
