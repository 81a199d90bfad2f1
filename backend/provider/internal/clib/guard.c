/* Copies by the kernel within this process. The application's memory is the local side of the call: it is copied like the memory of a
 * socket's call. The remote side has to be ordinary memory, which a mapping of a device is not. Where a filter of system calls forbids
 * process_vm_readv, bytes go through a pipe. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gr_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST_PIECES = 1024, /* UIO_MAXIOV */
    BOUNCE = 16 << 10,  /* bytes on the stack */
};

static _Atomic int forbidden; /* process_vm_readv on this process */

/* This process, by a thread that lives: by its own number the kernel finds no memory once the first thread has ended. */
static pid_t process(void) { return (pid_t)syscall(SYS_gettid); }

static struct {
    pthread_mutex_t mu;
    int fd[2], open;
    struct stat is; /* the host may close any descriptor, and another file has its number then */
} chan = {.mu = PTHREAD_MUTEX_INITIALIZER};

static int same(int fd)
{
    struct stat now;
    return fstat(fd, &now) == 0 && now.st_dev == chan.is.st_dev && now.st_ino == chan.is.st_ino && S_ISFIFO(now.st_mode);
}

/* Implements pipe2. 0, or an errno. */
static int open_chan(void)
{
    if (chan.open && same(chan.fd[0]) && same(chan.fd[1]))
        return 0;
    chan.open = pipe2(chan.fd, O_CLOEXEC | O_NONBLOCK) == 0 && fstat(chan.fd[0], &chan.is) == 0;
    return chan.open ? 0 : errno;
}

static void drain(size_t left)
{
    uint8_t sink[4096];
    while (left) {
        ssize_t n = read(chan.fd[0], sink, left < sizeof(sink) ? left : sizeof(sink));
        if (n <= 0)
            return;
        left -= (size_t)n;
    }
}

/* Both ends are ours, so that no write raises SIGPIPE. 0, or an errno. */
static int by_pipe(void *to, const void *from, size_t len)
{
    pthread_mutex_lock(&chan.mu);
    int err = open_chan();
    for (size_t at = 0; !err && at < len;) {
        size_t most = len - at < BOUNCE ? len - at : BOUNCE; /* a pipe holds more */
        ssize_t in = write(chan.fd[1], (const uint8_t *)from + at, most);
        if (in <= 0) {
            err = in == 0 ? EFAULT : errno;
            break;
        }
        ssize_t out = read(chan.fd[0], (uint8_t *)to + at, (size_t)in);
        if (out != in) {
            err = EFAULT;
            drain((size_t)in - (out > 0 ? (size_t)out : 0));
        }
        at += (size_t)in;
    }
    pthread_mutex_unlock(&chan.mu);
    return err;
}

static int pieces_by_pipe(const struct iovec *theirs, int n, uint8_t *ours, int store)
{
    for (int i = 0; i < n; ours += theirs[i++].iov_len)
        if (by_pipe(store ? theirs[i].iov_base : ours, store ? ours : theirs[i].iov_base, theirs[i].iov_len))
            return i;
    return n;
}

static int pieces(const struct iovec *theirs, int n, uint8_t *ours, int store)
{
    for (int i = 0; i < n;) {
        int k = n - i < MOST_PIECES ? n - i : MOST_PIECES;
        size_t len = 0;
        for (int j = 0; j < k; j++)
            len += theirs[i + j].iov_len;
        struct iovec here = {ours, len};
        ssize_t got = -1;
        if (len && !atomic_load_explicit(&forbidden, memory_order_relaxed)) {
            got = store ? process_vm_readv(process(), theirs + i, (unsigned long)k, &here, 1, 0)
                        : process_vm_writev(process(), theirs + i, (unsigned long)k, &here, 1, 0);
            if (got < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES))
                atomic_store_explicit(&forbidden, 1, memory_order_relaxed);
        }
        int ok = !len ? k : got == (ssize_t)len ? k : pieces_by_pipe(theirs + i, k, ours, store); /* the pipe finds the piece that is at fault */
        if (ok < k)
            return i + ok;
        i += k;
        ours += len;
    }
    return n;
}

int gr_guard_store(const struct iovec *to, int n, const void *from) { return pieces(to, n, (uint8_t *)(uintptr_t)from, 1); }
int gr_guard_load(void *to, const struct iovec *from, int n) { return pieces(from, n, to, 0); }

/* Memory of which neither side may be the remote one, or that overlaps: as memmove. */
static int bounce(const gr_span *s)
{
    uint8_t mem[BOUNCE];
    int last_first = (uintptr_t)s->to > (uintptr_t)s->from;
    for (size_t done = 0, n; done < s->len; done += n) {
        n = s->len - done < BOUNCE ? s->len - done : BOUNCE;
        size_t at = last_first ? s->len - done - n : done;
        struct iovec from = {(uint8_t *)(uintptr_t)s->from + at, n}, to = {(uint8_t *)s->to + at, n};
        if (gr_guard_load(mem, &from, 1) < 1 || gr_guard_store(&to, 1, mem) < 1)
            return EFAULT;
    }
    return 0;
}

static int overlaps(const gr_span *s)
{
    uintptr_t to = (uintptr_t)s->to, from = (uintptr_t)s->from;
    return to < from + s->len && from < to + s->len;
}

int gr_guard_move(uint32_t n, const gr_span *span)
{
    enum { MOST = 64 };
    struct iovec to[MOST], from[MOST];
    for (uint32_t i = 0, k; i < n; i += k) {
        size_t len = 0;
        ssize_t got = -1;
        int apart = !atomic_load_explicit(&forbidden, memory_order_relaxed);
        for (k = 0; k < MOST && i + k < n; k++) {
            to[k] = (struct iovec){span[i + k].to, span[i + k].len};
            from[k] = (struct iovec){(void *)(uintptr_t)span[i + k].from, span[i + k].len};
            len += span[i + k].len;
            apart &= !overlaps(&span[i + k]);
        }
        if (apart)
            got = process_vm_writev(process(), from, k, to, k, 0);
        for (uint32_t j = 0; got != (ssize_t)len && j < k; j++)
            if (bounce(&span[i + j]))
                return EFAULT;
    }
    return 0;
}

int gr_guard_readable(const void *at, size_t len)
{
    uint8_t mem[BOUNCE];
    for (size_t done = 0, n; done < len; done += n) {
        n = len - done < BOUNCE ? len - done : BOUNCE;
        struct iovec from = {(uint8_t *)(uintptr_t)at + done, n};
        if (gr_guard_load(mem, &from, 1) < 1)
            return 0;
    }
    return 1;
}

void gr_guard_by_pipe(int on) { atomic_store(&forbidden, on); }
