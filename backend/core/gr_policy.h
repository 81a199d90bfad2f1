/* The core's interface for Go: sessions, links, regions, transfers, events.
 *
 * A session is one direction between two engines; it has a link per pair of rails. The core owns the memory of sessions, links
 * and transfers. Go holds pointers to them and decides when they end. Events carry ids that Go has chosen.
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
    uint64_t window_min;    /* lower and upper limit of a link's window, in bytes in flight */
    uint64_t window_max;
    uint64_t spread_min;    /* transfers of fewer bytes stay on the rails of the first thread */
    uint64_t batch_bytes;   /* bytes that a link takes at a time from a transfer that several links share */
    uint8_t spin_for_peers; /* what was done for a peer counts as work (gr_rail.soon) */
    uint64_t notif_limit;   /* limit of undelivered notification bytes of a session */
    uint64_t notif_total;   /* limit of all sessions together: beyond it a session with much undelivered gets no credits; 0: no limit */
} gr_core_cfg;

/* Starts the engine's first thread. NULL when out of memory or descriptors (errno set). */
gr_core *gr_core_new(const gr_core_cfg *cfg);
/* Ends the threads. From then on only gr_link_reap polls. */
void gr_core_stop(gr_core *core);
/* After gr_core_stop, with every link freed. */
void gr_core_free(gr_core *core);
/* Returns the index of the rail, or -errno. */
int gr_core_add_rail(gr_core *core, gr_rail *dev);
/* Reserves an index, or -errno. gr_core_set_rail adds its rail, at any time, once. Before that gr_link_new refuses the index. */
int gr_core_reserve_rail(gr_core *core);
int gr_core_set_rail(gr_core *core, int index, gr_rail *dev);
/* Removes all rails from the core; the provider may close them afterwards. After gr_core_stop. */
void gr_core_drop_rails(gr_core *core);

/* ---- forks ---- */

/* A child of fork closes the descriptors given to gr_fd_hold: it does not use them, and would keep connections open after this process has
 * died. Call gr_fd_release before closing a descriptor. Any thread; -ENOMEM. */
int gr_fd_hold(int fd);
void gr_fd_release(int fd);

/* ---- regions ---- */

typedef struct gr_rail_key {
    uint64_t key;
    uint64_t base; /* wire address of the region's first byte */
    void *desc;    /* local registration descriptor */
    uint64_t ok;   /* this slot is filled */
} gr_rail_key;

typedef struct gr_region {
    _Atomic uint32_t live; /* 0: no more posts on this region */
    uint32_t pad;
    uint64_t addr;
    uint64_t len;
    gr_rail_key rail[]; /* indexed by rail: local regions by our rail, remote regions by the peer's rail */
} gr_region;

/* Entry idx of the table, made on first use. The entry never moves. NULL when out of memory or when idx is above the limit. */
gr_region *gr_region_at(gr_core *core, uint32_t idx);
void gr_region_live(gr_region *region, int live);

/* Registers call(arg). The call runs before the application learns that a READ has ended or takes a notification, so that a GPU's work sees
 * device writes to its memory. The application's threads call it without locks; some microseconds. Permanent, once for each pair. -ENOSPC
 * when there are too many. */
int gr_core_flush_by(gr_core *core, void (*call)(void *arg), void *arg);

/* ---- sessions and links ---- */

gr_sess *gr_sess_new(gr_core *core, uint64_t id, const char *name, size_t name_len);
void gr_sess_free(gr_sess *sess); /* after its links are freed; notifications that wait can still be taken */
/* gr_sess_deliver queues a message that Go has put in order. gr_sess_resume lets the core take messages in alone again from next_seq,
 * unless it handed more messages to Go than handled. */
int gr_sess_deliver(gr_sess *sess, const void *msg, size_t len);
void gr_sess_resume(gr_sess *sess, uint64_t next_seq, uint64_t handled);
/* Go has handled a message of so many bytes (GR_EV_MSG). Until then its bytes count as undelivered. */
void gr_sess_handled(gr_sess *sess, size_t len);
/* Sets the first sequence number, before the first link: both ends continue a lost session's numbers. held: Go holds messages behind next. */
void gr_sess_continue(gr_sess *sess, uint64_t next, int held);
/* Drops all messages that arrive from now on. */
void gr_sess_end(gr_sess *sess);
/* Returns the number that the core expects next (stale while Go reorders), and how many messages it has handed to Go. */
uint64_t gr_sess_next_seq(gr_sess *sess, uint64_t *handed);
/* Bytes of notifications accepted and not yet sent. */
uint64_t gr_sess_queued(gr_sess *sess);
/* How many notifications have a number: posted at least once, or given up since. */
uint64_t gr_sess_sent(gr_sess *sess);

enum { GR_LINK_TX = 1, GR_LINK_RX = 2 };

/* Makes a link and posts its receives; -errno on failure. id and peer_id are both sides' link numbers, which messages carry. peer_rail
 * selects the key slot of remote regions. probe: see gr_link_rebind. */
int gr_link_new(gr_sess *sess, int rail, int peer_rail, void *ep, uint64_t id, uint64_t peer_id, int role, int probe, gr_link **out);
/* Stops posting on the link; posted operations continue. Repeated calls are safe. */
void gr_link_stop(gr_link *link);
/* After the endpoint was closed: takes in all completions, and ends the operations that have none. */
void gr_link_reap(gr_link *link);
/* Takes in the completions from before the call, on an endpoint that stays open. */
void gr_link_catch_up(gr_link *link);
/* What the target's answer to a fence proves: notifications below next have arrived, and those listed in have (ascending). */
typedef struct gr_proof {
    uint64_t next;
    const uint64_t *have;
    size_t nhave;
} gr_proof;

/* After reap: continues on a new endpoint. Notifications and operations without proof are sent again. With probe only a probe goes out. The
 * peer's answer gives a LINK event with code 0, and gr_link_up then lets the link work. A target's link gives that event with the
 * endpoint's first message. epoch is the caller's number of the endpoint, for events; 0 before the first rebind. -errno: the link has stopped,
 * and has posted nothing but receives. */
int gr_link_rebind(gr_link *link, void *ep, uint32_t epoch, const gr_proof *proof, int probe);
void gr_link_up(gr_link *link);
/* After reap and the target's answer to the fence: hands the link's work to other links of the session. */
void gr_link_hand_back(gr_link *link, const gr_proof *proof);
/* For rails that cannot fence: the link has stopped and all its operations have completed. Transfers with a failed operation end with an
 * error, since their bytes may still land at any time. gr_link_hand_back or gr_link_rebind must follow. */
void gr_link_finalize(gr_link *link);
/* For a link with a closed and reaped endpoint: failed transfers end without the peer's answer to the fence. Only READs, or with writes
 * also WRITEs. Bytes of such a WRITE may still land at the peer. */
void gr_link_abandon(gr_link *link, int writes);
/* After reap: whether failed WRITEs exist whose bytes may land until the peer closes its endpoint. */
int gr_link_unproved(gr_link *link);
/* Sets the link's relative speed among the session's links. It counts until all links have a measured rate. */
void gr_link_weight(gr_link *link, uint64_t weight);
/* Sets the session's notification link. Unnumbered notifications of no transfer move to it from the old link, ahead of later ones. Numbered
 * notifications stay on the old link. */
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

/* The part of a transfer that Go reads and writes directly. state: see below. */
struct gr_xfer {
    _Atomic int32_t state;
    _Atomic int32_t err;       /* negative nixl_status_t of the first error; 0: no error */
    _Atomic int32_t wire_err;  /* errno behind err, for messages */
    _Atomic uint32_t subs_left; /* active sub-transfers; 0: no memory of either side is in use */
    _Atomic uint64_t handle;   /* {index, generation}; 0: free */
    _Atomic uint64_t last_ns;  /* CLOCK_MONOTONIC of the last progress */
    _Atomic uint64_t done;     /* bytes completed in this round */
    _Atomic uint64_t posted_ns; /* time of the post */
    _Atomic uint32_t coarse;   /* the times above are exact to four milliseconds only: other transfers shared the rail */
    _Atomic uint32_t cached;   /* GR_CACHED_* */
    gr_op *ops;
    uint64_t nops, bytes; /* bytes: of all operations; the caller of gr_xfer_new sets it together with the operations */
    _Atomic uint64_t reposts; /* posts by gr_repost since gr_xfer_new */
};

/* state: low byte 1 = running, 2 = ended with an error that Go must still finalize; 0 = success; negative = final error, set by Go.
 * GR_XFER_WANT asks for an event at the end. */
enum { GR_XFER_RUNNING = 1, GR_XFER_FAILED = 2, GR_XFER_WANT = 0x100 };

/* A cached post: gr_repost may post the transfer the way of its last post. Go sets VALID after its own post, and sets NONE before it
 * changes anything that this post relied on. While a post is in progress the state is IN_USE, and REVOKED once Go has withdrawn it: the post
 * then leaves NONE behind. Go waits for that, but not for ever: a post may sit in a system call. Its links and its session are not freed
 * before it has left. */
enum { GR_CACHED_NONE, GR_CACHED_VALID, GR_CACHED_IN_USE, GR_CACHED_REVOKED };

/* Makes a transfer with room for nops operations, which the caller fills in. rail: the operations lie in the memory of that rail with
 * gr_rail_bulk; -1: on the heap. Slots are recycled, and not unmapped while the core lives. NULL: no memory. */
gr_xfer *gr_xfer_new(gr_core *core, uint64_t handle, int op, uint64_t nops, int rail);
/* Before the first post: makes room for nops operations in the memory of that rail, and keeps the first `used` of them. 0 or -ENOMEM: then
 * nothing has changed. */
int gr_xfer_resize(gr_core *core, gr_xfer *x, uint64_t used, uint64_t nops, int rail);
/* Before the first post: makes the transfer one bulk post on the rail whose memory holds its operations. local and remote list the regions
 * that they use. 0 or -ENOMEM. */
int gr_xfer_bulk(gr_xfer *x, const uint32_t *local, uint32_t nlocal, const uint32_t *remote, uint32_t nremote);
/* Only when the transfer is not running and has no cached post. */
void gr_xfer_free(gr_core *core, gr_xfer *x);
enum { GR_MAX_LINKS = 240 }; /* links of a session; their numbers have one byte */

/* Starts the transfer on links of one session. A small transfer goes to the least busy link, a large one to all links that are up. Links
 * take batches as fast as they complete them. The first near links are near the local memory and preferred; 0: none or unknown. The caller
 * has set state to running. msg is copied. */
void gr_xfer_post(gr_core *core, gr_xfer *x, gr_link *const *links, uint32_t nlinks, uint32_t near, int has_notif, const void *msg, size_t msg_len);
/* Lets a link that has come up since the post take batches of the transfer. */
void gr_xfer_join(gr_core *core, gr_xfer *x, gr_link *link);
/* Bytes that a link has moved of the transfer in this round; a snapshot. */
uint64_t gr_xfer_share(gr_xfer *x, gr_link *link);
/* Bytes of the last round by pair of rails (ours, the peer's): up to max entries, pairs without bytes left out. Returns the number of
 * entries. Only when the transfer is not running. */
typedef struct gr_path {
    uint32_t own, peer;
    uint64_t bytes;
} gr_path;
uint32_t gr_xfer_paths(gr_xfer *x, gr_path *out, uint32_t max);
/* Ends the transfer with err: unposted operations are dropped and nothing more is posted after the return. 1: it has ended. 0: an event
 * will come. */
int gr_xfer_abort(gr_core *core, gr_xfer *x, int err);
/* As gr_xfer_abort, unless all operations are posted: then the transfer completes normally, and the result is 0 while it runs. */
int gr_xfer_abort_unposted(gr_core *core, gr_xfer *x, int err);
/* Whether an aborted transfer has operations in flight on the link, or with NULL on any link: our memory is in use. The transfer must not
 * be posted meanwhile. */
int gr_xfer_posted(gr_core *core, gr_xfer *x, const gr_link *link);
/* Makes progress until the transfer has ended or ns have passed: 1 ended, 0 not. */
int gr_xfer_wait(gr_core *core, gr_xfer *x, uint64_t ns);
/* Before the post: makes signaled WRITEs flushed WRITEs, as if the notification took another link, since later work goes another way. */
void gr_xfer_prove(gr_xfer *x);
/* Whether a running transfer has nothing posted: 1, 0. A hint. */
int gr_xfer_unposted(const gr_xfer *x);
/* Whether the last post had a notification, and its body; valid until the next post. -1: parts of it may have gone out, without a SKIP.
 * Only while the transfer is not running. */
int gr_xfer_message(const gr_xfer *x, void **body, uint64_t *len);

/* Queues a notification without a transfer. -EAGAIN when more than the session's limit is queued. */
int gr_notify(gr_link *link, const void *msg, size_t len);

/* Takes a notification that has no transfer and no acknowledgement from a stopped link, which must be reaped unless its endpoint is shared.
 * 1, or 0 when there is none left. The caller frees it with gr_taken_free. */
typedef struct gr_taken {
    uint64_t seq; /* valid if numbered: the peer may have the notification */
    uint64_t numbered;
    uint64_t skip; /* for gr_notify_again: send a SKIP for this number */
    uint64_t len;
    void *body, *mem; /* mem: the message, with the body */
} gr_taken;
int gr_link_take_msg(gr_link *link, gr_taken *out);
void gr_taken_free(gr_taken *t);
/* Queues a taken notification again, whatever the limit: it was accepted before. Numbered ones go first. 0 or -ENOMEM. */
int gr_notify_again(gr_link *link, const gr_taken *t);
/* How many numbered messages the link still has, with those of transfers, and the lowest number. */
uint32_t gr_link_numbered(gr_link *link, uint64_t *first);
/* Transfers whose message is in flight end in an error: the peer may have ended the session before the message arrives. */
void gr_link_fail_unacked(gr_link *link);

/* ---- events, for one goroutine ---- */

enum { GR_EV_XFER = 1, GR_EV_LINK = 2, GR_EV_MSG = 3 };

typedef struct gr_event {
    int32_t kind;
    int32_t code;   /* XFER: err; LINK: errno */
    uint64_t id;    /* XFER: handle; LINK: link id; MSG: session id */
    uint64_t seq;   /* MSG: its number; LINK: the epoch */
    uint32_t subs; /* MSG: sub-transfers; 0: a SKIP */
    uint32_t total;
    uint32_t offset;
    uint32_t len;
    void *data;     /* MSG: malloc'ed; the receiver frees it */
} gr_event;

/* Something happens: threads that sleep longer than usual look, and sleep less. Cheap if none does. */
void gr_core_rouse(gr_core *core);

int gr_event_fd(gr_core *core);
/* Takes events, at most max, which is 2 or more. Their number; 0: there are none. No event is lost for lack of memory: those of links and
 * transfers wait there, and their order for each of them stays. */
int gr_events_take(gr_core *core, gr_event *out, int max);

uint64_t gr_now_ns(void);

#include "gr_counters.h"

#endif
