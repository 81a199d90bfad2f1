/* The core of an engine in C: what must not wait for the Go scheduler. It posts and polls work requests, counts
 * transfers down, and sends and takes in notifications. Policy (peers, keys, errors, replays) is Go's, which is told
 * through events.
 *
 * This header is the shim's part; gr_policy.h is Go's.
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

/* True in a child of fork(): no engine works there, and entering Go could hang. The shim asks before every call. */
int gr_forked(void);

/* Status of a transfer, a nixl_status_t value. While it is in progress the call also makes one bounded step of progress.
 * A handle whose generation has passed gives NIXL_ERR_NOT_FOUND. */
int gr_check(gr_core *core, gr_xfer *slot, uint64_t handle);

/* Posts a transfer that ended well once more, the way it went before. Returns 1 (in progress), 0 (done already), or
 * GR_NOT_TAKEN: it has to go through Go, which finds out what has changed and gives the errors. msg is copied. */
enum { GR_NOT_TAKEN = -1 };
int gr_repost(gr_core *core, gr_xfer *slot, uint64_t handle, int has_notif, const void *msg, size_t len);

/* Bytes of one notification. */
enum { GR_MAX_NOTIF = 64 << 20 };

/* A received notification; owned by the caller of gr_notif_take, freed by gr_notif_free. */
typedef struct gr_notif {
    struct gr_notif *next;
    const char *name; /* sender's agent name, not NUL-terminated */
    const char *msg;
    uint64_t name_len;
    uint64_t msg_len;
    void *origin; /* the core's */
} gr_notif;

/* Takes all notifications that have arrived, oldest first, after one bounded step of progress; NULL when there are none. */
gr_notif *gr_notif_take(gr_core *core);
void gr_notif_free(gr_core *core, gr_notif *list);

/* Counters of crossings, bumped by the shim before it enters Go; checks and notifications never do. */
enum { GR_CROSS_PREP, GR_CROSS_POST, GR_CROSS_OTHER, GR_CROSS_COUNT };
void gr_crossed(gr_core *core, int which);

#ifdef __cplusplus
}
#endif
#endif
