/* Whether a thread of another process is past a system call, without a report of that thread. This is C because polls
 * ask under the pool's lock (offload.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process.h"

/* Reads a file of the thread in /proc; 0 or an errno. */
static int read_task_file(pid_t pid, int tid, const char *file, char *to, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/%s", (int)pid, tid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    ssize_t n = read(fd, to, size - 1);
    int err = n < 0 ? errno : (size_t)n == size - 1 ? E2BIG : 0;
    close(fd);
    to[n < 0 ? 0 : n] = 0;
    return err;
}

static int thread_gone(pid_t pid, int tid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/task/%d", (int)pid, tid);
    if (access(path, F_OK) == 0 || errno != ENOENT)
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    return access(path, X_OK) == 0;
}

/* Checks the call first: a thread that is stopped before its call shows no call. A tracer's stop has another state.
 * With a seccomp filter the answer is no: the filter could stop a thread on its way into the call and let it continue
 * later. */
int cma_stopped(pid_t pid, int tid, long nr)
{
    char text[4096];
    const char *state;
    long call;
    unsigned long to;
    if (tid <= 0)
        return 0;
    int err = read_task_file(pid, tid, "syscall", text, sizeof(text));
    if (err == ENOENT || err == ESRCH)
        return thread_gone(pid, tid);
    if (err || sscanf(text, "%ld %lx", &call, &to) != 2 || call != nr || to != (unsigned long)getpid())
        return 0;
    if (read_task_file(pid, tid, "stat", text, sizeof(text)) != 0 || !(state = strrchr(text, ')')) || strncmp(state, ") T ", 4) != 0)
        return 0;
    return read_task_file(pid, tid, "status", text, sizeof(text)) == 0 && (!strstr(text, "\nSeccomp:") || strstr(text, "\nSeccomp:\t0\n"));
}

/* Whether /proc shows our own pid namespace. Process numbers of another namespace name other processes. */
static int own_proc(void)
{
    char self[16];
    ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
    if (n <= 0)
        return 0;
    self[n] = 0;
    return atoi(self) == getpid();
}

char cma_state(pid_t pid)
{
    char text[4096];
    const char *state = pid > 0 && own_proc() && read_task_file(pid, pid, "stat", text, sizeof(text)) == 0 ? strrchr(text, ')') : NULL;
    return state && state[1] == ' ' ? state[2] : 0;
}
