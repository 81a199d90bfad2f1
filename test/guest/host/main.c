// host HOW WHEN BUSY FRAME LIBRARY BACKEND SIGNAL...: takes signals in one way, and says which have come.
//
//   HOW      blocked: read by signalfd, awaited: read by sigtimedwait, handler, onstack: a handler with SA_ONSTACK, default, ignored,
//            jump, jumponstack: a handler that jumps away, for SIGBUS, SIGFPE and SIGSEGV
//   WHEN     before: all is set before NIXL is loaded; after
//   BUSY     busy: a thread transfers all the time; idle
//   LIBRARY  libnixl_capi.so; -: without NIXL
//
// It prints "ready", and a line for each signal that comes: "SIGNAL host" or "SIGNAL foreign". A line on its standard input is printed
// again: so the other side knows that it lives. A line "fault SIGNAL" makes it fault; with a handler that jumps away it says "back". It ends, with its agents closed, when its standard input does.
//
// host storm SECONDS MICROSECONDS FRAME LIBRARY BACKEND: the storm of storm.c.
//
// host threads COUNT STACK FRAME LIBRARY BACKEND: transfers of short-lived threads, with stacks of STACK bytes.
//
// host room WHAT MOST FRAME LIBRARY BACKEND: loads the plugin within a limit of "addresses" or "threads". "later": of no threads more, but
// only after its agents are made; then it makes transfers for two seconds, and one agent more.
//
// host panic PLUGIN OFFSET FRAME LIBRARY BACKEND: calls the plugin's function at the offset, which faults, and prints its status, twice. The
// host has a handler, and faults between. In the end it installs another one, which calls the plugin's for what it does not know.
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static sigset_t wanted;
static const char *how;
static size_t frame;
static atomic_int over;

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(3);
}

static int is(const char *what) { return strcmp(how, what) == 0; }

// The main thread blocks what it reads, and what the catcher is to handle.
static void arrange(void)
{
    for (int sig = 1; sig < NSIG; sig++) {
        if (sigismember(&wanted, sig) != 1)
            continue;
        if (is("handler") || is("onstack"))
            install(sig, is("onstack"), frame);
        else if (is("jump") || is("jumponstack"))
            catch_faults(sig, is("jumponstack"));
        else if (is("ignored"))
            signal(sig, SIG_IGN);
    }
    if (!is("default") && !is("ignored") && !is("jump") && !is("jumponstack"))
        pthread_sigmask(SIG_BLOCK, &wanted, NULL);
}

// The one thread of the host that has not blocked the handled signals.
static void *catcher(void *none)
{
    enlist();
    pthread_sigmask(SIG_UNBLOCK, &wanted, NULL);
    while (!over)
        poll(NULL, 0, 20);
    return none;
}

static void *mover(void *pair)
{
    enlist();
    for (volatile long idle = 0; !over; idle++)
        if (pair)
            pair_turn(pair);
    return NULL;
}

static void say(int sig, int foreign)
{
    printf("%d %s\n", sig, foreign ? "foreign" : "host");
    fflush(stdout);
}

// Takes what has come, and returns 0 at the end of standard input.
static int listen(int fd)
{
    struct pollfd on[] = {{STDIN_FILENO, POLLIN, 0}, {fd, POLLIN, 0}};
    char line[64];
    if (poll(on, fd >= 0 ? 2 : 1, is("awaited") ? 1 : 1000) < 0 && errno != EINTR)
        fail("poll: %s", strerror(errno));
    if (fd >= 0 && on[1].revents && is("blocked")) {
        struct signalfd_siginfo info;
        if (read(fd, &info, sizeof info) == sizeof info)
            say((int)info.ssi_signo, info.ssi_pid != (unsigned)getppid()); // and who has sent it
    } else if (fd >= 0 && on[1].revents) {
        struct heard h;
        if (read(fd, &h, sizeof h) == sizeof h)
            say(h.sig, h.foreign);
    }
    if (is("awaited")) {
        const struct timespec at_once = {0};
        const int sig = sigtimedwait(&wanted, NULL, &at_once);
        if (sig > 0)
            say(sig, 0);
    }
    if (!on[0].revents)
        return 1;
    const ssize_t n = read(STDIN_FILENO, line, sizeof line - 1);
    int sig;
    line[n > 0 ? n : 0] = 0;
    if (sscanf(line, "fault %d", &sig) == 1) {
        fault(sig);
        printf("back\n");
        fflush(stdout);
    } else if (n > 0 && write(STDOUT_FILENO, line, (size_t)n) != n)
        fail("standard output is closed");
    return n > 0;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    enlist();
    if (argc < 7)
        return 2;
    how = argv[1];
    frame = strtoul(argv[4], NULL, 10);
    const char *library = argv[5], *backend = argv[6];
    const int with = strcmp(library, "-") != 0;
    if (is("panic")) {
        catch_faults(SIGSEGV, 0);
        struct pair *p = pair_new(library, backend);
        for (int i = 0; i < 2; i++) {
            printf("status %d\n", store_to_nothing(argv[2], strtoul(argv[3], NULL, 0)));
            fault(SIGSEGV);
            pair_turn(p);
        }
        catch_own(SIGSEGV);
        for (int i = 0; i < 3; i++) {
            fault_of_own(SIGSEGV);
            fault(SIGSEGV); // through the later handler to the plugin's, and to the first
        }
        printf("caught 3 and 5\n");
        pair_end(p);
        return 0;
    }
    if (is("room")) {
        const int later = strcmp(argv[2], "later") == 0, inside = strcmp(argv[2], "inside") == 0;
        if (!later && !inside)
            limit(argv[2], strtoul(argv[3], NULL, 10));
        struct pair *p = pair_new(library, backend);
        if (later)
            limit("threads", 1);
        if (inside)
            limit("refused", strtoul(argv[3], NULL, 10));
        const time_t end = time(NULL) + 2;
        while (time(NULL) < end)
            pair_turn(p);
        printf("another: status %d\n", another(backend));
        pair_turn(p);
        pair_end(p);
        return 0;
    }
    if (is("threads")) {
        struct pair *p = pair_new(library, backend);
        short_threads(p, atoi(argv[2]), strtoul(argv[3], NULL, 10));
        pair_end(p);
        return 0;
    }
    if (is("storm")) {
        struct pair *p = with ? pair_new(library, backend) : NULL;
        storm(p, atoi(argv[2]), atol(argv[3]), frame);
        if (p)
            pair_end(p);
        return 0;
    }
    const int before = strcmp(argv[2], "before") == 0, busy = strcmp(argv[3], "busy") == 0;
    sigemptyset(&wanted);
    for (int i = 7; i < argc; i++)
        sigaddset(&wanted, atoi(argv[i]));
    if (before)
        arrange();
    struct pair *p = with ? pair_new(library, backend) : NULL;
    if (!before)
        arrange();
    pthread_t threads[2];
    int started = 0;
    if (is("handler") || is("onstack"))
        pthread_create(&threads[started++], NULL, catcher, NULL);
    if (busy)
        pthread_create(&threads[started++], NULL, mover, p);
    const int fd = is("blocked") ? signalfd(-1, &wanted, SFD_NONBLOCK) : heard_fd();
    printf("ready\n");
    fflush(stdout);
    while (listen(fd))
        ;
    over = 1;
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (p)
        pair_end(p);
    return 0;
}
