#define _GNU_SOURCE
#include "host.h"

#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 };
static _Atomic pid_t own[MOST];
static atomic_int owned;
static int ends[2] = {-1, -1};
static volatile size_t used;

void enlist(void)
{
    int i = owned++;
    if (i >= MOST)
        fail("too many threads");
    own[i] = gettid();
}

static int is_foreign(void)
{
    pid_t self = gettid();
    for (int i = 0; i < owned; i++)
        if (own[i] == self)
            return 0;
    return 1;
}

static void on_signal(int sig)
{
    int saved = errno;
    size_t frame = used;
    volatile char *deep = alloca(frame);
    for (size_t i = 0; i < frame; i += 256)
        deep[i] = (char)sig;
    struct heard h = {.sig = sig, .foreign = is_foreign()};
    if (ends[1] >= 0 && write(ends[1], &h, sizeof h) < 0) {
    } // full: somebody reads 60,000 of them, or nobody
    errno = saved;
}

void install(int sig, int on_stack, size_t frame)
{
    used = frame;
    if (ends[0] < 0 && pipe2(ends, O_NONBLOCK | O_CLOEXEC))
        fail("pipe: %s", strerror(errno));
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (on_stack ? SA_ONSTACK : 0)};
    if (sigaction(sig, &a, NULL))
        fail("sigaction of %d: %s", sig, strerror(errno));
}

int heard_fd(void) { return ends[0]; }
