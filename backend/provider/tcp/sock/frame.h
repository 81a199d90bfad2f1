/* Frames on a data connection, as ../doc.go describes them. Little endian. */
#ifndef GORAIL_TCP_FRAME_H
#define GORAIL_TCP_FRAME_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

enum { TCP_WRITE = 1, TCP_SEND, TCP_READ, TCP_ANSWER, TCP_ACK, TCP_REFUSED, TCP_GOODBYE, TCP_CONFIRM };
/* Flags: acknowledge at once; a CONFIRM for a WRITE; the body is packed, or the READ's answer may be. */
enum { TCP_ASK = 1, TCP_FOR_WRITE = 2, TCP_PACKED = 4 };

enum {
    TCP_MAGIC = 0xa0, /* the high half of a header's first byte */
    TCP_HEADER = 32,
    TCP_SEGMENT = 24,
    TCP_SEGMENTS = 256,          /* of one WRITE */
    TCP_READ_SEGMENTS = 8,       /* of one READ: GR_MAX_IOV */
    TCP_BODY = 1 << 20,          /* bytes of one frame, header and segments aside */
    TCP_MESSAGE = 8 << 10,       /* bytes of one SEND */
    TCP_READS = 64,              /* READs outstanding on a connection */
    TCP_READ_BYTES = 4 << 20,    /* bytes that they ask for together */
};

/* An address of the wire: the region's number, and the offset into it. */
enum { TCP_OFFSET_BITS = 44, TCP_REGIONS = 1 << 20 };
#define TCP_OFFSET(addr) ((addr) & ((UINT64_C(1) << TCP_OFFSET_BITS) - 1))
#define TCP_REGION(addr) ((uint32_t)((addr) >> TCP_OFFSET_BITS))

typedef struct tcp_header {
    uint8_t op, flags;
    uint16_t segments; /* entries of tcp_segment behind the header */
    uint32_t len;      /* bytes of the body, behind the segments */
    uint32_t id;       /* READ, ANSWER: number of the READ. REFUSED: index of the segment */
    uint32_t status;   /* ANSWER, REFUSED: an errno of Linux; 0: success */
    uint64_t seq;      /* WRITE, SEND: number of the frame, from 1. REFUSED: the frame that was refused */
    uint64_t ack;      /* all frames up to this number are placed, delivered or refused */
} tcp_header;

typedef struct tcp_segment {
    uint64_t key, addr;
    uint32_t len;
} tcp_segment;

static inline void tcp_put16(uint8_t *p, uint16_t v) { v = htole16(v), memcpy(p, &v, 2); } /* ours */
static inline void tcp_put32(uint8_t *p, uint32_t v) { v = htole32(v), memcpy(p, &v, 4); } /* ours */
static inline void tcp_put64(uint8_t *p, uint64_t v) { v = htole64(v), memcpy(p, &v, 8); } /* ours */
static inline uint16_t tcp_get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, 2); /* ours */
    return le16toh(v);
}
static inline uint32_t tcp_get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4); /* ours */
    return le32toh(v);
}
static inline uint64_t tcp_get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, 8); /* ours */
    return le64toh(v);
}

/* Offsets: 0 magic and op, 1 flags, 2 segments, 4 len, 8 id, 12 status, 16 seq, 24 ack. */
static inline void tcp_put_header(uint8_t *p, const tcp_header *h)
{
    p[0] = (uint8_t)(TCP_MAGIC | h->op);
    p[1] = h->flags;
    tcp_put16(p + 2, h->segments);
    tcp_put32(p + 4, h->len);
    tcp_put32(p + 8, h->id);
    tcp_put32(p + 12, h->status);
    tcp_put64(p + 16, h->seq);
    tcp_put64(p + 24, h->ack);
}

/* 0, or -1 if the first byte is none of a header. */
static inline int tcp_get_header(const uint8_t *p, tcp_header *h)
{
    h->op = p[0] & 15;
    h->flags = p[1];
    h->segments = tcp_get16(p + 2);
    h->len = tcp_get32(p + 4);
    h->id = tcp_get32(p + 8);
    h->status = tcp_get32(p + 12);
    h->seq = tcp_get64(p + 16);
    h->ack = tcp_get64(p + 24);
    return (p[0] & 0xf0) == TCP_MAGIC && h->op >= TCP_WRITE && h->op <= TCP_CONFIRM ? 0 : -1;
}

static inline void tcp_put_segment(uint8_t *p, const tcp_segment *s)
{
    tcp_put64(p, s->key);
    tcp_put64(p + 8, s->addr);
    tcp_put32(p + 16, s->len);
    tcp_put32(p + 20, 0);
}

static inline tcp_segment tcp_get_segment(const uint8_t *p) { return (tcp_segment){tcp_get64(p), tcp_get64(p + 8), tcp_get32(p + 16)}; }

#endif
