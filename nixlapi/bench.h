// The timed loops of gorail bench.
#ifndef GORAIL_NIXLAPI_BENCH_H
#define GORAIL_NIXLAPI_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "hist.h"

// gn_blocks describes a request that is made anew before each post, from prepared lists of blocks. Each post takes the next set of ids.
typedef struct {
    int op;
    void *local, *remote; // prepared lists
    const int *local_ids; // sets * n
    const int *remote_ids;
    size_t n; // blocks of a request
    size_t sets;
    void *opt; // of make_xfer_req
} gn_blocks;

// gn_bench is one thread of an initiator: its settings and its results.
typedef struct {
    void *agent;
    void **req;              // depth requests; with blocks their places
    const gn_blocks *blocks; // depth of them, or NULL
    size_t depth;
    uint64_t warmup; // posts before the clock starts
    uint64_t count;  // 0: as many as fit into time_ns
    int64_t time_ns;
    int64_t limit_ns; // give up after this time
    int *gate;        // threads still warming up; timing starts at 0
    int64_t start_ns; // and not before this time of gn_now_ns

    uint64_t *posts; // of each request, including those before the clock started
    uint64_t posted; // sum of these
    uint64_t done;   // timed
    int64_t began_ns; // when timing started, by gn_now_ns
    int64_t wall_ns;
    int64_t gap_ns; // the longest time without a completion while timed
    int status;
    gn_hist lat;  // from before post to seen complete
    gn_hist post; // inside post
    gn_hist make; // inside make_xfer_req
} gn_bench;

// gn_bench_run keeps depth requests in flight, posts each at least once (each set of blocks at least once), and polls them in turn. No Go
// code runs in between. Returns b->status: 0, the status of a failed call, or 1 when limit_ns ran out.
int gn_bench_run(gn_bench *b);

// gn_serve polls the notifications of n agents in turn, until *want have come since the start, *stop is set, or limit_ns is over. It
// sleeps nap_ns after each round that found none. It counts in *seen.
int gn_serve(void *const *agents, void *const *maps, size_t n, const uint64_t *want, const int *stop, int64_t limit_ns, int64_t nap_ns,
             uint64_t *seen);

// gn_notify sends the same notification n times, one after the other.
int gn_notify(void *agent, const char *peer, const void *msg, size_t len, void *opt, uint64_t n, uint64_t *sent);

#endif
