/* Messages of a link: notifications, probes and credits, out and in. */
#ifndef GORAIL_MESSAGE_H
#define GORAIL_MESSAGE_H

#include "link.h"

struct msg { /* an outgoing notification */
    cmd start;
    gr_link *link;
    gr_xfer *xfer; /* that it belongs to; NULL: genNotif */
    void (*ended)(msg *m, int err); /* tells that transfer: the peer has the message (0), or it will never be sent */
    msg *next, *prev;
    _Atomic(rail_st *) listed; /* of the link in whose list it is; changed under its lock alone */
    char *body;
    size_t len;
    struct {
        uint64_t seq;
        uint8_t given; /* from here on it must arrive */
        uint8_t block; /* of sess->tx.blocks, where it counts */
    } number;
    struct msg_sent { /* over this endpoint: a fence clears it */
        size_t off;
        uint32_t inflight;
        uint8_t posted; /* every fragment is */
        uint8_t failed;
        uint8_t blamed; /* as a batch's */
    } sent;
    uint8_t tries;     /* as a batch's */
    uint8_t skip;      /* given up after it was numbered: the peer is told to go on without it */
    uint8_t pipelined; /* it follows its transfer's data on an ordered link without waiting */
    uint8_t unproved;  /* parted from its transfer while pipelined: sent again, it would no longer prove the data */
    uint8_t done;
};

/* The number of the link's probe: an answer to that of another endpoint tells nothing. */
static inline uint64_t link_probe_seq(const gr_link *link)
{
    return (uint64_t)link->ep.epoch + 1;
}

/* Whether msg_pump has something to do. */
static inline int msg_due(const gr_link *link)
{
    return link->state == LINK_PROBING ||
           (link->state == LINK_UP && (link->out.cur || link->probe.hello || link->ep.recv_debt || credits_due(link)));
}

/* message.c */
int msg_queue(gr_link *link, msg *m);
void msg_unlist(msg *m);
int msg_number(msg *m);
void msg_resend(msg *m, uint64_t seq);
void msg_end(msg *m, int err);
int msg_gap(msg *m);
int msg_detach(msg *m, int err);

/* send.c */
void msg_pump(gr_link *link);
void msg_sent(ctx *c, int err);
void msg_start(rail_st *rail, cmd *self);
void msg_move(msg *m, gr_link *to);
void msg_credit_cmd(rail_st *rail, cmd *self);

/* receive.c */
void msg_received(ctx *c, int err, uint64_t len);
uint32_t msg_recvs(const gr_link *link);
int msg_post_recvs(gr_link *link);
void msg_repay(gr_link *link);

#endif
