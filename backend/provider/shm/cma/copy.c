/* The copy itself, in turns so short that a wait for one lasts microseconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "cma.h"

enum {
    TURN = 1 << 20,   /* bytes: 50 to 200 us. Every call costs 0.5 us: 1 MiB took 50.7 us in pieces of 256 KiB, 49.1 us in one */
    MAPPED_TURN = 256 << 10, /* no call, so that a turn may be shorter: a process is stopped in the middle of it */
    BATCH = 64,       /* pieces of one call: beyond 64 the cost of the call itself does not show */
};

/* Advances past the bytes that were copied. */
static void iov_step(struct iovec **v, uint32_t *n, size_t done)
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

/* Both sides are in this process. */
static int move_within(int write, uint32_t n, const struct iovec *local, const struct iovec *remote)
{
    gr_span span[BATCH];
    for (uint32_t i = 0; i < n; i++)
        span[i] = write ? (gr_span){remote[i].iov_base, local[i].iov_base, local[i].iov_len}
                        : (gr_span){local[i].iov_base, remote[i].iov_base, local[i].iov_len};
    return gr_guard_move(n, span);
}

/* What a call's errno means. EPERM, ENOSYS and ESRCH: the kernel does not let us access a peer that lives. EACCES is a filter's: cma_allowed
 * has another meaning for it. ESRCH: the peer has ended, or only its first thread, by whose number the kernel finds its memory. */
static int refusal(cma_ep *ep, int err)
{
    if (err == EACCES)
        return EPERM;
    if (err == ESRCH) {
        atomic_store(&ep->peer.alive_ns, 0); /* look again */
        return cma_alive(ep) ? ESRCH : ECONNRESET;
    }
    return err;
}

/* The kernel copies up to the first page that it cannot access. The next call returns the reason. */
static int move(cma_ep *ep, int write, uint32_t n, struct iovec *local, struct iovec *remote)
{
    uint32_t remotes = n;
    if (ep->peer.self)
        return move_within(write, n, local, remote);
    while (n) {
        ssize_t got =
            write ? process_vm_writev(ep->peer.pid, local, n, remote, remotes, 0) : process_vm_readv(ep->peer.pid, local, n, remote, remotes, 0);
        if (got <= 0)
            return got == 0 ? EIO : refusal(ep, errno);
        iov_step(&local, &n, (size_t)got);
        iov_step(&remote, &remotes, (size_t)got);
    }
    return 0;
}

/* Marks the copy, before the checks that follow: the target changes its table first and then reads the epoch. */
static int begin_turn(cma_ep *ep, uint32_t epoch)
{
    atomic_store(&ep->peer.shm->epoch[epoch].turn, ++ep->peer.turn[epoch]);
    return cma_reaches(ep) ? 0 : ECONNRESET;
}

static void end_turn(cma_ep *ep, uint32_t epoch)
{
    atomic_store_explicit(&ep->peer.shm->epoch[epoch].turn, ++ep->peer.turn[epoch], memory_order_release);
}

static int copy_turn(cma_ep *ep, uint32_t epoch, int write, const gr_seg *from, uint32_t segs, uint32_t n, struct iovec *local, struct iovec *remote)
{
    int err = begin_turn(ep, epoch);
    for (uint32_t i = 0; !err && i < segs; i++)
        err = cma_allowed(ep->peer.table, from[i].rkey, from[i].raddr, from[i].len);
    if (!err)
        err = move(ep, write, n, local, remote);
    end_turn(ep, epoch);
    return err;
}

/* Whether two pieces are adjacent on both sides. A separate piece costs the kernel 30 to 250 ns. */
static int follows(const struct iovec *a, const struct iovec *b, size_t local, size_t remote)
{
    return (uintptr_t)a->iov_base + a->iov_len == local && (uintptr_t)b->iov_base + b->iov_len == remote;
}

/* Pieces of one turn through views. */
typedef struct pieces {
    uint32_t n;
    struct {
        uint64_t key, addr, len;
    } remote[BATCH];
    gr_span span[BATCH];
    cma_view *view[BATCH]; /* in use by us */
} pieces;

static void put_view(cma_ep *ep, cma_view *v)
{
    if (cma_view_put(&ep->views, v))
        cma_mapper_add(ep->rail, &v->end);
}

/* Copies through views. The peer may have truncated the file: then the guard reports EFAULT. */
static int move_mapped(cma_ep *ep, int write, pieces *p)
{
    int err = 0;
    uint32_t n = 0;
    for (; n < p->n; n++) {
        uint64_t addr = p->remote[n].addr, len = p->remote[n].len;
        cma_view *v = cma_view_get(&ep->views, p->remote[n].key, write, addr, len);
        if (!v) {
            err = EFAULT;
            break;
        }
        p->view[n] = v;
        uint8_t *there = v->at + (addr - v->base);
        if (write)
            p->span[n].to = there;
        else
            p->span[n].from = there;
        p->span[n].len = len;
    }
    if (!err)
        err = gr_guard_move(n, p->span);
    for (uint32_t i = 0; i < n; i++) {
        if (err)
            cma_view_fail(&ep->views, p->remote[i].key);
        put_view(ep, p->view[i]);
    }
    return err;
}

/* As copy_turn. */
static int turn_mapped(cma_ep *ep, uint32_t epoch, int write, pieces *p)
{
    int err = begin_turn(ep, epoch);
    for (uint32_t i = 0; !err && i < p->n; i++)
        err = cma_allowed(ep->peer.table, p->remote[i].key, p->remote[i].addr, p->remote[i].len);
    if (!err)
        err = move_mapped(ep, write, p);
    end_turn(ep, epoch);
    return err;
}

static int copy_mapped(cma_ep *ep, uint32_t epoch, int write, uint32_t n, const gr_seg *seg)
{
    pieces p;
    _Atomic uint64_t *viewed = &ep->rail->mapper.viewed;
    uint64_t at = 0; /* offset in seg[i] */
    for (uint32_t i = 0; i < n;) {
        uint64_t bytes = 0;
        for (p.n = 0; i < n && p.n < BATCH && bytes < MAPPED_TURN; p.n++) {
            uint64_t len = seg[i].len - at < MAPPED_TURN - bytes ? seg[i].len - at : MAPPED_TURN - bytes;
            void *here = (void *)(uintptr_t)(seg[i].laddr + at);
            p.remote[p.n].key = seg[i].rkey;
            p.remote[p.n].addr = seg[i].raddr + at;
            p.remote[p.n].len = len;
            p.span[p.n] = write ? (gr_span){.from = here} : (gr_span){.to = here};
            bytes += len;
            at += len;
            if (at == seg[i].len) {
                at = 0;
                i++;
            }
        }
        if (atomic_load(&ep->closing))
            return ECANCELED;
        int err = turn_mapped(ep, epoch, write, &p);
        if (err)
            return err;
        atomic_fetch_add_explicit(viewed, bytes, memory_order_relaxed);
    }
    return 0;
}

/* Asks the mapper for a view of the region, unless there is one. */
static void ask_view(cma_ep *ep, uint64_t key)
{
    cma_mapper *m = &ep->rail->mapper;
    const cma_entry *e = &ep->peer.table[(uint32_t)key];
    uint64_t base = atomic_load(&e->base), len = atomic_load(&e->len);
    cma_view *due;
    if (cma_view_known(&ep->views, key, cma_now(), &due))
        return;
    if (due)
        put_view(ep, due);
    if (cma_allowed(ep->peer.table, key, base, len) || !len || atomic_load(&m->views) >= CMA_ALL_VIEWS ||
        len > CMA_VIEW_BYTES - atomic_load(&m->view_bytes))
        return;
    cma_view *v = GR_ALLOC(cma_view, calloc(1, sizeof(*v)));
    if (!v)
        return;
    v->begin.what = CMA_VIEW_BEGIN;
    v->end.what = CMA_VIEW_END;
    v->retry_ns = UINT64_MAX;
    v->key = key;
    v->base = base;
    v->len = len;
    v->pid = ep->peer.pid;
    memcpy(v->server_place, ep->peer.shares->place, CMA_PLACE); /* ours */
    memcpy(v->server_token, ep->peer.shares->token, CMA_TOKEN); /* ours */
    if (!cma_view_add(&ep->views, v)) {
        free(v);
        return;
    }
    ep->views.used = 1;
    atomic_fetch_add(&m->views, 1);
    atomic_fetch_add(&m->view_bytes, len);
    cma_mapper_add(ep->rail, &v->begin);
}

uint32_t cma_view_ranges(cma_ep *ep, int write, uint32_t n, const gr_seg *seg, cma_range *out)
{
    _Static_assert((int)GR_MAX_IOV <= (int)CMA_ASK_RANGES, "one question");
    for (uint32_t i = 0; i < n; i++)
        if (!cma_view_range(&ep->views, seg[i].rkey, write, seg[i].raddr, seg[i].len, &out[i]))
            return 0;
    return n;
}

int cma_mapped(cma_ep *ep, int write, uint32_t n, const gr_seg *seg)
{
    int all = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (i && seg[i].rkey == seg[i - 1].rkey)
            continue;
        uint32_t index = (uint32_t)seg[i].rkey;
        if (index >= CMA_REGIONS || atomic_load_explicit(&ep->peer.table[index].share, memory_order_relaxed) != CMA_FILE)
            return 0;
        if (cma_view_usable(&ep->views, seg[i].rkey, write))
            continue;
        ask_view(ep, seg[i].rkey);
        all = 0;
    }
    return all;
}

int cma_view_drop(cma_ep *ep, uint64_t key)
{
    gr_rail_lock(&ep->rail->base); /* a view that is on the list has asked the mapper to begin */
    cma_view *v = cma_view_take(&ep->views, key);
    if (v)
        put_view(ep, v);
    gr_rail_unlock(&ep->rail->base);
    return v != NULL;
}

void cma_views_drop(cma_ep *ep)
{
    for (cma_view *v; (v = cma_view_take_any(&ep->views));)
        put_view(ep, v);
}

/* This process or the peer has given up privileges, or forbids access: setuid, PR_SET_DUMPABLE, a filter of system calls. Or the peer's first
 * thread has ended. All copies take the ring from now on. */
static int take_ring(cma_ep *ep, int err)
{
    if (!ep->ring.mem)
        return 0;
    if (!atomic_exchange(&ep->ring.on, 1))
        atomic_store(&ep->rail->refused, (uint64_t)(uint32_t)ep->peer.pid << 8 | (uint8_t)err);
    return 1;
}

int cma_copy(cma_ep *ep, uint32_t epoch, int write, uint32_t n, const gr_seg *seg)
{
    if (ep->ring.on)
        return copy_mapped(ep, epoch, write, n, seg);
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
        int err = copy_turn(ep, epoch, write, &seg[i], j - i + (at != 0), k, local, remote);
        if ((err == EPERM || err == ENOSYS || err == ESRCH) && take_ring(ep, err))
            return EFAULT;
        if (err)
            return err;
        i = j;
    }
    return 0;
}

uint32_t cma_pieces(const cma_ep *ep, uint32_t chunk, gr_span *out, cma_chunk *remote)
{
    const struct cma_part *p = &ep->ring.part[chunk];
    uint8_t *mem = ep->ring.mem + chunk * ep->ring.size;
    gr_seg seg[GR_MAX_IOV];
    uint32_t n = cma_slice(p->job, p->from, p->from + p->len, seg);
    for (uint32_t i = 0; i < n; mem += seg[i++].len) {
        void *here = (void *)(uintptr_t)seg[i].laddr;
        out[i] = p->job->write ? (gr_span){mem, here, seg[i].len} : (gr_span){here, mem, seg[i].len};
        if (remote) {
            remote->piece[i].key = seg[i].rkey;
            remote->piece[i].addr = seg[i].raddr;
            remote->piece[i].len = seg[i].len;
        }
    }
    return n;
}
