// Copies that no NIXL backend can beat, timed as nixlapi/bench.c times transfers.
#ifndef GORAIL_LIMITS_H
#define GORAIL_LIMITS_H

#include <stddef.h>

#include "hist.h"

typedef struct {
    void *local;
    void *remote; // in this process (memcpy) or the other (process_vm); unused with a socket
    size_t len;
} lim_desc;

enum { LIM_MEMCPY, LIM_PROCESS_VM, LIM_TCP };

// lim_job is one thread: its repeated copy and its results. The names are those of gn_bench.
typedef struct {
    int kind;
    int write;
    int pid, fd;
    const lim_desc *desc;
    size_t n;
    uint64_t warmup, count;
    int64_t time_ns, limit_ns;
    int *gate;

    uint64_t posted, done;
    int64_t began_ns;
    int64_t wall_ns;
    int error; // errno
    gn_hist lat;
} lim_job;

void lim_run(lim_job *j);

// lim_answer is the target's side of LIM_TCP. It serves the connection until the other end closes it. Returns 0 or
// errno.
int lim_answer(int fd, const lim_desc *desc, size_t n, int write);

// lim_poll polls *stop until it is not 0 or limit_ns have passed. It naps nap_ns after each poll if nap_ns is not 0. It
// does the work of a target that waits for a notification, without the notifications.
void lim_poll(const int *stop, int64_t limit_ns, int64_t nap_ns);

// lim_allow lets any process of this user read and write our memory, where Yama requires that.
void lim_allow(void);

#endif
