/* Sessions: the numbers of their notifications, and the queues to Go and to the application. */
#ifndef GORAIL_SESSION_H
#define GORAIL_SESSION_H

#include "base.h"

enum {
    FAIR = 64 << 10, /* undelivered bytes that a session may have though all sessions together have too many */
    TX_BLOCKS = 8,
    TX_RESENT = TX_BLOCKS /* in place of a block */
};

typedef struct tx_block { /* consecutive numbers of notifications: see numbers.c */
    uint32_t numbers, left; /* given; of them, the peer is not known to have */
    uint64_t bytes;
} tx_block;

struct gr_sess {
    gr_core *core;
    uint64_t id;
    _Atomic int refs;
    struct { /* numbers of outgoing notifications */
        pthread_mutex_t mu;
        uint64_t seq;            /* next to give */
        tx_block blocks[TX_BLOCKS];
        uint64_t oldest, newest; /* blocks, by number: all before the oldest have arrived; the newest has room or is full */
        uint64_t bytes;          /* of these blocks; 0: the peer has all that have a number */
        int held;                /* some message waits for a number */
        uint32_t resent;         /* out under numbers of a session before: nothing new gets one meanwhile */
    } tx;
    struct { /* order of incoming ones */
        pthread_mutex_t mu;
        uint64_t next;
        uint64_t handed; /* messages given to Go */
        int slow;        /* Go is putting messages in order */
        int ended;       /* nothing more is taken in */
        gr_link *links;  /* where owed credits go back */
    } rx;
    _Atomic uint64_t tx_queued;    /* bytes accepted, not yet sent */
    _Atomic uint64_t ready_bytes;  /* bytes the application has not taken; also in core->notif_bytes, as handed_bytes */
    _Atomic uint64_t handed_bytes; /* of messages given to Go, that it is not done with */
    _Atomic(gr_link *) notif_link;       /* where notifications go out */
    _Atomic uint32_t turn;         /* which link a small transfer tries first */
    size_t name_len;
    char name[];
};

struct event_node {
    struct event_node *next;
    gr_sess *sess; /* MSG: counted in its handed_bytes */
    gr_event ev;
};

/* session.c */
void sess_unref(gr_sess *sess);

/* numbers.c */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq);
uint8_t sess_resent(gr_sess *s);
void sess_proved(gr_sess *s, uint8_t block);

/* queue.c */
/* Queues an event for Go; with a session, its bytes count as handed to Go. */
void core_event(gr_core *core, const gr_event *ev, gr_sess *sess);
void core_ready(gr_sess *sess, gr_notif *n);
int sess_full(gr_sess *sess);

#endif
