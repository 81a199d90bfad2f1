// Go's runtime takes over SIGPIPE and SIGURG when the plugin is loaded. The host gets both back where that is safe.
//
// SIGURG only preempts goroutines. Without it they run to their next call. Its default action is to be ignored. SIGPIPE
// stays with Go unless the host ignored it: with the default action a broken control connection would end the host, and
// Go's handler prevents that.
//
// SIGTERM stays the host's, unless a stats_file must be written before it ends the process.
//
// Go's runtime binds a thread to itself at the thread's first call, and remembers the thread's signal mask. When the thread ends,
// Go sets that mask again. A signal that the host has blocked since then would come on a thread that has almost ended. A Go host blocks
// all signals there, and its handler no longer works: SIGURG, which preempts goroutines, would end the process by SIGSEGV. So
// all signals are blocked during the first call.
#include "host_signals.h"

#include "flat.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

namespace {

struct sigaction pipe_before, urg_before;

// Runs before the constructor of Go's half, which has no priority.
__attribute__((constructor(101))) void remember()
{
    sigaction(SIGPIPE, nullptr, &pipe_before);
    sigaction(SIGURG, nullptr, &urg_before);
}

int32_t (*the_last)();
int told = -1; // eventfd: SIGTERM has come
pid_t owner;

// A fork's child has no thread that would end it, so there the signal gets its default action again.
void on_term(int sig)
{
    const int saved = errno;
    if (getpid() == owner) {
        const uint64_t one = 1;
        if (write(told, &one, sizeof one) == sizeof one) {
            errno = saved;
            return;
        }
    }
    signal(sig, SIG_DFL);
    raise(sig); // takes effect when this handler returns
    errno = saved;
}

void await_term()
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    uint64_t n = 0;
    while (read(told, &n, sizeof n) < 0 && errno == EINTR)
        ;
    the_last();
    signal(SIGTERM, SIG_DFL);
    kill(owner, SIGTERM);
}

void take_term()
{
    struct sigaction now = {};
    sigaction(SIGTERM, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL)
        return;
    told = eventfd(0, EFD_CLOEXEC);
    if (told < 0)
        return;
    owner = getpid();
    std::thread(await_term).detach();
    struct sigaction ours = {};
    ours.sa_handler = on_term;
    ours.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(SIGTERM, &ours, nullptr);
}

} // namespace

namespace gorail {

void restore_host_signals()
{
    static std::atomic_flag done = ATOMIC_FLAG_INIT;
    if (done.test_and_set())
        return;
    sigaction(SIGURG, &urg_before, nullptr);
    if (!(pipe_before.sa_flags & SA_SIGINFO) && pipe_before.sa_handler == SIG_IGN)
        sigaction(SIGPIPE, &pipe_before, nullptr);
}

void bind_thread() noexcept
{
    static thread_local bool bound;
    if (bound)
        return;
    bound = true;
    constexpr int faults[] = {SIGBUS, SIGFPE, SIGSEGV};
    sigset_t all, before;
    sigfillset(&all);
    for (const int sig : faults)
        sigdelset(&all, sig);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    {
        Owned version;
        gorail_version(&version); // any call
    }
    for (const int sig : faults)
        sigdelset(&before, sig);
    pthread_sigmask(SIG_SETMASK, &before, nullptr); // Go has unblocked SIGCHLD and SIGPROF, too
}

void call_before_end(int32_t (*last)()) noexcept
{
    static std::once_flag once;
    try {
        std::call_once(once, [last] {
            the_last = last;
            (void)std::atexit([] {
                if (!gr_forked())
                    the_last();
            });
            take_term();
        });
    } catch (...) { // no thread: counters are written at a clean end only
    }
}

} // namespace gorail
