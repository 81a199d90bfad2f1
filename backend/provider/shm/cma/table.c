/* Access checks of regions, and the wait for copies under way. Go enters regions (shm/mr.go). The wait is C
 * because it reads the epochs of endpoints under the rail's lock. */
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "cma.h"

int cma_allowed(const cma_entry *table, uint64_t key, uint64_t addr, uint64_t len)
{
    uint64_t generation = key >> 32;
    if ((uint32_t)key >= CMA_REGIONS || !(generation & 1))
        return EACCES;
    const cma_entry *e = &table[(uint32_t)key];
    uint64_t before = atomic_load(&e->generation), base = atomic_load(&e->base), size = atomic_load(&e->len);
    if (before != generation || atomic_load(&e->generation) != generation)
        return EACCES;
    return addr < base || addr - base > size || len > size - (addr - base) ? ERANGE : 0;
}

typedef struct busy {
    uint64_t ep, turn, end; /* ep 0: our own epochs, for copies for peers */
    uint32_t epoch;
} busy;

static uint64_t wait_end(void) { return cma_now() + (uint64_t)CMA_WAIT_MS * 1000000; }

/* Until when a busy epoch is waited for: all deregistrations together wait for a copy once, however many regions end. */
static uint64_t patience_of(cma_patience *p, uint64_t turn)
{
    if (p->turn != turn)
        *p = (cma_patience){turn, wait_end()};
    return p->end;
}

static cma_ep *find_ep(cma_rail *rail, uint64_t number)
{
    cma_ep *lists[] = {rail->eps, rail->waiting};
    for (int i = 0; i < 2; i++)
        for (cma_ep *ep = lists[i]; ep; ep = ep->next)
            if (ep->number == number)
                return ep;
    return NULL;
}

int cma_ep_copying(cma_ep *ep)
{
    for (uint32_t i = CMA_COPIERS; i < CMA_EPOCHS; i++)
        if (atomic_load(&ep->shm->epoch[i].turn) & 1)
            return cma_may_copy(ep);
    return 0;
}

static int busy_at(uint64_t turn, uint64_t at, uint64_t regions) { return (turn & 1) && (!at || !regions || (at & regions)); }

/* Counts the copies under way, and lists the first `most`. With the rail locked. */
static uint32_t find_busy(cma_rail *rail, cma_ep *only, uint64_t regions, busy *out, uint32_t most)
{
    uint32_t n = 0;
    cma_ep *first[] = {only ? only : rail->eps, only ? NULL : rail->waiting};
    for (uint32_t k = 0; k < 2 * CMA_EPOCHS; k++)
        for (cma_ep *ep = first[k / CMA_EPOCHS]; ep; ep = only ? NULL : ep->next) {
            uint32_t i = k % CMA_EPOCHS;
            uint64_t turn = atomic_load(&ep->shm->epoch[i].turn), at = atomic_load(&ep->shm->epoch[i].regions);
            if (!(turn & 1))
                continue;
            /* an endpoint's close waits anew: it makes the peer end its copies */
            uint64_t end = only ? wait_end() : patience_of(&ep->waited[i], turn);
            /* `regions` may be of a later turn. That is harmless: a later turn checks the generations again */
            if (busy_at(turn, at, regions)) {
                if (n < most)
                    out[n] = (busy){ep->number, turn, end, i};
                n++;
            }
        }
    for (uint32_t i = 0; !only && i < CMA_COPIERS; i++) {
        uint64_t turn = atomic_load(&rail->pool.own[i].turn);
        if (turn & 1 && busy_at(turn, atomic_load(&rail->pool.own[i].regions), regions)) {
            if (n < most)
                out[n] = (busy){0, turn, patience_of(&rail->pool.waited[i], turn), i};
            n++;
        }
    }
    return n;
}

/* Whether a listed copy is under way. *pid: whose it is. With the rail locked. */
static int still_busy(cma_rail *rail, const busy *at, pid_t *pid)
{
    *pid = getpid();
    if (!at->ep)
        return atomic_load(&rail->pool.own[at->epoch].turn) == at->turn;
    cma_ep *ep = find_ep(rail, at->ep);
    if (!ep || atomic_load(&ep->shm->epoch[at->epoch].turn) != at->turn || !cma_may_copy(ep))
        return 0;
    *pid = ep->peer.pid;
    return 1;
}

/* Waits for the listed copies, each until its end. -ETIMEDOUT: one has not ended. */
static int wait_for(cma_rail *rail, busy *list, uint32_t n)
{
    int rc = 0;
    while (n) {
        uint32_t left = 0, gone = 0;
        pid_t pid, late = 0; /* 0: unknown */
        gr_rail_lock(&rail->base);
        for (uint32_t i = 0; i < n; i++) {
            if (!still_busy(rail, &list[i], &pid))
                continue;
            if (cma_now() > list[i].end) {
                late = pid;
                gone++;
            } else {
                list[left++] = list[i];
            }
        }
        gr_rail_unlock(&rail->base);
        n = left;
        if (gone) {
            cma_note_late(rail, late);
            rc = -ETIMEDOUT;
        }
        if (n)
            nanosleep(&(struct timespec){.tv_nsec = CMA_SLEEP_US * 1000}, NULL);
    }
    return rc;
}

/* Whether a job under way uses one of these regions of ours. *left: one of them is waited for still. With the rail locked. */
static int jobs_use(cma_rail *rail, uint64_t regions, int *left)
{
    cma_bulk *lists[] = {rail->gpu.bulks, rail->gpu.kept};
    uint64_t now = cma_now();
    int busy = *left = 0;
    for (int i = 0; i < 2; i++)
        for (cma_bulk *b = lists[i]; b; b = b->next) {
            if (!b->under_way) /* it waits for an answer, and touches nothing */
                continue;
            if (!b->late_ns) /* all jobs: the next region waits no more for what this one has waited for */
                b->late_ns = wait_end();
            if (regions && !(b->regions & regions))
                continue;
            rail->gpu.late_device = b->pair->device;
            busy = 1;
            *left |= now <= b->late_ns;
        }
    return busy;
}

/* Waits for jobs of our GPUs that use our regions. */
static int wait_jobs(cma_rail *rail, uint64_t regions)
{
    for (uint64_t end = wait_end();;) {
        int left;
        gr_rail_lock(&rail->base);
        if (rail->gpu.bulks || rail->gpu.kept)
            cma_bulk_poll(rail);
        int busy = jobs_use(rail, regions, &left);
        gr_rail_unlock(&rail->base);
        if (!busy || !left || cma_now() > end)
            return busy ? -EINPROGRESS : 0;
        nanosleep(&(struct timespec){.tv_nsec = CMA_SLEEP_US * 1000}, NULL);
    }
}

/* Works without memory: a wait that is left out would let a copy land in memory that is no longer registered. */
int cma_wait_idle(cma_rail *rail, cma_ep *only, uint64_t regions)
{
    enum { MOST = 128 }; /* more copies than threads make at a time are waited for in turns */
    busy list[MOST];
    uint32_t n;
    int rc = 0;
    do {
        gr_rail_lock(&rail->base);
        n = find_busy(rail, only, regions, list, MOST);
        gr_rail_unlock(&rail->base);
        rc = wait_for(rail, list, n < MOST ? n : MOST);
    } while (!rc && n > MOST);
    return rc || only ? rc : wait_jobs(rail, regions);
}
