// SIGBUS, SIGFPE and SIGSEGV: a fault of Go code becomes a panic, which the plugin answers with an error. So the plugin needs handlers
// of these three signals. For everything else they give the host its own action back, for good, and the signal comes again: a fault by the instruction that caused it, a signal that somebody has
// sent by sending it. The host finds what it would have found without us: its handler's stack, mask and flags, or its end.
//
// A handler that the host installs later takes our place. A fault of Go code is then the host's, too.
#include "host_faults.h"

#include <cerrno>
#include <csignal>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

struct Fault {
    int sig;
    struct sigaction host, go;
};
Fault faults[] = {{SIGBUS, {}, {}}, {SIGFPE, {}, {}}, {SIGSEGV, {}, {}}};

void give_back(int sig)
{
    for (const Fault &f : faults)
        if (f.sig == sig)
            sigaction(sig, &f.host, nullptr);
}

// Go's handler calls it when a fault is not one of Go code.
void not_of_go(int sig, siginfo_t *, void *) { give_back(sig); }

// Threads of Go and of the C core have blocked all but the three signals and glibc's own, and their signal stack has 32 KiB
// (gr_thread.h). The mask is that of before the handler.
bool thread_of_ours(const ucontext_t *context)
{
    constexpr size_t SIGNAL_STACK = 32 << 10;
    const stack_t &stack = context->uc_stack;
    if (stack.ss_size != SIGNAL_STACK)
        return false;
    for (int sig = 1; sig <= SIGRTMAX; sig++) {
        const bool open = sig == SIGBUS || sig == SIGFPE || sig == SIGSEGV || sig == SIGKILL || sig == SIGSTOP || (sig > 31 && sig < SIGRTMIN);
        if (!open && sigismember(&context->uc_sigmask, sig) != 1)
            return false;
    }
    return true;
}

// Another thread of the process gets the signal, or it stays pending for whoever reads it. Each thread of ours that the kernel picks
// does the same; a fault there ends the process from now on.
void pass_on(int sig, siginfo_t *info, ucontext_t *context)
{
    sigaddset(&context->uc_sigmask, sig);
    if (syscall(SYS_rt_sigqueueinfo, getpid(), sig, info))
        kill(getpid(), sig); // too many are queued: without what came with it
}

void on_fault(int sig, siginfo_t *info, void *context)
{
    const int saved = errno;
    const bool comes_again = info->si_code > 0 && !(sig == SIGBUS && info->si_code == BUS_MCEERR_AO);
    if (comes_again) {
        for (const Fault &f : faults)
            if (f.sig == sig)
                f.go.sa_sigaction(sig, info, context);
    } else if (thread_of_ours(static_cast<ucontext_t *>(context))) {
        pass_on(sig, info, static_cast<ucontext_t *>(context));
    } else {
        give_back(sig);
        if (syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), sig, info))
            raise(sig);
    }
    errno = saved;
}

} // namespace

namespace gorail {

void faults_before_go() noexcept
{
    struct sigaction ours = {};
    ours.sa_sigaction = not_of_go;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (Fault &f : faults)
        sigaction(f.sig, &ours, &f.host);
}

void faults_after_go(bool started) noexcept
{
    if (!started) {
        for (const Fault &f : faults)
            give_back(f.sig);
        return;
    }
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigfillset(&ours.sa_mask);
    for (Fault &f : faults)
        sigaction(f.sig, &ours, &f.go);
}

} // namespace gorail
