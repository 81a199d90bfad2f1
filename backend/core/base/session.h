/* Sessions: the sequence numbers of their notifications, and the queues to Go and to the application. */
#ifndef GORAIL_SESSION_H
#define GORAIL_SESSION_H

#include "base.h"

enum {
    FAIR = 64 << 10, /* undelivered bytes that a session may always have, even when all sessions together exceed the limit */
    TX_BLOCKS = 8,
    TX_RESENT = TX_BLOCKS /* instead of a block index: see sess_resent */
};

typedef struct tx_block { /* consecutive sequence numbers: see numbers.c */
    uint32_t numbers, left; /* numbers given; numbers not yet acknowledged */
    uint64_t bytes;
} tx_block;

struct gr_sess {
    gr_core *core;
    uint64_t id;
    _Atomic int refs;
    struct { /* sequence numbers of outgoing notifications */
        pthread_mutex_t mu;
        _Atomic uint64_t seq;    /* next number to give */
        tx_block blocks[TX_BLOCKS];
        uint64_t oldest, newest; /* block numbers: all blocks before oldest have arrived; newest takes the next number while it has room */
        uint64_t bytes;          /* bytes of these blocks; 0: the peer has every numbered notification */
        int held;                /* a message waits for a number */
        uint32_t resent;         /* notifications out under numbers of an earlier session: no new numbers meanwhile */
    } tx;
    struct { /* order of incoming notifications */
        pthread_mutex_t mu;
        uint64_t next;
        uint64_t handed; /* messages handed to Go */
        int slow;        /* Go reorders messages */
        int ended;       /* incoming messages are dropped */
        gr_link *links;  /* links that return credits */
    } rx;
    _Atomic uint64_t tx_queued;    /* bytes accepted and not yet sent */
    _Atomic uint64_t ready_bytes;  /* bytes that the application has not taken; core->notif_bytes counts them too, and handed_bytes */
    _Atomic uint64_t handed_bytes; /* bytes of messages that were handed to Go and not yet handled */
    _Atomic(gr_link *) notif_link;       /* link for notifications without a transfer */
    _Atomic uint64_t small_ns;     /* time of the last post of a small transfer on a link whose bytes our processor moves; 0: none lately */
    _Atomic uint32_t turn;         /* the link that a small transfer tries first: a round-robin counter */
    size_t name_len;
    char name[];
};

struct event_node {
    struct event_node *next;
    gr_sess *sess; /* MSG: the event's bytes count in its handed_bytes */
    gr_event ev;
};

/* session.c */
void sess_unref(gr_sess *sess);

/* numbers.c */
int sess_number(gr_sess *s, size_t len, uint8_t *block, uint64_t *seq);
uint8_t sess_resent(gr_sess *s);
void sess_acked(gr_sess *s, uint8_t block);

enum { LINK_EVENTS = 3, XFER_EVENTS = 2 }; /* that one may have queued: first message, answered probe, error; end, end of a cached post */

/* queue.c */
/* Adds n nodes for core_event: so many events need no memory. 0 or -ENOMEM. */
int core_event_nodes(gr_core *core, uint32_t n);
/* Queues an event that must not get lost. Without a node and memory it stays in `owed`, and gr_events_take looks at all links and transfers.
 * now: the handle of the transfer that has the slot; NULL: of a link. */
void core_event(gr_core *core, const gr_event *ev, struct owed *owed, const _Atomic uint64_t *now);
int core_events_queued(gr_core *core, gr_event *out, int max); /* takes queued events, oldest first; returns their number */
int core_events_owed(gr_core *core, struct owed *owed, gr_event *out, int max); /* the same of a link or a transfer; -1: max is too small */
/* Queues a message for Go. Its bytes count as handed to Go. 0 or -ENOMEM. */
int core_event_msg(gr_sess *sess, const gr_event *ev);
void core_ready(gr_sess *sess, gr_notif *n);
int sess_full(gr_sess *sess);

#endif
