/* What one sendmsg is made of. */
#ifndef GORAIL_TCP_PLAN_H
#define GORAIL_TCP_PLAN_H

#include "sock.h"

enum {
    FRAMES = 64,             /* of one sendmsg */
    HEADS = 64 << 10,        /* bytes of headers and segments of one sendmsg, the last frame's aside */
    MOST_HEAD = TCP_HEADER + TCP_SEGMENTS * TCP_SEGMENT, /* of one frame */
};

typedef struct plan {
    tcp_out frame[FRAMES];
    int nframes, niov;
    size_t bytes, heads;
    uint64_t seq;      /* last frame number that was given */
    tcp_op *op;        /* next operation */
    tcp_answer *answer; /* next answer */
    uint32_t reads;
    uint64_t read_bytes;
    int theirs; /* the application's memory is in it */
    int acks; /* a header says what we have taken in */
    size_t text; /* bytes that were packed for it */
    int packs; /* WRITEs are packed: read once, since other rails' threads change it */
    int full; /* a packed frame is in it, which is alone: what the socket does not take of it is kept */
} plan;

/* Plans the rest of a frame that was sent in part, then answers and operations in turn, and fills the rail's iov. An errno: memory
 * that an answer needs was deregistered when a part of it had been sent. */
int tcp_plan(tcp_conn *conn, plan *p);
/* tx.c: whether the memory of an answer can be read; without `all` only that of regions of which some could not. */
int tcp_answer_readable(const tcp_conn *conn, const tcp_answer *a, int all);

#endif
