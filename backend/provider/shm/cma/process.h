/* The state of other processes' threads. */
#ifndef GORAIL_SHM_PROCESS_H
#define GORAIL_SHM_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether a thread of another process can no longer touch our memory or its own through `call`: a signal has stopped
 * the thread on its way out of the call on this process, or the thread is gone. 0: no, or unknown. */
int cma_stopped(pid_t pid, int tid, long call);
/* The process's state as /proc shows it, such as 'T'; 0: unknown. */
char cma_state(pid_t pid);

#endif
