// SIGBUS, SIGFPE and SIGSEGV: a fault of Go code becomes a panic, which the plugin answers with an error. So the plugin needs handlers
// of these three signals. Everything else is the host's, as it was before the plugin was loaded:
//
//   - its handler is called, with the mask that the kernel would set;
//   - where it had none, the default action is put back, and the signal comes again: a fault by the instruction that caused it, a signal that
//     somebody has sent by sending it;
//   - a signal that it ignores is left to it: programs that it executes inherit that. A fault ends the process then, of Go code, too.
//
// A handler that the host installs later takes our place, and may call ours. A fault of Go code is then the host's, too.
#include "host_faults.h"

#include "../backend/include/gr_thread.h"

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

bool handled(const struct sigaction &a) { return (a.sa_flags & SA_SIGINFO) || (a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN); }

void set_default(int sig)
{
    struct sigaction none = {};
    none.sa_handler = SIG_DFL;
    sigaction(sig, &none, nullptr);
}

// A host's handler without SA_ONSTACK on a signal stack that the host made for others: it may be too small. The plugin's own is not
// (host_signals.cpp).
bool on_small_stack(const struct sigaction &host, const ucontext_t *context)
{
    constexpr size_t LARGE = 256 << 10;
    const stack_t &stack = context->uc_stack;
    return !(host.sa_flags & SA_ONSTACK) && !(stack.ss_flags & SS_DISABLE) && stack.ss_size < LARGE;
}

// Calls the host's handler as the kernel would. All signals are blocked until then; the return restores the mask.
void call_host(Fault &f, siginfo_t *info, void *context)
{
    const struct sigaction host = f.host;
    sigset_t mask = static_cast<ucontext_t *>(context)->uc_sigmask;
    for (int sig = 1; sig <= SIGRTMAX; sig++)
        if (sigismember(&host.sa_mask, sig) == 1)
            sigaddset(&mask, sig);
    if (!(host.sa_flags & SA_NODEFER))
        sigaddset(&mask, f.sig);
    if (host.sa_flags & SA_RESETHAND) {
        set_default(f.sig);
        f.host.sa_flags = 0;
        f.host.sa_handler = SIG_DFL;
    }
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    if (host.sa_flags & SA_SIGINFO)
        host.sa_sigaction(f.sig, info, context);
    else
        host.sa_handler(f.sig);
}

// Reports whether the signal must come again, with the host's own action in place.
bool give_to_host(Fault &f, siginfo_t *info, void *context)
{
    if (handled(f.host) && !on_small_stack(f.host, static_cast<ucontext_t *>(context))) {
        call_host(f, info, context);
        return false;
    }
    if (handled(f.host))
        sigaction(f.sig, &f.host, nullptr);
    else
        set_default(f.sig);
    return true;
}

Fault *fault_of(int sig)
{
    for (Fault &f : faults)
        if (f.sig == sig)
            return &f;
    return nullptr;
}

// Go's handler calls it when a fault is not one of Go code.
void not_of_go(int sig, siginfo_t *info, void *context) { give_to_host(*fault_of(sig), info, context); }

// Threads of Go and of the C core have blocked all but the three signals and glibc's own, and a signal stack of GR_SIGNAL_STACK. The mask is that of before the handler.
bool thread_of_ours(const ucontext_t *context)
{
    if (context->uc_stack.ss_size != GR_SIGNAL_STACK)
        return false;
    for (int sig = 1; sig <= SIGRTMAX; sig++) {
        const bool open = sig == SIGBUS || sig == SIGFPE || sig == SIGSEGV || sig == SIGKILL || sig == SIGSTOP || (sig > 31 && sig < SIGRTMIN);
        if (!open && sigismember(&context->uc_sigmask, sig) != 1)
            return false;
    }
    return true;
}

// Another thread of the process gets the signal, or it stays pending for whoever reads it. Each thread of ours that the kernel picks
// does the same; a fault there ends the process from now on. The kernel lets a thread send what came with the signal to itself alone, and
// a signal to the thread's number by this call is one to the process.
void pass_on(int sig, siginfo_t *info, ucontext_t *context)
{
    sigaddset(&context->uc_sigmask, sig);
    if (syscall(SYS_rt_sigqueueinfo, syscall(SYS_gettid), sig, info))
        kill(getpid(), sig); // too many are queued: without what came with it
}

// Whether the instruction will fault again. 8 is SEGV_MTEAERR: of memory tags on aarch64, late.
bool comes_again(int sig, const siginfo_t *info)
{
    return info->si_code > 0 && !(sig == SIGBUS && info->si_code == BUS_MCEERR_AO) && !(sig == SIGSEGV && info->si_code == 8);
}

void on_fault(int sig, siginfo_t *info, void *context)
{
    const int saved = errno;
    Fault &f = *fault_of(sig);
    if (comes_again(sig, info))
        f.go.sa_sigaction(sig, info, context);
    else if (thread_of_ours(static_cast<ucontext_t *>(context)))
        pass_on(sig, info, static_cast<ucontext_t *>(context));
    else if (give_to_host(f, info, context) && syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), sig, info))
        raise(sig);
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
    for (Fault &f : faults) {
        const bool ignored = !handled(f.host) && f.host.sa_handler == SIG_IGN;
        struct sigaction ours = {};
        ours.sa_sigaction = on_fault;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (handled(f.host) ? f.host.sa_flags & SA_RESTART : SA_RESTART);
        sigfillset(&ours.sa_mask);
        sigaction(f.sig, started && !ignored ? &ours : &f.host, &f.go);
    }
}

} // namespace gorail
