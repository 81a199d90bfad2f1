#define _GNU_SOURCE
#include "limits.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { IOVS = 1024, PIECE = 1 << 30 }; // UIO_MAXIOV; a call moves less than 2 GiB
enum { SPIN_NS = 20 * 1000 * 1000 };   // between transfers

// next_batch fills up to IOVS pieces of the list from *i and *off on, and advances both. Returns the number of pieces.
static size_t next_batch(const lim_desc *d, size_t n, size_t *i, size_t *off, struct iovec *l, struct iovec *r, size_t *bytes)
{
    size_t k = 0;
    for (*bytes = 0; *i < n && k < IOVS && *bytes < PIECE; k++) {
        size_t len = d[*i].len - *off, room = PIECE - *bytes;
        len = len < room ? len : room;
        l[k] = (struct iovec){(char *)d[*i].local + *off, len};
        if (r)
            r[k] = (struct iovec){(char *)d[*i].remote + *off, len};
        *bytes += len;
        if ((*off += len) == d[*i].len) {
            *off = 0;
            ++*i;
        }
    }
    return k;
}

static int vm(const lim_job *j)
{
    struct iovec l[IOVS], r[IOVS];
    size_t bytes, off = 0;
    for (size_t i = 0; i < j->n;) {
        size_t k = next_batch(j->desc, j->n, &i, &off, l, r, &bytes);
        ssize_t got = j->write ? process_vm_writev(j->pid, l, k, r, k, 0) : process_vm_readv(j->pid, l, k, r, k, 0);
        if (got < 0)
            return errno;
        if ((size_t)got != bytes)
            return EFAULT;
    }
    return 0;
}

// all sends or receives a whole list. It spins: a halted processor takes longer to wake than a small transfer takes.
static int all(int fd, const lim_desc *d, size_t n, int out)
{
    struct iovec v[IOVS];
    size_t bytes, off = 0;
    for (size_t i = 0; i < n;) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = next_batch(d, n, &i, &off, v, NULL, &bytes)};
        while (bytes) {
            ssize_t got = out ? sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) : recvmsg(fd, &m, MSG_DONTWAIT);
            if (got < 0 && (errno == EINTR || errno == EAGAIN))
                continue;
            if (got <= 0)
                return got ? errno : ECONNRESET;
            bytes -= (size_t)got;
            while (m.msg_iovlen && (size_t)got >= m.msg_iov->iov_len) {
                got -= (ssize_t)m.msg_iov->iov_len;
                m.msg_iov++;
                m.msg_iovlen--;
            }
            if (m.msg_iovlen) {
                m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + got;
                m.msg_iov->iov_len -= (size_t)got;
            }
        }
    }
    return 0;
}

enum { WORD = 16 }; // bytes of an answer, and of a question

static int word(int fd, int out)
{
    char b[WORD] = {0};
    return all(fd, &(lim_desc){.local = b, .len = WORD}, 1, out);
}

// tcp: both ends know the operation. A WRITE is its bytes and an answer, a READ is a question and its bytes.
static int tcp(const lim_job *j)
{
    int e = j->write ? all(j->fd, j->desc, j->n, 1) : word(j->fd, 1);
    if (e)
        return e;
    return j->write ? word(j->fd, 0) : all(j->fd, j->desc, j->n, 0);
}

// await spins for a while, then sleeps, until the next transfer begins. Returns 0 if the other end has closed the socket, or -errno.
static int await(int fd)
{
    char b;
    for (int64_t until = gn_now_ns() + SPIN_NS;;) {
        ssize_t got = recv(fd, &b, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got >= 0)
            return (int)got;
        if (errno != EAGAIN && errno != EINTR)
            return -errno;
        if (gn_now_ns() > until) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            (void)poll(&p, 1, -1);
        }
    }
}

int lim_answer(int fd, const lim_desc *desc, size_t n, int write)
{
    for (;;) {
        int there = await(fd);
        if (there <= 0)
            return -there;
        int e = write ? all(fd, desc, n, 0) : word(fd, 0);
        if (e == 0)
            e = write ? word(fd, 1) : all(fd, desc, n, 1);
        if (e)
            return e;
    }
}

static int once(const lim_job *j)
{
    switch (j->kind) {
    case LIM_MEMCPY:
        for (size_t i = 0; i < j->n; i++) {
            const lim_desc *d = &j->desc[i];
            memcpy(j->write ? d->remote : d->local, j->write ? d->local : d->remote, d->len);
        }
        return 0;
    case LIM_PROCESS_VM: return vm(j);
    default: return tcp(j);
    }
}

void lim_run(lim_job *j)
{
    int64_t end = gn_now_ns() + j->limit_ns;
    for (; j->posted < j->warmup && !j->error && gn_now_ns() < end; j->posted++)
        j->error = once(j);
    __atomic_sub_fetch(j->gate, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(j->gate, __ATOMIC_ACQUIRE) > 0 && gn_now_ns() < end)
        sched_yield();
    int64_t start = gn_now_ns(), now = start;
    int64_t until = j->count ? end : start + j->time_ns;
    while (!j->error && now < until && now < end && (j->count == 0 || j->done < j->count)) {
        int64_t t0 = now;
        j->error = once(j);
        now = gn_now_ns();
        gn_hist_add(&j->lat, now - t0);
        j->done++;
    }
    j->posted += j->done;
    j->began_ns = start;
    j->wall_ns = now - start;
    if (!j->error && now >= end)
        j->error = ETIMEDOUT;
}

void lim_poll(const int *stop, int64_t limit_ns, int64_t nap_ns)
{
    int64_t end = gn_now_ns() + limit_ns;
    for (unsigned i = 1; !__atomic_load_n(stop, __ATOMIC_RELAXED); i++) {
        if (nap_ns)
            nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
        if ((nap_ns || i % 256 == 0) && gn_now_ns() > end)
            return;
    }
}

void lim_allow(void)
{
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); // fails without Yama, where it is not needed
}
