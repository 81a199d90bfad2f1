/* The core as Go drives it: sessions, links, regions, transfers, events.
 *
 * A session is one direction between two engines; it has a link per pair of rails. The core owns sessions, links and
 * transfers; Go holds pointers and ends their lives. Ids in events are Go's own.
 */
#ifndef GORAIL_POLICY_H
#define GORAIL_POLICY_H

#include "gr_core.h"
#include "gr_op.h"
#include "gr_provider.h"

typedef struct gr_sess gr_sess;
typedef struct gr_link gr_link;

/* ---- lifecycle ---- */

typedef struct gr_core_cfg {
    uint32_t max_rails;     /* key slots of a region */
    uint64_t window_min;    /* bytes in flight a link, lower and upper bound */
    uint64_t window_max;
    uint64_t window_ns;     /* the window is the measured rate times this */
    uint64_t batch_bytes;   /* what a link takes at a time of a transfer that it shares with others */
    uint64_t spin_ns;       /* how long the thread polls after work before it blocks */
    uint64_t notif_limit;   /* bytes of undelivered notifications a session may pile up */
    uint64_t notif_total;   /* of all sessions: beyond it a session gets credits only while it has little; 0: no limit */
    uint32_t inflight_ops;  /* WRITEs and READs in flight on a rail, all its links together; 0: no limit */
} gr_core_cfg;

/* NULL when out of memory or descriptors (errno set). Starts the engine's one thread. */
gr_core *gr_core_new(const gr_core_cfg *cfg);
/* Ends the thread; nothing is polled any more except through gr_link_reap. */
void gr_core_stop(gr_core *core);
/* After gr_core_stop, with no link left. */
void gr_core_free(gr_core *core);
/* Index of the rail, or -errno. */
int gr_core_add_rail(gr_core *core, gr_rail *dev);
/* An index for a rail that comes later, or -errno: no link is made on it until gr_core_set_rail, which may be called at any time, once. */
int gr_core_reserve_rail(gr_core *core);
int gr_core_set_rail(gr_core *core, int index, gr_rail *dev);
/* The core forgets its rails; the provider may close them afterwards. After gr_core_stop. */
void gr_core_drop_rails(gr_core *core);

/* ---- forks ---- */

/* A child of fork closes the descriptors that are held: it uses none of them, and would keep connections open when this process has died.
 * Release one before it is closed. Any thread; -ENOMEM. */
int gr_fd_hold(int fd);
void gr_fd_release(int fd);

/* ---- regions ---- */

typedef struct gr_rkey {
    uint64_t key;
    uint64_t base; /* wire address of the region's first byte */
    void *desc;    /* local registration descriptor */
    uint64_t ok;   /* this slot is filled */
} gr_rkey;

typedef struct gr_region {
    _Atomic uint32_t live; /* 0: nothing may be posted on it any more */
    uint32_t pad;
    uint64_t addr;
    uint64_t len;
    gr_rkey rail[]; /* local region: by own rail; remote region: by the peer's rail */
} gr_region;

/* Entry idx of the table, made on first use; never moves. NULL when out of memory or idx is above the limit. */
gr_region *gr_region_at(gr_core *core, uint32_t idx);
void gr_region_live(gr_region *region, int live);

/* From now on call(arg) comes before the application hears that a READ of ours has ended or takes a notification: what devices have written
 * to memory of a GPU is not seen by that GPU's work before. Its threads call it, with no lock held; some microseconds. For good, once for
 * each pair. -ENOSPC when there are too many. */
int gr_core_flush_by(gr_core *core, void (*call)(void *arg), void *arg);

/* ---- sessions and links ---- */

gr_sess *gr_sess_new(gr_core *core, uint64_t id, const char *name, size_t name_len);
void gr_sess_free(gr_sess *sess); /* after its links are gone; undelivered notifications stay deliverable */
/* Hands over a message that Go has put in order; then, when nothing is pending in Go, the core goes on alone from
 * next_seq. handled is how many messages of the session Go has taken in so far. */
int gr_sess_deliver(gr_sess *sess, const void *msg, size_t len);
void gr_sess_resume(gr_sess *sess, uint64_t next_seq, uint64_t handled);
/* Go is done with a message of so many bytes that it was handed (GR_EV_MSG). Until then it counts as undelivered. */
void gr_sess_handled(gr_sess *sess, size_t len);
/* Numbers begin with next, before the first link: both ends' sessions go on from one that was lost. held: Go holds messages behind next. */
void gr_sess_continue(gr_sess *sess, uint64_t next, int held);
/* Nothing that comes from now on is taken in. */
void gr_sess_end(gr_sess *sess);
/* What the core expects next (stale while Go puts messages in order), and how many it has handed to Go. */
uint64_t gr_sess_next_seq(gr_sess *sess, uint64_t *handed);
/* Bytes of notifications accepted and not yet sent. */
uint64_t gr_sess_queued(gr_sess *sess);
/* How many notifications have been numbered: posted at least once, or given up since. */
uint64_t gr_sess_sent(gr_sess *sess);

enum { GR_LINK_TX = 1, GR_LINK_RX = 2 };

/* Posts the receives; -errno on failure. id and peer_id are both sides' numbers of the link, which messages name. peer_rail selects the key slot of remote regions. probe: see gr_link_rebind. */
int gr_link_new(gr_sess *sess, int rail, int peer_rail, void *ep, uint64_t id, uint64_t peer_id, int role, int probe,
                gr_link **out);
/* No more posts on the link; what is posted goes on. Safe to call again. */
void gr_link_stop(gr_link *link);
/* After the endpoint has been closed: takes in every completion there is and ends what has none. */
void gr_link_reap(gr_link *link);
/* Takes in what had completed before the call, on an endpoint that stays. */
void gr_link_catch_up(gr_link *link);
/* What the target's answer to a fence proves: notifications below next have arrived, and those in have (ascending). */
typedef struct gr_proof {
    uint64_t next;
    const uint64_t *have;
    size_t nhave;
} gr_proof;

/* After reap: go on with a new endpoint. What is not proved is sent again, notifications and operations of transfers. With
 * probe nothing but a probe goes out; once the peer has answered it, a LINK event with code 0 comes and gr_link_up lets the link
 * work. A target's link gives that event with the first message of the endpoint. epoch is the caller's number of the endpoint, for events; 0 before the first. */
int gr_link_rebind(gr_link *link, void *ep, uint32_t epoch, const gr_proof *proof, int probe);
void gr_link_up(gr_link *link);
/* After reap, when the target has answered the fence: what the link has goes to other links of the session. */
void gr_link_hand_back(gr_link *link, const gr_proof *proof);
/* Where no fence is to be had: the link has stopped and every operation of it has completed. Transfers of which one failed
 * end with an error: nobody can say when its bytes stop arriving. Then gr_link_hand_back or gr_link_rebind goes on. */
void gr_link_finalize(gr_link *link);
/* Of a link whose endpoint is closed and reaped: transfers that have failed end without the peer's answer to the fence, READs alone or WRITEs
 * too. What of a WRITE lies at the peer may then still land there. */
void gr_link_abandon(gr_link *link, int writes);
/* After reap: whether operations of it failed whose bytes may land until the peer's end is closed. */
int gr_link_unproved(gr_link *link);
/* Relative speed among the session's links, until a rate has been measured on all of them. */
void gr_link_weight(gr_link *link, uint64_t weight);
/* Where the session's notifications go out. A link that is not it any more keeps what was queued until it yields, numbered before
 * what comes then. */
void gr_sess_set_notif_link(gr_sess *sess, gr_link *link);
/* After reap: everything queued on the link ends with err (a negative nixl_status_t). */
void gr_link_fail(gr_link *link, int err);
void gr_link_free(gr_link *link);

enum { GR_LINK_STATE_UP, GR_LINK_STATE_STOPPED, GR_LINK_STATE_DEAD, GR_LINK_STATE_PROBING };

typedef struct gr_link_stats {
    uint64_t completions, errors, inflight_bytes, window, rate; /* rate: bytes/s */
    uint32_t inflight_ops, credits, queued_msgs, queued_subs;
    int32_t state;
} gr_link_stats;
void gr_link_stats_get(gr_link *link, gr_link_stats *out);

/* ---- transfers ---- */

/* What Go reads and writes directly. state: see below. */
struct gr_xfer {
    _Atomic int32_t state;
    _Atomic int32_t err;       /* negative nixl_status_t that ends it, 0 while well */
    _Atomic int32_t wire_err;  /* errno behind err, for the message */
    _Atomic uint32_t subs_left; /* sub-transfers with data still to move: 0 = no memory of either side is in use */
    _Atomic uint64_t handle;   /* {index, generation}; 0: free */
    _Atomic uint64_t last_ns;  /* CLOCK_MONOTONIC of the last progress */
    _Atomic uint64_t done;     /* bytes completed in this round */
    _Atomic uint64_t posted_ns; /* when it was posted */
    _Atomic uint32_t coarse;   /* these times are good to four milliseconds alone: it was not alone on its rails */
    _Atomic uint32_t cached;   /* GR_CACHED_* */
    gr_op *ops;
    uint64_t nops;
    uint64_t bytes; /* of all operations; the caller of gr_xfer_new fills it in with them */
};

/* state: low byte 1 = running, 2 = ended with an error that Go has still to translate; 0 = success; negative = final
 * error, set by Go. GR_XFER_WANT asks for an event at the end. */
enum { GR_XFER_RUNNING = 1, GR_XFER_FAILED = 2, GR_XFER_WANT = 0x100 };

/* The cached lets gr_repost post the transfer the way of its last post: Go gives it with a post that it made itself, and takes
 * it back before anything of what it looked at then changes. Whoever takes it waits while it is in use: that is a post's time,
 * in which no lock of Go's is wanted. */
enum { GR_CACHED_NONE, GR_CACHED_VALID, GR_CACHED_IN_USE };

/* Makes a transfer with room for nops operations, to be filled by the caller. Slots are recycled, never unmapped. */
gr_xfer *gr_xfer_new(gr_core *core, uint64_t handle, int op, uint64_t nops);
/* Makes it one post of all its operations, by a rail that has gr_rail_bulk: they are filled in, and move to that rail's memory. The
 * regions are those that they name. 0 or -ENOMEM. */
int gr_xfer_bulk(gr_core *core, gr_xfer *x, int rail, const uint32_t *local, uint32_t nlocal, const uint32_t *remote, uint32_t nremote);
/* Only when it is not running, and without a cached. */
void gr_xfer_free(gr_core *core, gr_xfer *x);
enum { GR_MAX_LINKS = 64 }; /* of a session */

/* Starts it. The links, all of one session, take its operations as fast as they get them through: a small transfer goes
 * to the link that has least to do, a large one to all that are up. The first near of them are near the local memory and
 * come first; 0: nobody knows, or none is. The caller has set state to running. msg is copied. */
void gr_xfer_post(gr_core *core, gr_xfer *x, gr_link *const *links, uint32_t nlinks, uint32_t near, int has_notif,
                  const void *msg, size_t msg_len);
/* Lets a link take part that has come up since the post. */
void gr_xfer_join(gr_core *core, gr_xfer *x, gr_link *link);
/* Bytes that a link has moved of the transfer in this round; a snapshot. */
uint64_t gr_xfer_share(gr_xfer *x, gr_link *link);
/* Which way the bytes of the last round went, by rail, ours and the peer's: up to max entries, links without any left out;
 * how many there are. Only when the transfer is not running. */
typedef struct gr_path {
    uint32_t own, peer;
    uint64_t bytes;
} gr_path;
uint32_t gr_xfer_paths(gr_xfer *x, gr_path *out, uint32_t max);
/* Drops what is not posted; on return nothing more of it will be. Returns 1 when it has already ended, else 0 and an
 * event will come. */
int gr_xfer_abort(gr_core *core, gr_xfer *x, int err);
/* gr_xfer_abort, unless everything is posted already: then it is left to complete, 0, and ends well. */
int gr_xfer_abort_unposted(gr_core *core, gr_xfer *x, int err);
/* Whether operations of an aborted transfer are posted on the link, or with NULL on any, and not completed: this side's memory is in use.
 * Nobody posts it meanwhile. */
int gr_xfer_posted(gr_core *core, gr_xfer *x, const gr_link *link);
/* Makes progress until the transfer has ended or ns have passed: 1 ended, 0 not. */
int gr_xfer_wait(gr_core *core, gr_xfer *x, uint64_t ns);
/* The end of each batch proves its WRITEs, as if a notification over another link followed: what follows goes another way. Before it is posted. */
void gr_xfer_prove(gr_xfer *x);
/* Whether nothing of a running transfer is posted: 1, 0. A hint. */
int gr_xfer_unposted(const gr_xfer *x);
/* Whether the last post had a notification, and what it was; good until the next post. -1: some of it has gone out, and the peer was not told
 * to go on without it. Only while it is not running. */
int gr_xfer_message(const gr_xfer *x, void **body, uint64_t *len);

/* Queues a notification that belongs to no transfer. -EAGAIN when the session has more than the limit queued. */
int gr_notify(gr_link *link, const void *msg, size_t len);

/* Takes a notification that belongs to no transfer, and that the peer is not known to have, from a link that has stopped and, unless its endpoint
 * is shared, was reaped: 1, or 0 when there is none left, or -ENOMEM. The body is malloc'ed, the taker's. */
typedef struct gr_taken {
    uint64_t seq; /* when it is numbered: the peer may have it */
    uint64_t numbered;
    uint64_t skip; /* for gr_notify_again: the peer goes on without this number */
    uint64_t len;
    void *body;
} gr_taken;
int gr_link_take_msg(gr_link *link, gr_taken *out);
/* Queues one that was taken, whatever is queued already: it was accepted. With a number before all that have none. 0 or -ENOMEM. */
int gr_notify_again(gr_link *link, const gr_taken *t);
/* How many messages with a number the link still has, transfers' among them, and the lowest. Transfers that have one posted end in an error. */
uint32_t gr_link_numbered(gr_link *link, uint64_t *first);

/* ---- events, for one goroutine ---- */

enum { GR_EV_XFER = 1, GR_EV_LINK = 2, GR_EV_MSG = 3 };

typedef struct gr_event {
    int32_t kind;
    int32_t code;   /* XFER: err; LINK: errno */
    uint64_t id;    /* XFER: handle; LINK: link id; MSG: session id */
    uint64_t seq;   /* MSG; LINK: the epoch */
    uint32_t parts; /* MSG */
    uint32_t total;
    uint32_t offset;
    uint32_t len;
    void *data;     /* MSG: malloc'ed, the taker's */
} gr_event;

int gr_event_fd(gr_core *core);
int gr_events_take(gr_core *core, gr_event *out, int max);

/* ---- counters ---- */

enum {
    GR_C_WRS, GR_C_COMPLETIONS, GR_C_ERRORS, GR_C_EAGAIN, GR_C_WRITE_BYTES, GR_C_READ_BYTES, GR_C_XFERS_DONE,
    GR_C_XFERS_FAILED, GR_C_NOTIF_SENT, GR_C_NOTIF_RECEIVED, GR_C_NOTIF_DUP, GR_C_BAD_MSG, GR_C_REPLAYS,
    GR_C_THREAD_WAKES, GR_C_THREAD_LOOKS, GR_C_TO_C_PREP, GR_C_TO_C_POST, /* crossings from Go */
    GR_C_REPOSTS, /* posts that took no step through Go */
    GR_C_CROSS, /* GR_CROSS_COUNT of them follow */
    GR_C_COUNT = GR_C_CROSS + GR_CROSS_COUNT
};
void gr_counters(gr_core *core, uint64_t *out);

/* Of a link, and of a rail: all its links since it was opened, those that are gone included. They only grow. */
enum {
    GR_N_WRITE_BYTES, /* proved */
    GR_N_READ_BYTES,
    GR_N_WRS,         /* RMA work requests posted */
    GR_N_COMPLETIONS, /* of work requests, messages and receives, well or not */
    GR_N_ERRORS,      /* of these, those with an error while the link was in use */
    GR_N_CANCELLED,   /* of these, those with an error when it had stopped */
    GR_N_REFUSED,     /* posts that the provider refused for good */
    GR_N_RETRIES,     /* work requests and messages that had been posted and had to be posted again, here or elsewhere */
    GR_N_EAGAIN,      /* posts refused for now */
    GR_N_MSGS_SENT,   /* notifications, by fragments */
    GR_N_MSGS_RECEIVED,
    GR_N_PROBES,
    GR_N_COUNT
};
typedef struct gr_tally {
    uint64_t count[GR_N_COUNT];
    uint64_t inflight; /* bytes */
    uint64_t rate;     /* of a link, measured, bytes/s; 0: not yet */
    uint32_t links;    /* of a rail, now */
} gr_tally;
/* Neither takes a lock. The link must not be freed meanwhile; rail is an index that gr_core_add_rail gave. */
void gr_link_tally(gr_link *link, gr_tally *out);
void gr_rail_tally(gr_core *core, int rail, gr_tally *out);
uint64_t gr_now_ns(void);

#endif
