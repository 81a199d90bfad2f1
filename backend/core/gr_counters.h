/* What the core counts, and notes for those who look at an engine. Part of gr_policy.h. */
#ifndef GORAIL_COUNTERS_H
#define GORAIL_COUNTERS_H

#include "gr_core.h"

enum {
    /* clang-format off */
    GR_C_WRS, GR_C_COMPLETIONS, GR_C_ERRORS, GR_C_EAGAIN, GR_C_WRITE_BYTES, GR_C_READ_BYTES, GR_C_XFERS_DONE, GR_C_XFERS_FAILED,
    GR_C_NOTIF_SENT, GR_C_NOTIF_RECEIVED, GR_C_NOTIF_DUP, GR_C_BAD_MSG, GR_C_CREDITS_HELD, GR_C_REPLAYS, GR_C_THREAD_WAKES, GR_C_THREAD_LOOKS,
    GR_C_TO_C_PREP, GR_C_TO_C_POST, /* calls from Go into C */
    /* clang-format on */
    GR_C_REPOSTS, /* posts without a step through Go */
    GR_C_CROSS, /* GR_CROSS_COUNT counters follow */
    GR_C_COUNT = GR_C_CROSS + GR_CROSS_COUNT
};
void gr_counters(gr_core *core, uint64_t *out);

/* Counters of a link or a rail. A rail counts all its links since it was opened, freed links included. Counters only grow. */
enum {
    GR_N_WRITE_BYTES, /* bytes of completed WRITEs */
    GR_N_READ_BYTES,
    GR_N_WRS,         /* RMA work requests posted */
    GR_N_COMPLETIONS, /* completions of work requests, messages and receives, with or without an error */
    GR_N_ERRORS,      /* completions with an error while the link was in use */
    GR_N_FLUSHED,     /* posted operations that the end of their endpoint or the abort of their transfer has ended: mostly receives */
    GR_N_REFUSED,     /* posts that the provider refused for good */
    GR_N_RETRIES,     /* work requests and messages posted again after a failure, here or on another link */
    GR_N_EAGAIN,      /* posts refused for now */
    GR_N_MSGS_SENT,   /* notification fragments */
    GR_N_MSGS_RECEIVED,
    GR_N_PROBES,
    GR_N_COUNT
};
typedef struct gr_tally {
    uint64_t count[GR_N_COUNT];
    uint64_t inflight; /* bytes in flight */
    uint64_t rate;     /* measured rate of a link, bytes/s; 0: not yet measured */
    uint64_t last_ns;  /* CLOCK_MONOTONIC of the last completion; 0: none yet */
    uint32_t links;    /* current links of a rail */
} gr_tally;
/* Both take no lock. The link must not be freed meanwhile. rail is an index from gr_core_add_rail. */
void gr_link_tally(gr_link *link, gr_tally *out);
void gr_rail_tally(gr_core *core, int rail, gr_tally *out);

/* How long transfers took, from the post to the last completion of their data. A rail counts the transfers whose data it was the last to
 * complete. The classes are sizes: up to 4 KiB, 64 KiB, 1 MiB, 16 MiB, and more. Bucket i counts times below 2^i us, the last one but one
 * all longer ones, and the last one those that are not known exactly (gr_xfer.coarse). Takes no lock. */
enum { GR_TIME_CLASSES = 5, GR_TIME_BUCKETS = 26, GR_TIME_COARSE = GR_TIME_BUCKETS - 1 };
void gr_rail_times(gr_core *core, int rail, uint64_t out[GR_TIME_CLASSES][GR_TIME_BUCKETS]);

/* ---- tracing: without it a transfer reads one pointer ---- */

typedef struct gr_traced { /* a transfer that has ended */
    uint64_t posted_ns, ended_ns; /* CLOCK_MONOTONIC */
    uint64_t handle, bytes, sess; /* sess: the id of the last session that it was posted on; 0: none */
    uint64_t rails; /* a bit for each of our rails that moved bytes of it */
    int32_t op, err;
    uint32_t coarse; /* as in gr_xfer */
} gr_traced;
/* Notes all transfers that end from now on, up to GR_TRACE_MAX. Its memory (5 MiB) stays until the core is freed. 0, -EBUSY or -ENOMEM. */
enum { GR_TRACE_MAX = 1 << 16 };
int gr_trace_start(gr_core *core);
/* Ends the notes and returns how many there are, in out. *lost: transfers that found no room. */
uint64_t gr_trace_stop(gr_core *core, gr_traced *out, uint64_t *lost);

#endif
