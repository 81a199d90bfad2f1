/* Opens and closes the rail and its endpoints. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cma.h"

enum { EP_COMPS = CMA_OPS + CMA_BULKS + 2 * CMA_RECVS }; /* completions that an endpoint may have outstanding */
enum { WAITING = 16 }; /* closed endpoints whose memory a peer's GPU may still use */
static const size_t table_size = CMA_REGIONS * sizeof(cma_entry);

/* Memory of zeros that has pages where something was written. calloc writes all of it if it takes memory that was freed before: 9 MiB for each
 * engine that a process makes after others have ended. */
static void *sparse(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int cma_rail_open(uint32_t threads, const cma_nodes *nodes, const cma_parts *parts, cma_rail **out)
{
    /* calloc aligns to 16 bytes only, and the pool's epochs to cache lines */
    cma_rail *rail = GR_ALLOC(cma_rail, aligned_alloc(_Alignof(cma_rail), sizeof(*rail)));
    if (!rail)
        return -ENOMEM;
    memset(rail, 0, sizeof(*rail));
    if (!(rail->rights = GR_ALLOC(cma_rights, sparse(CMA_REGIONS)))) {
        free(rail);
        return -ENOMEM;
    }
    if (!(rail->known = GR_ALLOC(cma_known, sparse(CMA_REGIONS * sizeof(*rail->known))))) {
        munmap(rail->rights, CMA_REGIONS);
        free(rail);
        return -ENOMEM;
    }
    atomic_init(&rail->maps, -1);
    gr_rail_init(&rail->base, &cma_ops);
    rail->base.bulk = &cma_bulk_ops;
    rail->base.wait_fd = parts->wait_fd;
    rail->doorbell_fd = parts->doorbell_fd;
    rail->table = parts->table;
    rail->shares = parts->shares;
    rail->base.limit.iov_limit = GR_MAX_IOV;
    rail->base.limit.tx_depth = CMA_OPS;
    rail->base.limit.rx_depth = CMA_RECVS;
    rail->base.limit.max_msg = CMA_UNSPLIT; /* larger requests are split, and the pool's threads share the pieces */
    rail->base.limit.window_min = 16 << 20; /* work for all copying threads, also while one of them is not scheduled */
    rail->base.limit.msg_size = CMA_MSG;
    rail->base.is.private_ep = 1;
    rail->base.is.completes_inline = 1;
    rail->base.is.sure = 1;
    cma_pool_open(&rail->pool, threads, nodes);
    cma_mapper_open(&rail->mapper, parts->mapper_fd);
    *out = rail;
    return 0;
}

/* Frees what no job of a GPU uses. */
static void release_ep(cma_ep *ep)
{
    if (atomic_load(&ep->doorbell) >= 0)
        close(atomic_load(&ep->doorbell)); /* only now: copying threads may have used it */
    cma_ep_settle(ep, 1);
    madvise(ep->ring.own, ep->ring.own_size * CMA_CHUNKS, MADV_REMOVE); /* the peer's mapping may outlive ours, and would keep the pages */
    cma_views_close(&ep->views);
    munmap(ep->ring.own, ep->ring.own_size * CMA_CHUNKS);
    if (ep->ring.mem)
        munmap(ep->ring.mem, ep->ring.size * CMA_CHUNKS);
    if (ep->peer.table)
        munmap((void *)ep->peer.table, table_size);
    if (ep->peer.shares)
        munmap((void *)ep->peer.shares, sizeof(*ep->peer.shares));
    free(ep->gpu.import);
}

static void free_ep(cma_ep *ep)
{
    if (ep->peer.pidfd >= 0 && !ep->peer.lent)
        close(ep->peer.pidfd);
    munmap(ep->shm, sizeof(*ep->shm));
    if (ep->peer.shm)
        munmap(ep->peer.shm, sizeof(*ep->peer.shm));
    free(ep);
}

static void free_rail(cma_rail *rail)
{
    cma_pool_close(rail);
    cma_mapper_close(&rail->mapper);
    cma_bulk_close(rail);
    for (cma_job *j = rail->free_job, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    for (cma_ep *ep; (ep = rail->waiting); free_ep(ep))
        rail->waiting = ep->next;
    munmap(rail->table, table_size);
    munmap(rail->shares, sizeof(*rail->shares));
    close(rail->doorbell_fd);
    close(rail->base.wait_fd);
    gr_ready_free(&rail->ready);
    munmap(rail->rights, CMA_REGIONS);
    munmap((void *)rail->known, CMA_REGIONS * sizeof(*rail->known));
    if (atomic_load(&rail->maps) >= 0)
        close(atomic_load(&rail->maps));
    if (!rail->gpu.kept)
        free(rail);
}

int cma_rail_close(cma_rail *rail)
{
    if (rail->open_eps)
        return -EBUSY;
    free_rail(rail);
    return 0;
}

/* The GPU ends neither the copies nor the cancel: the endpoint's jobs stay, with all that the GPU may touch. */
int cma_jobs_keep(cma_ep *ep)
{
    cma_rail *rail = ep->rail;
    for (cma_bulk **at = &rail->gpu.bulks, *b; (b = *at);) {
        if (b->ep != ep) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        b->next = rail->gpu.kept;
        rail->gpu.kept = b;
        rail->gpu.late_device = b->pair->device;
        atomic_fetch_add(&rail->gpu.nkept, 1);
        ep->gpu.kept++;
        b->answered = 1;
        if (!b->err)
            b->err = ECANCELED;
        rail->ready.owed--; /* the core ends the operation when it reaps the link */
        b->ctx = NULL;
    }
    return -EINPROGRESS;
}

int cma_ops_kept(cma_rail *rail, const void *ops)
{
    int used = 0;
    for (cma_bulk *b = rail->gpu.kept; b; b = b->next)
        if (b->work.ops == ops)
            used = b->ops_freed = 1;
    return used;
}

int cma_ep_open(cma_rail *rail, cma_shm *shm, void *ring, uint64_t ring_size, cma_ep **out)
{
    cma_ep *ep = GR_ALLOC(cma_endpoint, calloc(1, sizeof(*ep)));
    if (!ep)
        return -ENOMEM;
    ep->rail = rail;
    ep->peer.sock = ep->peer.pidfd = ep->left = -1;
    atomic_store(&ep->doorbell, -1);
    ep->ring.own = ring;
    ep->ring.own_size = ring_size / CMA_CHUNKS;
    ep->ring.tail = &ep->ring.head;
    cma_views_open(&ep->views);
    gr_rail_lock(&rail->base);
    int rc = gr_ready_room(&rail->ready, (rail->open_eps + 1) * EP_COMPS);
    if (!rc) {
        ep->shm = shm;
        memcpy(shm->proof, rail->proof, sizeof(shm->proof)); /* ours */
        shm->proof_at = (uint64_t)(uintptr_t)rail->proof;
        ep->number = ++rail->numbers;
        ep->next = rail->eps;
        rail->eps = ep;
        rail->open_eps++;
        cma_doze_open(ep);
    }
    gr_rail_unlock(&rail->base);
    if (rc) {
        cma_views_close(&ep->views);
        free(ep);
    } else {
        *out = ep;
    }
    return rc;
}

int cma_ep_shut(cma_ep *ep)
{
    cma_rail *rail = ep->rail;
    gr_rail_lock(&rail->base);
    atomic_store(&ep->shm->closed, 1);
    atomic_store(&ep->closing, 1);
    cma_hang_up(ep);
    int late = cma_cancel(ep);
    ep->err = ESHUTDOWN;
    cma_import_close(ep);
    cma_views_drop(ep);
    gr_rail_unlock(&rail->base);
    int rc = cma_wait_idle(rail, ep, 0);
    return late == -EINPROGRESS || !rc ? late : rc;
}

/* Frees the closed endpoints whose peer's GPU has ended its copies. With the rail locked. */
static void sweep_waiting(cma_rail *rail)
{
    for (cma_ep **at = &rail->waiting, *ep; (ep = *at);) {
        if (cma_ep_copying(ep)) {
            at = &ep->next;
            continue;
        }
        *at = ep->next;
        rail->nwaiting--;
        free_ep(ep);
    }
}

/* A GPU of the peer has not ended a copy to or from our memory: deregistrations must find that out (cma_wait_idle). A peer can claim
 * that for ever, so the number of such endpoints is bounded. With the rail locked. */
static int keep_waiting(cma_ep *ep)
{
    cma_rail *rail = ep->rail;
    sweep_waiting(rail);
    if (!cma_ep_copying(ep) || rail->nwaiting >= WAITING)
        return 0;
    ep->next = rail->waiting;
    rail->waiting = ep;
    rail->nwaiting++;
    return 1;
}

void cma_ep_job_ended(cma_ep *ep)
{
    if (--ep->gpu.kept == 0 && ep->gpu.freed && !keep_waiting(ep))
        free_ep(ep);
}

int cma_ep_free(cma_ep *ep)
{
    cma_rail *rail = ep->rail;
    gr_rail_lock(&rail->base);
    cma_ep **at = &rail->eps;
    while (*at != ep)
        at = &(*at)->next;
    *at = ep->next;
    rail->open_eps--;
    cma_doze_close(ep);
    gr_rail_unlock(&rail->base);
    release_ep(ep);
    gr_rail_lock(&rail->base);
    ep->gpu.freed = 1;
    int stays = ep->gpu.kept || keep_waiting(ep);
    int kept = 0;
    if (ep->peer.lent && ep->peer.pidfd >= 0) {
        int own = stays ? fcntl(ep->peer.pidfd, F_DUPFD_CLOEXEC, 0) : -1;
        kept = stays && own < 0; /* without it the end of a process whose GPU copies would not be seen */
        if (!kept) {
            ep->peer.pidfd = own;
            ep->peer.lent = 0;
        }
    }
    if (!stays)
        free_ep(ep);
    gr_rail_unlock(&rail->base);
    return kept;
}
