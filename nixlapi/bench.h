// The timed loops of gorail bench.
#ifndef GORAIL_NIXLAPI_BENCH_H
#define GORAIL_NIXLAPI_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "hist.h"

// gn_bench is one thread of an initiator: its settings and its results.
typedef struct {
    void *agent;
    void **req;      // depth requests
    size_t depth;
    uint64_t warmup; // posts before the clock starts
    uint64_t count;  // 0: as many as fit into time_ns
    int64_t time_ns;
    int64_t limit_ns; // give up after this time
    int *gate;        // threads still warming up; timing starts at 0

    uint64_t posted; // including those before the clock started
    uint64_t done;   // timed
    int64_t wall_ns;
    int status;
    gn_hist lat;  // from before post to seen complete
    gn_hist post; // inside post
} gn_bench;

// gn_bench_run keeps depth requests in flight, posts each at least once, and polls them in turn. No Go code runs in
// between. Returns b->status: 0, the status of a failed call, or 1 when limit_ns ran out.
int gn_bench_run(gn_bench *b);

// gn_serve polls notifications until *want have come since the start, *stop is set, or limit_ns is over. It sleeps
// nap_ns after each empty poll. It counts in *seen.
int gn_serve(void *agent, void *map, const uint64_t *want, const int *stop, int64_t limit_ns, int64_t nap_ns, uint64_t *seen);

// gn_notify sends the same notification n times, one after the other.
int gn_notify(void *agent, const char *peer, const void *msg, size_t len, void *opt, uint64_t n, uint64_t *sent);

#endif
