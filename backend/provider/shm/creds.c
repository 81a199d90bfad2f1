/* Who is at the other end of a connected socket: the kernel says so, as of connect() and listen(). What a peer writes counts for nothing,
 * SCM_CREDENTIALS included: root of a pid namespace writes there what it likes. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "local.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#ifdef LC_TEST
int lc_no_peerpidfd;
#else
enum { lc_no_peerpidfd = 0 };
#endif

int lc_connect(const char *name, uint32_t len, int *sock, const char **step)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    *step = "socket";
    *sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*sock < 0)
        return -errno;
    *step = "connecting to the peer's socket";
    memcpy(to.sun_path, name, len);
    if (connect(*sock, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) == 0)
        return 0;
    int err = errno;
    close(*sock);
    *sock = -1;
    return -err;
}

/* Users without a number in this user namespace all look like one. Whether this number could stand for them. */
static int ambiguous(uid_t uid)
{
    unsigned overflow = 65534, inner, outer, n = 0;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (f) {
        if (fscanf(f, "%u", &overflow) != 1)
            overflow = 65534;
        fclose(f);
    }
    if (uid != overflow)
        return 0;
    f = fopen("/proc/self/uid_map", "re");
    if (f) {
        if (fscanf(f, "%u %u %u", &inner, &outer, &n) != 3)
            n = 0;
        fclose(f);
    }
    return n != UINT32_MAX; /* all users have numbers here: this one is nobody else */
}

int lc_check_user(int sock, pid_t *pid)
{
    struct ucred who = { 0 };
    socklen_t len = sizeof(who);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
        return -errno;
    if (who.uid != geteuid())
        return -EACCES;
    if (ambiguous(who.uid))
        return -EOVERFLOW;
    if (who.pid <= 0) /* it lives in a pid namespace that has no number for it here */
        return -ENOTSUP;
    *pid = who.pid;
    return 0;
}

int lc_own_proc(void)
{
    char self[16];
    ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
    if (n <= 0)
        return 0;
    self[n] = 0;
    return atoi(self) == getpid();
}

uint64_t lc_ticks(void)
{
    struct timespec t;
    uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * hz + (uint64_t)t.tv_nsec * hz / 1000000000;
}

/* When the process of that number started; 0 or an errno. */
static int started(pid_t pid, uint64_t *ticks)
{
    char text[1024], path[32];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return errno == ENOENT ? ESRCH : errno;
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = 0;
    const char *rest = strrchr(text, ')'); /* its name may have anything in it */
    unsigned long long at;
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &at) != 1)
        return ESRCH;
    *ticks = at;
    return 0;
}

int lc_ended(int pidfd)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };
    return poll(&p, 1, 0) > 0;
}

/* A number alone may be another process's by now. It is not while the socket's other end is open, and its process began no later than the
 * connection. What escapes: a process whose own children keep the socket while its number goes to another. */
static int second_look(int sock, pid_t pid, uint64_t since, int *pidfd)
{
    uint64_t before = 0, after = 0;
    pid_t again = 0;
    struct pollfd p = { .fd = sock };
    if (!lc_own_proc())
        return -EXDEV;
    int err = started(pid, &before);
    if (err)
        return -err;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return -errno;
    int rc = lc_check_user(sock, &again);
    if (!rc && again != pid)
        rc = -ESRCH;
    if (!rc && (rc = -started(pid, &after)) == 0 && (after != before || after > since))
        rc = -ESRCH;
    if (!rc && poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)))
        rc = lc_ended(fd) ? -ESRCH : -ECONNRESET;
    if (rc)
        close(fd);
    else
        *pidfd = fd;
    return rc;
}

int lc_identify(int sock, uint64_t since, pid_t *pid, int *pidfd)
{
    int fd = -1;
    socklen_t len = sizeof(fd);
    int rc = lc_check_user(sock, pid);
    if (rc)
        return rc;
    if (!lc_no_peerpidfd) {
        if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0) {
            *pidfd = fd;
            return 0;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ESRCH)
            return -errno;
    }
    return second_look(sock, *pid, since, pidfd);
}

/* Asks for nothing but the process: there need be no endpoint yet. */
int lc_reach(const lc_proof *proof, pid_t *pid, const char **step)
{
    enum { TRIES = 10, NAP_NS = 1000000 }; /* while its socket's queue is full */
    uint8_t seen[LC_TOKEN];
    int sock, pidfd = -1, rc;
    struct iovec here = { seen, sizeof(seen) }, there = { (void *)(uintptr_t)proof->at, sizeof(seen) };
    *pid = 0;
    for (int i = 0; (rc = lc_connect(proof->name, proof->name_len, &sock, step)) == -EAGAIN && i < TRIES; i++)
        nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    if (rc)
        return rc == -ECONNREFUSED ? -ESRCH : rc;
    *step = "checking the peer's user and process";
    if ((rc = lc_identify(sock, lc_ticks(), pid, &pidfd)) == 0) {
        *step = "process_vm_readv";
        errno = 0;
        if (process_vm_readv(*pid, &here, 1, &there, 1, 0) != sizeof(seen))
            rc = errno ? -errno : -EIO;
        else if (lc_ended(pidfd)) /* it may have been another's memory */
            rc = -ESRCH;
        else if (memcmp(seen, proof->bytes, sizeof(seen)) != 0)
            rc = -EBADMSG;
        close(pidfd);
    }
    close(sock);
    return rc;
}
