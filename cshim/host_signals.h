#pragma once

#include <csignal>
#include <initializer_list>

namespace gorail {

// Call it on each thread before the thread calls Go. The thread's signal mask stays as it is. A thread without an alternate signal
// stack gets one until it ends. Go turns SIGBUS, SIGFPE and SIGSEGV of its own code into panics if the thread does not block them.
void bind_thread() noexcept;

// While it lives, the calling thread takes no signals but faults, and threads that it starts inherit that.
class SignalsBlocked {
public:
    SignalsBlocked() noexcept
    {
        sigset_t all;
        sigfillset(&all);
        for (const int sig : {SIGBUS, SIGFPE, SIGSEGV})
            sigdelset(&all, sig);
        pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
    sigset_t before_;
};

} // namespace gorail
