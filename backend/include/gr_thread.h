/* Threads of our own: they take no signal of the host. */
#ifndef GORAIL_THREAD_H
#define GORAIL_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>

enum {
    /* Bytes of the signal stack of a thread of ours. Go's threads have as much, and by that the plugin knows both
     * (cshim/host_faults.cpp, thread_of_ours). */
    GR_SIGNAL_STACK = 32 << 10,
    GR_LEAST_STACK = 256 << 10 /* a host may have a smaller default */
};

/* Room for handlers of faults, on the thread's own stack. */
typedef struct gr_signal_stack {
    alignas(16) char room[GR_SIGNAL_STACK];
} gr_signal_stack;

/* pthread_attr_init, with a stack that is large enough. */
static inline void gr_thread_attr(pthread_attr_t *attr)
{
    size_t stack;
    pthread_attr_init(attr);
    if (pthread_attr_getstacksize(attr, &stack) == 0 && stack < GR_LEAST_STACK)
        pthread_attr_setstacksize(attr, GR_LEAST_STACK);
}

/* pthread_create of a thread that has all signals blocked from its begin on. */
static inline int gr_thread_create(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    pthread_attr_t attr;
    gr_thread_attr(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

/* A thread of gr_thread_create calls it first. Faults are open from then on: a blocked one ends the process without the
 * host's handler. The stack must last as long as the thread. */
static inline void gr_thread_begin(gr_signal_stack *stack)
{
    const stack_t at = {.ss_sp = stack->room, .ss_flags = 0, .ss_size = sizeof(stack->room)};
    sigset_t faults;
    sigaltstack(&at, NULL);
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
}

/* Its last call: nothing uses the stack from then on. */
static inline void gr_thread_end(void)
{
    const stack_t none = {.ss_sp = NULL, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    sigaltstack(&none, NULL);
}

#endif
