/* The core of an engine in C: the work that must not wait for the Go scheduler. The core posts and polls work requests, counts
 * transfers down, and sends and receives notifications. Go decides policy (peers, keys, errors, replays) and learns of events
 * through gr_event.
 *
 * This header is for the shim; gr_policy.h is for Go.
 */
#ifndef GORAIL_CORE_H
#define GORAIL_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gr_core gr_core;
typedef struct gr_xfer gr_xfer;

/* ---- for the shim: any thread, no crossing into Go ---- */

/* True in a child of fork(). No engine works there, and entering Go could hang. The shim asks before every call. */
int gr_forked(void);

/* Status of a transfer, a nixl_status_t value. While the transfer is in progress the call also makes one bounded step of
 * progress. A handle of an earlier generation gives NIXL_ERR_NOT_FOUND. */
int gr_check(gr_core *core, gr_xfer *slot, uint64_t handle);

/* Posts a transfer again over the links of its last post, if that post ended well. 1: in progress. 0: done already.
 * GR_NOT_TAKEN: the post must go through Go, which finds out what has changed and reports errors. msg is copied. */
enum { GR_NOT_TAKEN = -1 };
int gr_repost(gr_core *core, gr_xfer *slot, uint64_t handle, int has_notif, const void *msg, size_t len);

/* Largest notification in bytes. */
enum { GR_MAX_NOTIF = 64 << 20 };

/* A received notification. The caller of gr_notif_take owns it and frees it with gr_notif_free. */
typedef struct gr_notif {
    struct gr_notif *next;
    const char *name; /* sender's agent name, not NUL-terminated */
    const char *msg;
    uint64_t name_len;
    uint64_t msg_len;
    void *origin; /* used by the core */
} gr_notif;

/* Makes one bounded step of progress, then takes all notifications that have arrived, oldest first; NULL when there are
 * none. */
gr_notif *gr_notif_take(gr_core *core);
void gr_notif_free(gr_core *core, gr_notif *list);

/* Counts a call from the shim into Go. The shim calls it before it enters Go. Checks and notifications do not enter Go. */
enum { GR_CROSS_PREP, GR_CROSS_POST, GR_CROSS_OTHER, GR_CROSS_COUNT };
void gr_crossed(gr_core *core, int which);

#ifdef __cplusplus
}
#endif
#endif
