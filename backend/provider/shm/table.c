/* Regions as peers see them, and the wait for those that are copying. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "local.h"

uint64_t lc_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* With table_mu. 0: there is no room. */
static uint64_t put_share(lc_rail *rail, const gr_gpu_share *share, const gr_gpu_mem *mem)
{
    if (!rail->free_shares && rail->used_shares == LC_SHARES)
        return 0;
    uint32_t place = rail->free_shares ? rail->free_share[--rail->free_shares] : rail->used_shares++;
    rail->shares->share[place] = *share;
    rail->mem[place] = *mem;
    return place + 1;
}

int lc_mr_open(lc_rail *rail, uint64_t base, uint64_t len, const gr_gpu_share *share, const gr_gpu_mem *mem, uint64_t *key)
{
    int rc = 0;
    pthread_mutex_lock(&rail->table_mu);
    uint32_t index = rail->entries;
    uint64_t told = share ? put_share(rail, share, mem) : 0;
    if (share && !told)
        rc = -ENOSPC;
    else if (rail->free_entries)
        index = rail->free_entry[--rail->free_entries];
    else if (index == LC_REGIONS)
        rc = -ENOSPC;
    else
        rail->entries++;
    if (!rc) {
        lc_entry *e = &rail->table[index];
        uint64_t generation = atomic_load(&e->generation) + 1;
        atomic_store(&e->base, base);
        atomic_store(&e->len, len);
        atomic_store(&e->share, told);
        atomic_store(&e->generation, generation);
        *key = generation << 32 | index;
        atomic_fetch_add(&rail->open_mrs, 1);
    } else if (told) {
        rail->free_share[rail->free_shares++] = (uint32_t)told - 1;
    }
    pthread_mutex_unlock(&rail->table_mu);
    return rc;
}

int lc_mr_close(lc_rail *rail, uint64_t key)
{
    uint32_t index = (uint32_t)key;
    atomic_fetch_add(&rail->table[index].generation, 1); /* before any lane is looked at */
    int rc = lc_quiet(rail, NULL, lc_region_bit(key));
    pthread_mutex_lock(&rail->table_mu);
    /* 31 bits of a key are the generation; an entry that has used them up is not used again. */
    if (atomic_load(&rail->table[index].generation) < UINT32_MAX - 1)
        rail->free_entry[rail->free_entries++] = index;
    if (atomic_load(&rail->table[index].share))
        rail->free_share[rail->free_shares++] = (uint32_t)atomic_load(&rail->table[index].share) - 1;
    pthread_mutex_unlock(&rail->table_mu);
    atomic_fetch_sub(&rail->open_mrs, 1);
    return rc;
}

int lc_allowed(const lc_entry *table, uint64_t key, uint64_t addr, uint64_t len)
{
    uint64_t generation = key >> 32;
    if ((uint32_t)key >= LC_REGIONS || !(generation & 1))
        return EACCES;
    const lc_entry *e = &table[(uint32_t)key];
    uint64_t before = atomic_load(&e->generation), base = atomic_load(&e->base), size = atomic_load(&e->len);
    if (before != generation || atomic_load(&e->generation) != generation)
        return EACCES;
    return addr < base || addr - base > size || len > size - (addr - base) ? ERANGE : 0;
}

typedef struct busy {
    uint64_t ep, turn; /* ep 0: ours, for peers */
    uint32_t lane;
} busy;

static lc_ep *find(lc_rail *rail, uint64_t number)
{
    lc_ep *ep = rail->eps;
    while (ep && ep->number != number)
        ep = ep->next;
    return ep;
}

static int busy_at(uint64_t turn, uint64_t at, uint64_t regions) { return (turn & 1) && (!at || !regions || (at & regions)); }

/* With the rail locked. */
static uint32_t look(lc_rail *rail, lc_ep *only, uint64_t regions, busy *out)
{
    uint32_t n = 0;
    for (lc_ep *ep = only ? only : rail->eps; ep; ep = only ? NULL : ep->next)
        for (uint32_t i = 0; i < LC_LANES; i++) {
            uint64_t turn = atomic_load(&ep->box->lane[i].turn), at = atomic_load(&ep->box->lane[i].regions);
            if (busy_at(turn, at, regions)) { /* of a later turn, which looks at generations anew: no harm */
                if (out)
                    out[n] = (busy){ ep->number, turn, i };
                n++;
            }
        }
    for (uint32_t i = 0; !only && i < LC_COPIERS; i++) {
        uint64_t turn = atomic_load(&rail->pool.own[i].turn);
        if (busy_at(turn, atomic_load(&rail->pool.own[i].regions), regions)) {
            if (out)
                out[n] = (busy){ 0, turn, i };
            n++;
        }
    }
    return n;
}

int lc_quiet(lc_rail *rail, lc_ep *only, uint64_t regions)
{
    gr_rail_lock(&rail->base);
    uint32_t n = look(rail, only, regions, NULL);
    gr_rail_unlock(&rail->base);
    if (n == 0)
        return 0;
    gr_rail_lock(&rail->base);
    busy *list = malloc((rail->open_eps + 1) * LC_LANES * sizeof(*list));
    n = list ? look(rail, only, regions, list) : 0;
    gr_rail_unlock(&rail->base);
    if (!list)
        return -ENOMEM;
    for (uint64_t end = lc_now() + (uint64_t)LC_WAIT_MS * 1000000; n;) {
        uint32_t left = 0;
        gr_rail_lock(&rail->base);
        for (uint32_t i = 0; i < n; i++) {
            if (!list[i].ep) {
                if (atomic_load(&rail->pool.own[list[i].lane].turn) == list[i].turn)
                    list[left++] = list[i];
                continue;
            }
            lc_ep *ep = find(rail, list[i].ep);
            if (ep && atomic_load(&ep->box->lane[list[i].lane].turn) == list[i].turn && lc_alive(ep))
                list[left++] = list[i];
        }
        int over = left && lc_now() > end;
        lc_ep *late = over && list[0].ep ? find(rail, list[0].ep) : NULL;
        pid_t pid = late ? late->pid : getpid();
        gr_rail_unlock(&rail->base);
        n = left;
        if (over) {
            lc_note_late(rail, pid);
            break;
        }
        if (n)
            nanosleep(&(struct timespec){ .tv_nsec = LC_NAP_US * 1000 }, NULL);
    }
    free(list);
    return n ? -ETIMEDOUT : 0;
}
