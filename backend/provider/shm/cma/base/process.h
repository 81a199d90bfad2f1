/* What needs no rail: copies that survive missing memory, and the state of other processes' threads. */
#ifndef GORAIL_SHM_PROCESS_H
#define GORAIL_SHM_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* ---- guard.c ---- */

typedef struct cma_span {
    void *to;
    const void *from;
    size_t len;
} cma_span;

/* Installs the handler of SIGSEGV and SIGBUS, once. The plugin does so when it is loaded: a handler that the host installs later is in
 * front, and stays there. Other programs need not call it. */
void cma_guard_install(void);
/* Copies spans. EFAULT: some memory is not there. */
int cma_move(uint32_t n, const cma_span *span);

/* ---- stopped.c ---- */

/* Whether a thread of another process can no longer touch our memory or its own through `call`: a signal has stopped
 * the thread on its way out of the call on this process, or the thread is gone. 0: no, or unknown. */
int cma_stopped(pid_t pid, int tid, long call);
/* The process's state as /proc shows it, such as 'T'; 0: unknown. */
char cma_state(pid_t pid);

#endif
