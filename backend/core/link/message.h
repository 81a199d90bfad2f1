/* Messages of a link: notifications, probes and credits, outgoing and incoming. */
#ifndef GORAIL_MESSAGE_H
#define GORAIL_MESSAGE_H

#include "link.h"

#include <stdlib.h>

enum { MSG_SMALL = 128 }; /* bytes of a transfer's notification that need no memory of their own */

struct msg { /* an outgoing notification */
    cmd start;
    gr_link *link;
    gr_xfer *xfer; /* the transfer of the notification; NULL: a notification without a transfer (genNotif) */
    void (*ended)(msg *m, int err); /* reports to the transfer: the peer has the message (0), or it will never be sent */
    TAILQ_ENTRY(msg) list;
    _Atomic(rail_st *) listed; /* rail of the link that lists the message; changed only under that rail's lock */
    char *body;
    size_t len;
    struct {
        uint64_t seq;
        uint8_t given; /* a number is given: the message or a SKIP must arrive */
        uint8_t block; /* the block of sess->tx.blocks that counts the message */
    } number;
    struct msg_sent { /* state on this endpoint; a fence clears it */
        size_t off;
        uint32_t inflight;
        uint8_t posted; /* every fragment is posted */
        uint8_t failed;
        uint8_t at_fault; /* as in struct batch */
    } sent;
    uint8_t tries;     /* as in struct batch */
    uint8_t skip;      /* given up after it was numbered: a SKIP goes out instead */
    uint8_t pipelined; /* posted behind its transfer's data on an ordered link, without waiting for completions */
    uint8_t unproved;  /* detached from a failed transfer while pipelined: sent again, the message would no longer prove the data */
    uint8_t done;
    uint8_t reused; /* detached: it goes to rail->mem.free_msg */
    msg *next;      /* in free_msg */
    char small[MSG_SMALL]; /* body of a transfer's short notification */
};

/* Frees the body. */
static inline void msg_body_free(msg *m)
{
    if (m->body != m->small && m->body != (char *)(m + 1))
        free(m->body);
    m->body = NULL;
}

/* The number of the link's probe. It differs for each endpoint, so that answers to earlier endpoints' probes do not count. */
static inline uint64_t link_probe_seq(const gr_link *link) { return (uint64_t)link->ep.epoch + 1; }

/* Whether msg_pump has work. */
static inline int msg_due(const gr_link *link)
{
    return link->state == LINK_PROBING ||
           (link->state == LINK_UP && (link->out.cur || link->probe.wanted || link->ep.missing_recvs || credits_due(link)));
}

/* message.c */
int msg_queue(gr_link *link, msg *m);
void msg_unlist(msg *m);
int msg_number(msg *m);
void msg_resend(msg *m, uint64_t seq);
void msg_leave(msg *m);
void msg_free(msg *m);
void msg_end(msg *m, int err);
int msg_skip(msg *m);
int msg_detach(msg *m, int err);

/* send.c */
void msg_pump(gr_link *link);
void msg_sent(ctx *c, int err);
void msg_start(rail_st *rail, cmd *self);
void msg_move(msg *m, gr_link *to);
void msg_credit_cmd(rail_st *rail, cmd *self);

/* receive.c */
/* Takes in the messages that came in while memory was short. The peer gets no credits before. */
void msg_take_held(rail_st *rail);
void msg_received(ctx *c, int err, uint64_t len);
uint32_t msg_recvs(const gr_link *link);
int msg_post_recvs(gr_link *link);
void msg_post_missing_recvs(gr_link *link);

#endif
