/* The copy itself, in turns so short that a wait for one lasts microseconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "cma.h"

enum {
    TURN = 1 << 20,   /* bytes: 50 to 200 us. Every call costs 0.5 us: 1 MiB took 50.7 us in pieces of 256 KiB, 49.1 us in one */
    BATCH = 64,       /* pieces of one call: beyond 64 the cost of the call itself does not show */
};

/* Advances past the bytes that were copied. */
static void step(struct iovec **v, uint32_t *n, size_t done)
{
    while (*n && done >= (*v)->iov_len) {
        done -= (*v)->iov_len;
        ++*v;
        --*n;
    }
    if (*n) {
        (*v)->iov_base = (char *)(*v)->iov_base + done;
        (*v)->iov_len -= done;
    }
}

/* The kernel copies up to the first page that it cannot access. The next call returns the reason. */
static int move(const cma_ep *ep, int write, uint32_t n, struct iovec *local, struct iovec *remote)
{
    uint32_t remotes = n;
    if (ep->peer.self) {
        for (uint32_t i = 0; i < n; i++)
            memmove(write ? remote[i].iov_base : local[i].iov_base, write ? local[i].iov_base : remote[i].iov_base, local[i].iov_len);
        return 0;
    }
    while (n) {
        ssize_t got =
            write ? process_vm_writev(ep->peer.pid, local, n, remote, remotes, 0) : process_vm_readv(ep->peer.pid, local, n, remote, remotes, 0);
        if (got <= 0)
            return got == 0 ? EIO : errno == ESRCH ? ECONNRESET : errno;
        step(&local, &n, (size_t)got);
        step(&remote, &remotes, (size_t)got);
    }
    return 0;
}

static int turn(cma_ep *ep, uint32_t epoch, int write, const gr_seg *from, uint32_t segs, uint32_t n, struct iovec *local, struct iovec *remote)
{
    _Atomic uint64_t *mark = &ep->peer.shm->epoch[epoch].turn;
    int err = 0;
    /* before the checks that follow: the target changes its table first and then reads the epoch */
    atomic_store(mark, ++ep->peer.turn[epoch]);
    if (atomic_load(&ep->peer.shm->closed) || !cma_alive(ep))
        err = ECONNRESET;
    for (uint32_t i = 0; !err && i < segs; i++)
        err = cma_allowed(ep->peer.table, from[i].rkey, from[i].raddr, from[i].len);
    if (!err)
        err = move(ep, write, n, local, remote);
    atomic_store_explicit(mark, ++ep->peer.turn[epoch], memory_order_release);
    return err;
}

/* Whether two pieces are adjacent on both sides. A separate piece costs the kernel 30 to 250 ns. */
static int follows(const struct iovec *a, const struct iovec *b, size_t local, size_t remote)
{
    return (uintptr_t)a->iov_base + a->iov_len == local && (uintptr_t)b->iov_base + b->iov_len == remote;
}

int cma_copy(cma_ep *ep, uint32_t epoch, int write, uint32_t n, const gr_seg *seg)
{
    struct iovec local[BATCH], remote[BATCH];
    uint64_t at = 0; /* offset in seg[i] */
    for (uint32_t i = 0; i < n;) {
        uint32_t k = 0, j = i;
        for (uint64_t bytes = 0; j < n && k < BATCH && bytes < TURN;) {
            uint64_t len = seg[j].len - at < TURN - bytes ? seg[j].len - at : TURN - bytes;
            uint64_t from = seg[j].laddr + at, to = seg[j].raddr + at;
            if (k && follows(&local[k - 1], &remote[k - 1], from, to)) {
                local[k - 1].iov_len += len;
                remote[k - 1].iov_len += len;
            } else {
                local[k] = (struct iovec){(void *)(uintptr_t)from, len};
                remote[k++] = (struct iovec){(void *)(uintptr_t)to, len};
            }
            bytes += len;
            at += len;
            if (at == seg[j].len) {
                at = 0;
                j++;
            }
        }
        if (atomic_load(&ep->closing))
            return ECANCELED;
        int err = turn(ep, epoch, write, &seg[i], j - i + (at != 0), k, local, remote);
        if (err)
            return err;
        i = j;
    }
    return 0;
}

uint32_t cma_pieces(const cma_ep *ep, uint32_t chunk, cma_span *out, cma_chunk *remote)
{
    const struct cma_part *p = &ep->ring.part[chunk];
    uint8_t *mem = ep->ring.mem + chunk * ep->ring.size;
    uint64_t at = 0, to = p->from + p->len;
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->job->n && at < to; at += p->job->seg[i++].len) {
        const gr_seg *s = &p->job->seg[i];
        uint64_t skip = p->from > at ? p->from - at : 0, end = to - at < s->len ? to - at : s->len;
        if (skip >= end)
            continue;
        void *here = (void *)(uintptr_t)(s->laddr + skip);
        out[n] = p->job->write ? (cma_span){mem, here, end - skip} : (cma_span){here, mem, end - skip};
        mem += end - skip;
        if (remote) {
            remote->piece[n].key = s->rkey;
            remote->piece[n].addr = s->raddr + skip;
            remote->piece[n].len = end - skip;
        }
        n++;
    }
    return n;
}
