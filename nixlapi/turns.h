// Loops of the studies: requests that are posted all at once in turns, and plain copies beside them.
#ifndef GORAIL_NIXLAPI_TURNS_H
#define GORAIL_NIXLAPI_TURNS_H

#include <stddef.h>
#include <sys/types.h>

#include "capi.h"
#include "hist.h"

// gn_turns posts n requests one right after the other, waits until all have ended, and begins again until time_ns are over, but has one turn at
// least. post has the time of each post, from before the call to its return, and turn that of all n with their ends. Returns 0, the status of a
// failed call, or 1 when limit_ns ran out.
int gn_turns(void *agent, void *const *req, size_t n, int64_t time_ns, int64_t limit_ns, gn_hist *post, gn_hist *turn);

// gn_copy copies from[i] to to[i] by memcpy, again and again until the time end_ns of gn_now_ns, but once at least. Returns how often.
uint64_t gn_copy(const gn_desc *to, const gn_desc *from, size_t n, int64_t end_ns);

// gn_vm_read reads from[i] of a process to to[i] by process_vm_readv, a call for each, turns times. Returns 0 or errno.
int gn_vm_read(pid_t pid, const gn_desc *to, const gn_desc *from, size_t n, uint64_t turns, gn_hist *took);

#endif
