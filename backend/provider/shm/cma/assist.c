/* A polling target copies pieces of its peers' WRITEs and READs, to and from its own regions. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cma.h"

enum {
    POLLS = 16, /* so many polls without work within POLLS_NS: the thread does nothing but poll, and a copy costs it nothing */
    POLLS_NS = 2000000,
    SPIN_NS = 32000,
    SERVE_NS = 2000, /* for a chunk of up to 8 KiB and the polls around it */
};

void cma_assist_update(cma_rail *rail)
{
    int assists = atomic_load_explicit(&rail->assist.assists, memory_order_relaxed);
    cma_ep *next = NULL;
    for (cma_ep *ep = LIST_FIRST(&rail->doze.polled); ep; ep = LIST_NEXT(ep, doze.entry)) {
        if (!ep->peer.same_user)
            continue;
        if (ep->assists != assists)
            atomic_store_explicit(&ep->shm->assists, (uint32_t)(ep->assists = assists), memory_order_relaxed);
        if (assists && atomic_load_explicit(&ep->shm->offered, memory_order_relaxed) && !atomic_load(&ep->closing) &&
            (!next || ep->number - rail->assist.last - 1 < next->number - rail->assist.last - 1)) /* in turn */
            next = ep;
    }
    if (next) {
        rail->assist.last = next->number;
        atomic_store(&rail->pool.assist, next);
    }
}

/* Counts a poll that found nothing to do. Every POLLS such polls decide whether we assist. */
static void count_poll(cma_rail *rail)
{
    if ((atomic_fetch_add_explicit(&rail->assist.polls, 1, memory_order_relaxed) + 1) % POLLS != 0)
        return;
    uint64_t now = cma_now(), began = atomic_exchange_explicit(&rail->assist.began, now, memory_order_relaxed);
    int before = atomic_load_explicit(&rail->assist.assists, memory_order_relaxed), level = 0;
    int served = atomic_exchange_explicit(&rail->pool.served, 0, memory_order_relaxed); /* a small chunk takes a microsecond */
    if (atomic_exchange_explicit(&rail->pool.assisted, 0, memory_order_relaxed) || served || now - began < POLLS_NS)
        level = now - began < SPIN_NS + (uint64_t)served * SERVE_NS ? CMA_SPINS : CMA_ASSISTS;
    if (level != before)
        atomic_store_explicit(&rail->assist.assists, level, memory_order_relaxed);
}

/* An offer, read once: later writes of the peer have no effect. */
typedef struct piece {
    uint32_t n, write;
    uint64_t bytes, key[GR_MAX_IOV];
    struct iovec here[GR_MAX_IOV], there[GR_MAX_IOV];
} piece;

static int read_offer(const volatile cma_offer *o, piece *p)
{
    p->n = o->n;
    p->write = o->write;
    p->bytes = 0;
    if (p->n == 0 || p->n > GR_MAX_IOV)
        return EPROTO;
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t len = o->piece[i].len;
        if (len > CMA_UNSPLIT || (p->bytes += len) > CMA_UNSPLIT)
            return EMSGSIZE;
        p->key[i] = o->piece[i].key;
        p->here[i] = (struct iovec){(void *)(uintptr_t)o->piece[i].here, len};
        p->there[i] = (struct iovec){(void *)(uintptr_t)o->piece[i].there, len};
    }
    return 0;
}

/* One call. The peer repeats an incomplete copy and finds the reason. */
static int move(const cma_ep *ep, const piece *p)
{
    ssize_t got = p->write ? process_vm_readv(ep->peer.pid, p->here, p->n, p->there, p->n, 0)
                           : process_vm_writev(ep->peer.pid, p->here, p->n, p->there, p->n, 0);
    if (got < 0)
        return errno == EACCES ? EPERM : errno; /* of a filter of system calls: it would fail the next time, too */
    return (uint64_t)got < p->bytes ? EFAULT : 0;
}

static int offer_copy(cma_ep *ep, uint32_t epoch, const cma_offer *o, uint64_t *bytes)
{
    piece p;
    cma_epoch *own = &ep->rail->pool.own[epoch];
    uint64_t regions = 0;
    int err = read_offer(o, &p);
    if (err)
        return err;
    *bytes = p.bytes;
    for (uint32_t i = 0; i < p.n; i++)
        regions |= cma_region_bit(p.key[i]);
    atomic_store(&own->regions, regions);
    atomic_fetch_add(&own->turn, 1); /* before the checks that follow: deregistration changes the table first and then reads the epoch */
    /* a process that calls exec keeps its number and its offers. When we only read its memory, the transfer has ended with the program */
    if (!cma_alive(ep) || (!p.write && !cma_same_program(ep)))
        err = ESRCH;
    for (uint32_t i = 0; !err && i < p.n; i++)
        err = cma_allowed(ep->rail->table, p.key[i], (uint64_t)(uintptr_t)p.here[i].iov_base, p.here[i].iov_len);
    if (!err)
        err = atomic_load(&ep->peer.shm->closed) ? ECONNRESET : move(ep, &p); /* the peer may have given up its offer */
    atomic_fetch_add(&own->turn, 1);
    return err;
}

/* Returns the bytes copied; -1: nothing to do. */
static int64_t offer_serve(cma_ep *ep, uint32_t epoch)
{
    cma_shm *shm = ep->shm;
    uint32_t offered = atomic_load(&shm->offered) & ((1u << CMA_OFFERS) - 1), bit = offered & -offered;
    if (!bit || !(atomic_fetch_and(&shm->offered, ~bit) & bit)) /* withdrawn by the peer */
        return -1;
    cma_offer *o = &shm->offer[__builtin_ctz(bit)];
    atomic_store_explicit(&o->tid, (int32_t)syscall(SYS_gettid), memory_order_relaxed);
    uint64_t bytes = 0;
    int err = offer_copy(ep, epoch, o, &bytes);
    atomic_store(&o->ended, err ? -err : CMA_COPIED); /* before cma_ring_asleep */
    cma_ring_asleep(ep);
    return err ? 0 : (int64_t)bytes;
}

int cma_assist(cma_rail *rail)
{
    cma_pool *pool = &rail->pool;
    uint32_t epoch;
    int64_t did = -1;
    if (rail->assist.off)
        return 0;
    if (pthread_equal(pthread_self(), rail->base.thread)) { /* the progress thread does not assist: no application asked it to be busy */
        if (!atomic_load_explicit(&rail->base.app_polls, memory_order_relaxed))
            atomic_store_explicit(&rail->assist.assists, 0, memory_order_relaxed);
        return 0;
    }
    if (!atomic_load_explicit(&pool->assist, memory_order_relaxed)) {
        count_poll(rail);
        return 0;
    }
    if (!cma_epoch_take(pool, &epoch))
        return 0;
    pthread_mutex_lock(&pool->mu);
    cma_ep *ep = atomic_exchange(&pool->assist, NULL);
    if (ep)
        ep->pool.jobs++;
    pthread_mutex_unlock(&pool->mu);
    if (ep) {
        did = offer_serve(ep, epoch);
        if (did >= 0)
            atomic_store_explicit(&pool->assisted, 1, memory_order_relaxed);
        pthread_mutex_lock(&pool->mu);
        if (did > 0)
            atomic_store_explicit(&pool->for_peers, pool->for_peers + (uint64_t)did, memory_order_relaxed);
        ep->pool.jobs--;
        pthread_mutex_unlock(&pool->mu);
    }
    cma_epoch_give(pool, epoch);
    return did >= 0;
}

void cma_assisted(cma_rail *rail, uint64_t *for_peers, uint64_t *by_peers)
{
    *for_peers = atomic_load_explicit(&rail->pool.for_peers, memory_order_relaxed);
    *by_peers = atomic_load_explicit(&rail->pool.by_peers, memory_order_relaxed);
}
