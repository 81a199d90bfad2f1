// Go's runtime takes over SIGPIPE and SIGURG when the plugin is loaded. The host gets both back where that is safe.
//
// SIGURG only preempts goroutines. Without it they run to their next call. Its default action is to be ignored. SIGPIPE
// stays with Go unless the host ignored it: with the default action a broken control connection would end the host, and
// Go's handler prevents that.
#include "host_signals.h"

#include <atomic>
#include <csignal>

namespace {

struct sigaction pipe_before, urg_before;

// Runs before the constructor of Go's half, which has no priority.
__attribute__((constructor(101))) void remember()
{
    sigaction(SIGPIPE, nullptr, &pipe_before);
    sigaction(SIGURG, nullptr, &urg_before);
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

} // namespace gorail
