// Copies that no backend of NIXL's can beat, timed as nixlapi/bench.c times transfers.
#ifndef GORAIL_LIMITS_H
#define GORAIL_LIMITS_H

#include <stddef.h>

#include "hist.h"

typedef struct {
    void *local;
    void *remote; // in this process (memcpy), in the other (process_vm); not looked at with a socket
    size_t len;
} lim_desc;

enum { LIM_MEMCPY, LIM_PROCESS_VM, LIM_TCP };

// lim_job is one thread: what it copies again and again, and what it saw. The names are gn_bench's.
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
    int64_t wall_ns;
    int error; // errno
    gn_hist lat;
} lim_job;

void lim_run(lim_job *j);

// lim_answer is the target's side of LIM_TCP: obeys the connection's other end until it closes. 0 or errno.
int lim_answer(int fd, const lim_desc *desc, size_t n);

// lim_poll looks at *stop until it isn't 0 or limit_ns are over, with a nap after each look if nap_ns isn't 0: what a target that waits for a
// notification does, without the notifications.
void lim_poll(const int *stop, int64_t limit_ns, int64_t nap_ns);

// lim_allow lets any process of this user read and write our memory, where Yama asks for that.
void lim_allow(void);

#endif
