#include "refuse.h"
#include "host_signals.h"
#include "room.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <unistd.h>

namespace gorail {

namespace {

// A line of text in a fixed buffer: locks of malloc and of stdio may be held for ever after a fork.
class Line {
  public:
    Line &operator<<(const char *text)
    {
        const size_t n = std::min(std::strlen(text), sizeof(text_) - len_);
        std::memcpy(text_ + len_, text, n);
        len_ += n;
        return *this;
    }
    Line &operator<<(pid_t number)
    {
        char digits[24];
        char *at = digits + sizeof(digits) - 1;
        *at = 0;
        do
            *--at = static_cast<char>('0' + number % 10);
        while ((number /= 10) > 0);
        return *this << at;
    }
    void write_to(int fd) const
    {
        pollfd room = {fd, POLLOUT, 0};
        if (poll(&room, 1, 0) != 1 || room.revents != POLLOUT)
            return;
        sigset_t own, before, pending; // of a pipe without a reader, and of a file that may grow no more (RLIMIT_FSIZE)
        sigemptyset(&own);
        sigaddset(&own, SIGPIPE);
        sigaddset(&own, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &own, &before);
        sigpending(&pending);
        const int raised = write(fd, text_, len_) >= 0 ? 0 : errno == EPIPE ? SIGPIPE : errno == EFBIG ? SIGXFSZ : 0;
        if (raised && !sigismember(&pending, raised)) {
            const timespec now = {};
            sigemptyset(&own);
            sigaddset(&own, raised);
            sigtimedwait(&own, nullptr, &now);
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

  private:
    char text_[512]; // PIPE_BUF or less: a pipe with room takes all of it
    size_t len_ = 0;
};

} // namespace

bool go_runs() noexcept { return !gr_forked() && !no_room(); }

nixl_status_t refuse_without_go(const char *call) noexcept
{
    static std::atomic<pid_t> told;
    const pid_t self = getpid();
    if (told.exchange(self) != self) {
        Line line;
        if (no_room())
            line << "level=ERROR msg=\"GORAIL was loaded, and cannot run: " << no_room() << "\" backend=GORAIL pid=" << self << " call=" << call
                 << " status=NIXL_ERR_BACKEND code=GR-1081\n";
        else
            line << "level=ERROR msg=\"this process was forked from one that has loaded GORAIL: start it by spawn, or load GORAIL only after the "
                    "fork\" backend=GORAIL pid="
                 << self << " call=" << call << " status=NIXL_ERR_BACKEND code=GR-1007\n";
        line.write_to(STDERR_FILENO);
    }
    return NIXL_ERR_BACKEND;
}

nixl_status_t refuse(const char *call, int why) noexcept
{
    if (!go_runs())
        return refuse_without_go(call);
    bind_thread();
    gr_bytes name = {call, std::strlen(call)};
    return static_cast<nixl_status_t>(gorail_refused(&name, why));
}

} // namespace gorail
