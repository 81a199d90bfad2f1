/* Access checks of regions, and the wait for copies under way. Go enters regions (shm/table.go). The wait is C
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
    uint64_t ep, turn; /* ep 0: our own epochs, for copies for peers */
    uint32_t epoch;
} busy;

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
            return cma_alive(ep);
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
            /* `regions` may be of a later turn. That is harmless: a later turn checks the generations again */
            if (busy_at(turn, at, regions)) {
                if (n < most)
                    out[n] = (busy){ep->number, turn, i};
                n++;
            }
        }
    for (uint32_t i = 0; !only && i < CMA_COPIERS; i++) {
        uint64_t turn = atomic_load(&rail->pool.own[i].turn);
        if (busy_at(turn, atomic_load(&rail->pool.own[i].regions), regions)) {
            if (n < most)
                out[n] = (busy){0, turn, i};
            n++;
        }
    }
    return n;
}

/* Waits for the listed copies. -ETIMEDOUT at `end`. */
static int wait_for(cma_rail *rail, busy *list, uint32_t n, uint64_t end)
{
    while (n) {
        uint32_t left = 0;
        gr_rail_lock(&rail->base);
        for (uint32_t i = 0; i < n; i++) {
            if (!list[i].ep) {
                if (atomic_load(&rail->pool.own[list[i].epoch].turn) == list[i].turn)
                    list[left++] = list[i];
                continue;
            }
            cma_ep *ep = find_ep(rail, list[i].ep);
            if (ep && atomic_load(&ep->shm->epoch[list[i].epoch].turn) == list[i].turn && cma_alive(ep))
                list[left++] = list[i];
        }
        int over = left && cma_now() > end;
        cma_ep *late = over && list[0].ep ? find_ep(rail, list[0].ep) : NULL;
        pid_t pid = late ? late->peer.pid : getpid();
        gr_rail_unlock(&rail->base);
        n = left;
        if (over) {
            cma_note_late(rail, pid);
            return -ETIMEDOUT;
        }
        if (n)
            nanosleep(&(struct timespec){.tv_nsec = CMA_SLEEP_US * 1000}, NULL);
    }
    return 0;
}

int cma_bulk_uses(cma_rail *rail, uint64_t regions)
{
    cma_bulk *lists[] = {rail->gpu.bulks, rail->gpu.kept};
    for (int i = 0; i < 2; i++)
        for (cma_bulk *b = lists[i]; b; b = b->next)
            if (b->under_way && (!regions || (b->regions & regions))) { /* else it waits for an answer, and touches nothing */
                rail->gpu.late_device = b->pair->device;
                return 1;
            }
    return 0;
}

/* Waits for jobs of our GPUs that use our regions. */
static int wait_jobs(cma_rail *rail, uint64_t regions, uint64_t end)
{
    for (;;) {
        gr_rail_lock(&rail->base);
        if (rail->gpu.bulks || rail->gpu.kept)
            cma_bulk_poll(rail);
        int busy = cma_bulk_uses(rail, regions);
        gr_rail_unlock(&rail->base);
        if (!busy || cma_now() > end)
            return busy ? -EINPROGRESS : 0;
        nanosleep(&(struct timespec){.tv_nsec = CMA_SLEEP_US * 1000}, NULL);
    }
}

/* Works without memory: a wait that is left out would let a copy land in memory that is no longer registered. */
int cma_wait_idle(cma_rail *rail, cma_ep *only, uint64_t regions)
{
    enum { MOST = 128 }; /* more copies than threads make at a time are waited for in turns */
    busy list[MOST];
    uint64_t end = cma_now() + (uint64_t)CMA_WAIT_MS * 1000000;
    uint32_t n;
    int rc = 0;
    do {
        gr_rail_lock(&rail->base);
        n = find_busy(rail, only, regions, list, MOST);
        gr_rail_unlock(&rail->base);
        rc = wait_for(rail, list, n < MOST ? n : MOST, end);
    } while (!rc && n > MOST);
    return rc || only ? rc : wait_jobs(rail, regions, end);
}
