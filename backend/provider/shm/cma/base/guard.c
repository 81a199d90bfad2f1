/* Copies by memcpy that survive memory which is not there: an application may unmap what it has registered, and a hostile peer may
 * take the pages of a ring away. The kernel's copies survive that, too, and take three times as long within a cache: 256 KiB 12.9 us
 * instead of 4.8.
 *
 * The handler of SIGSEGV and SIGBUS returns to the copy that the faulting thread makes. All other faults go to the handler
 * that was there before. A thread that blocks these signals, and all threads once another handler is in our place, copy by
 * process_vm_writev on this process. They look at that every RECHECK copies. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "process.h"

enum {
    COPIES = 64,   /* copies that are made at a time; one more waits. A power of two */
    RECHECK = 256, /* two system calls in 256 copies: 2 ns a copy */
};

/* Threads are told apart by pthread_self, which is no memory of a dynamic TLS block: a handler may not allocate that. */
static struct guard {
    _Alignas(64) _Atomic uintptr_t thread; /* 0: free */
    sigjmp_buf *volatile back;
} guards[COPIES];
static struct sigaction before[2];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t self = (uintptr_t)pthread_self();
    for (int i = 0; i < COPIES; i++)
        if (atomic_load_explicit(&guards[i].thread, memory_order_relaxed) == self && guards[i].back && info->si_code > 0)
            siglongjmp(*guards[i].back, 1);
    const struct sigaction *old = &before[sig == SIGBUS];
    int handled = (old->sa_flags & SA_SIGINFO) || (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN);
    if (handled)
        pthread_sigmask(SIG_BLOCK, &old->sa_mask, NULL); /* the return from the signal restores the mask */
    errno = saved;
    if (old->sa_flags & SA_SIGINFO)
        old->sa_sigaction(sig, info, context);
    else if (handled)
        old->sa_handler(sig);
    else if (old->sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    else if (sigaction(sig, old, NULL) == 0 && info->si_code <= 0) /* sent by a process; a fault comes again by itself */
        raise(sig);
}

/* Copies that other threads made at the time of the fork. */
static void in_child(void)
{
    for (int i = 0; i < COPIES; i++) {
        guards[i].back = NULL;
        atomic_store(&guards[i].thread, 0);
    }
}

static void install(void)
{
    struct sigaction on = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    (void)pthread_atfork(NULL, NULL, in_child);
    sigaction(SIGSEGV, &on, &before[0]);
    sigaction(SIGBUS, &on, &before[1]);
}

static int in_place(int sig)
{
    struct sigaction now;
    return sigaction(sig, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault;
}

/* Whether a fault of this thread would come to our handler. */
static int guarded(void)
{
    static _Thread_local uint32_t copies;
    static _Thread_local int good;
    sigset_t blocked;
    if (copies++ % RECHECK == 0)
        good = pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGSEGV) && !sigismember(&blocked, SIGBUS) &&
               in_place(SIGSEGV) && in_place(SIGBUS);
    return good;
}

static struct guard *enter(void)
{
    uintptr_t self = (uintptr_t)pthread_self();
    for (uint32_t i = (uint32_t)(self >> 12);; i++) {
        struct guard *g = &guards[i % COPIES];
        uintptr_t free = 0;
        if (atomic_compare_exchange_strong_explicit(&g->thread, &free, self, memory_order_acquire, memory_order_relaxed))
            return g;
    }
}

/* Copies by the kernel. Where seccomp forbids the call, there is no copy that survives. */
static int move_by_kernel(const cma_span *s)
{
    for (size_t at = 0; at < s->len;) {
        struct iovec from = {(char *)(uintptr_t)s->from + at, s->len - at}, to = {(char *)s->to + at, s->len - at};
        ssize_t got = process_vm_writev(getpid(), &from, 1, &to, 1, 0);
        if (got < 0 && (errno == EPERM || errno == ENOSYS)) {
            memcpy(to.iov_base, from.iov_base, to.iov_len);
            return 0;
        }
        if (got <= 0)
            return got == 0 ? EFAULT : errno;
        at += (size_t)got;
    }
    return 0;
}

void cma_guard_install(void) { pthread_once(&once, install); }

int cma_move(uint32_t n, const cma_span *span)
{
    volatile int err = 0;
    cma_guard_install();
    if (!guarded()) {
        for (uint32_t i = 0; !err && i < n; i++)
            err = move_by_kernel(&span[i]);
        return err;
    }
    sigjmp_buf back;
    struct guard *volatile g = enter();
    if (sigsetjmp(back, 0) == 0) {
        g->back = &back;
        atomic_signal_fence(memory_order_seq_cst);
        for (uint32_t i = 0; i < n; i++)
            memcpy(span[i].to, span[i].from, span[i].len);
        atomic_signal_fence(memory_order_seq_cst);
    } else {
        err = EFAULT;
    }
    g->back = NULL;
    atomic_store_explicit(&g->thread, 0, memory_order_release);
    return err;
}
