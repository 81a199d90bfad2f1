/* See page.h. Tables use open addressing. A removed key leaves the mark DEAD, because other processes read without a lock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "page.h"

enum { EMPTY, DEAD, LIVE };

fab_page *fab_page_new(int *fd)
{
    fab_page *page;
    *fd = memfd_create("fabric", MFD_CLOEXEC);
    if (*fd < 0)
        return NULL;
    page = ftruncate(*fd, sizeof(*page)) ? MAP_FAILED : mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (page == MAP_FAILED) {
        close(*fd);
        return NULL;
    }
    return page;
}

int fab_own_pid(void)
{
    char text[16] = "";
    ssize_t n = readlink("/proc/self", text, sizeof(text) - 1);
    return n > 0 ? atoi(text) : getpid();
}

fab_page *fab_page_of(int pid, int fd)
{
    char path[64];
    fab_page *page;
    int copy;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    copy = open(path, O_RDWR | O_CLOEXEC);
    if (copy < 0)
        return NULL;
    page = lseek(copy, 0, SEEK_END) != (off_t)sizeof(*page) ? MAP_FAILED : mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
    close(copy);
    return page == MAP_FAILED ? NULL : page;
}

void fab_page_drop(fab_page *page)
{
    if (page)
        munmap(page, sizeof(*page));
}

static uint64_t hash(uint64_t v)
{
    v *= UINT64_C(0x9e3779b97f4a7c15);
    return v >> 29;
}

/* Finds the peer's slot, or NULL. add: else takes over the first slot on the probe path that is empty or has no insertions. */
static fab_page_peer *find_peer(fab_page *page, uint64_t cookie, bool add)
{
    fab_page_peer *spare = NULL;
    for (uint64_t i = 0; i < FAB_PEERS; i++) {
        fab_page_peer *p = &page->peer[(hash(cookie) + i) % FAB_PEERS];
        uint64_t have = atomic_load(&p->cookie);
        if (have == cookie)
            return p;
        if (!spare && (!have || atomic_load(&p->inserted) == 0))
            spare = p;
        if (!have)
            break;
    }
    if (!add || !spare)
        return NULL;
    for (int e = 0; e < FAB_EPS; e++)
        atomic_store(&spare->receives[e], 0);
    atomic_store(&spare->inserted, 0);
    atomic_store(&spare->ever_inserted, 0);
    atomic_store(&spare->cookie, cookie);
    return spare;
}

void fab_page_insert(fab_page *page, uint64_t cookie, int count)
{
    fab_page_peer *p = find_peer(page, cookie, true);
    if (p)
        atomic_fetch_add(&p->inserted, count);
    if (p && count > 0)
        atomic_store(&p->ever_inserted, 1);
}

bool fab_page_inserted(fab_page *page, uint64_t cookie)
{
    fab_page_peer *p = find_peer(page, cookie, false);
    return p && atomic_load(&p->inserted) > 0;
}

bool fab_page_ever_inserted(fab_page *page, uint64_t cookie)
{
    fab_page_peer *p = find_peer(page, cookie, false);
    return p && atomic_load(&p->ever_inserted);
}

bool fab_page_post(fab_page *page, uint32_t ep, uint64_t cookie, int count)
{
    fab_page_peer *p = cookie ? find_peer(page, cookie, true) : NULL;
    if (cookie && !p)
        return false;
    atomic_fetch_add(p ? &p->receives[ep] : &page->ep[ep].receives, count);
    return true;
}

static bool take(_Atomic int32_t *count)
{
    int32_t have = atomic_load(count);
    while (have > 0)
        if (atomic_compare_exchange_weak(count, &have, have - 1))
            return true;
    return false;
}

int fab_page_take(fab_page *page, uint32_t ep, uint64_t cookie)
{
    fab_page_peer *p = find_peer(page, cookie, false);
    if (p && take(&p->receives[ep]))
        return 1;
    return take(&page->ep[ep].receives) ? 2 : 0;
}

static fab_page_key *find_key(fab_page *page, uint64_t key)
{
    for (uint64_t i = 0; i < FAB_KEYS; i++) {
        fab_page_key *k = &page->key[(hash(key) + i) % FAB_KEYS];
        uint64_t state = atomic_load(&k->state) & 3;
        if (state == EMPTY)
            return NULL;
        if (state == LIVE && k->key == key)
            return k;
    }
    return NULL;
}

bool fab_page_key_add(fab_page *page, const fab_page_key *key)
{
    for (uint64_t i = 0; i < FAB_KEYS; i++) {
        fab_page_key *k = &page->key[(hash(key->key) + i) % FAB_KEYS];
        uint64_t state = atomic_load(&k->state);
        if ((state & 3) == LIVE)
            continue;
        k->key = key->key;
        k->base = key->base;
        k->len = key->len;
        k->access = key->access;
        k->ep = key->ep;
        atomic_store(&k->state, ((state >> 2) + 1) << 2 | LIVE);
        return true;
    }
    return false;
}

/* DEAD marks in front of an EMPTY slot become EMPTY. Otherwise all free slots would be DEAD in the end, and searches slow. */
void fab_page_key_drop(fab_page *page, uint64_t key)
{
    fab_page_key *k = find_key(page, key);
    uint64_t i = k ? (uint64_t)(k - page->key) : 0;
    if (!k)
        return;
    atomic_fetch_and(&k->state, ~UINT64_C(3));
    atomic_fetch_or(&k->state, DEAD);
    if ((atomic_load(&page->key[(i + 1) % FAB_KEYS].state) & 3) != EMPTY)
        return;
    for (; (atomic_load(&page->key[i].state) & 3) == DEAD; i = (i + FAB_KEYS - 1) % FAB_KEYS)
        atomic_fetch_and(&page->key[i].state, ~UINT64_C(3));
}

bool fab_page_key_get(fab_page *page, uint64_t key, fab_page_key *out)
{
    fab_page_key *k = find_key(page, key);
    uint64_t state;
    if (!k)
        return false;
    state = atomic_load(&k->state);
    out->key = k->key;
    out->base = k->base;
    out->len = k->len;
    out->access = k->access;
    out->ep = k->ep;
    atomic_thread_fence(memory_order_acquire);
    return (state & 3) == LIVE && atomic_load(&k->state) == state && out->key == key;
}
