// Go's threads take no signal of the host. They inherit the mask of the thread that loads the plugin: all is blocked there while Go
// starts its first one. Go unblocks the three faults (host_faults.cpp) and glibc's own two signals, and no others: its table of signals
// is changed when the plugin is built (internal/runtimeoverlay). It installs no other handler either, and sends no SIGURG.
//
// Go's runtime binds a thread of the host to itself at the thread's first call, and remembers the thread's signal mask. When the thread
// ends, Go sets that mask again. A signal that the host has blocked since then would come on a thread that has almost ended. A Go host
// blocks all signals there, and its handler no longer works: SIGURG, which preempts goroutines, would end the process by SIGSEGV. So
// all signals are blocked during the first call.
#include "host_signals.h"

#include "../backend/include/gr_thread.h"
#include "flat.h"
#include "host_faults.h"
#include "room.h"

#include <csignal>
#include <cstdlib>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

sigset_t of_loader;

// Runs before the constructor of Go's half, which has no priority.
__attribute__((constructor(101))) void before_go()
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &of_loader);
    gorail::room_before_go();
    gorail::faults_before_go();
}

// glibc's handler, by which setuid reaches all threads, must not run on a goroutine's stack. glibc installs it with the first thread,
// and its sigaction hides it. The kernel's struct has the flags second.
void setxid_on_signal_stack()
{
    constexpr int SETXID = 33;
    unsigned long action[4] = {};
    if (syscall(SYS_rt_sigaction, SETXID, nullptr, action, sizeof(unsigned long)) || action[0] == 0)
        return;
    action[1] |= SA_ONSTACK;
    syscall(SYS_rt_sigaction, SETXID, action, nullptr, sizeof(unsigned long));
}

// Runs after it: linkers keep the order of constructors without priority, and the shim is the last.
__attribute__((constructor)) void after_go()
{
    gorail::faults_after_go(gorail::no_room() == nullptr);
    setxid_on_signal_stack();
    pthread_sigmask(SIG_SETMASK, &of_loader, nullptr);
}

// A thread without an alternate signal stack would get one of Go's at its first call, of 32 KiB. The host's handlers with SA_ONSTACK,
// which had the thread's whole stack before, would run there.
//
// During the first call Go opens the faults. Somebody may send one just then, so the thread has a signal stack meanwhile by which
// host_faults.cpp knows that it is ours.
class SignalStack {
public:
    void lend() noexcept
    {
        void *at = mmap(nullptr, GUARD + SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (at == MAP_FAILED)
            return; // Go's, then
        at_ = static_cast<char *>(at);
        if (mprotect(at_, GUARD, PROT_NONE) || set(GR_SIGNAL_STACK, &before_))
            unmap();
    }
    void keep() noexcept
    {
        if (!at_)
            return;
        if (before_.ss_flags & SS_DISABLE)
            set(SIZE, nullptr);
        else if (!sigaltstack(&before_, nullptr))
            unmap();
    }
    ~SignalStack()
    {
        stack_t now = {};
        if (last)
            pthread_sigmask(SIG_SETMASK, nullptr, last);
        if (!at_ || sigaltstack(nullptr, &now))
            return;
        if (now.ss_sp == at_ + GUARD) {
            now.ss_flags = SS_DISABLE;
            if (sigaltstack(&now, nullptr))
                return; // the handler of a signal ends the thread: on it
        }
        unmap();
    }

    // The thread's mask when its destructors begin.
    sigset_t *last = nullptr;

private:
    static constexpr size_t GUARD = 64 << 10; // at least a page
    static constexpr size_t SIZE = 512 << 10; // touched pages count, no others

    int set(size_t size, stack_t *before) noexcept
    {
        stack_t ours = {};
        ours.ss_sp = at_ + GUARD;
        ours.ss_size = size;
        return sigaltstack(&ours, before);
    }
    void unmap() noexcept
    {
        munmap(at_, GUARD + SIZE);
        at_ = nullptr;
    }

    char *at_ = nullptr;
    stack_t before_ = {};
};

// Go blocks all signals in its destructor of the thread, and leaves that. Ours runs after it, as its key is the later one, and before those
// of the host that are later still.
void set_mask(void *mask)
{
    pthread_sigmask(SIG_SETMASK, static_cast<sigset_t *>(mask), nullptr);
    std::free(mask);
}

pthread_key_t after_key()
{
    static const pthread_key_t key = [] {
        pthread_key_t made;
        return pthread_key_create(&made, set_mask) ? static_cast<pthread_key_t>(-1) : made;
    }();
    return key;
}

} // namespace

namespace gorail {

void bind_thread() noexcept
{
    static thread_local bool bound;
    if (bound)
        return;
    bound = true;
    static thread_local SignalStack stack;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    stack.lend();
    {
        Owned version;
        gorail_version(&version); // any call
    }
    pthread_sigmask(SIG_SETMASK, &all, nullptr); // Go has unblocked its five signals
    stack.keep();
    if (auto *last = static_cast<sigset_t *>(std::malloc(sizeof(sigset_t)))) {
        *last = before;
        if (pthread_setspecific(after_key(), last) == 0)
            stack.last = last;
        else
            std::free(last);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

} // namespace gorail
