#define _GNU_SOURCE
#include "limits.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { IOVS = 1024, PIECE = 1 << 30 }; // UIO_MAXIOV; a call moves less than 2 GiB

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

// all sends or receives a whole list.
static int all(int fd, const lim_desc *d, size_t n, int out)
{
    struct iovec v[IOVS];
    size_t bytes, off = 0;
    for (size_t i = 0; i < n;) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = next_batch(d, n, &i, &off, v, NULL, &bytes)};
        while (bytes) {
            ssize_t got = out ? sendmsg(fd, &m, MSG_NOSIGNAL) : recvmsg(fd, &m, 0);
            if (got < 0 && errno == EINTR)
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

static int byte(int fd, char *b, int out) { return all(fd, &(lim_desc){.local = b, .len = 1}, 1, out); }

// tcp: a byte tells the target the operation. A WRITE is done when the target answers.
static int tcp(const lim_job *j)
{
    char b = j->write ? 'W' : 'R';
    int e = byte(j->fd, &b, 1);
    if (e == 0)
        e = all(j->fd, j->desc, j->n, j->write);
    if (e == 0 && j->write)
        e = byte(j->fd, &b, 0);
    return e;
}

int lim_answer(int fd, const lim_desc *desc, size_t n)
{
    for (;;) {
        char b;
        ssize_t got = recv(fd, &b, 1, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? errno : 0;
        int e = all(fd, desc, n, b == 'R');
        if (e == 0 && b == 'W')
            e = byte(fd, &b, 1);
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
