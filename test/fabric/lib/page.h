/* What endpoints of one host know about each other, as memory that they share: a domain's endpoints, the addresses that
 * they have inserted, receives posted, regions. An address names process and descriptor, so nothing is left behind by a
 * process that was killed. The initiator's side looks here for what the target's device would check.
 */
#ifndef FAB_PAGE_H
#define FAB_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAB_EPS = 8, FAB_PEERS = 1 << 12, FAB_KEYS = 1 << 19 };

typedef struct fab_page_peer {
    _Atomic uint64_t cookie;
    _Atomic int32_t inserted;
    _Atomic int32_t knew; /* it was inserted at some time */
    _Atomic int32_t receives[FAB_EPS]; /* that only this peer may use, by endpoint */
} fab_page_peer;

typedef struct fab_page_key {
    _Atomic uint64_t state; /* generation << 2 | EMPTY, DEAD or LIVE */
    uint64_t key, base, len, access;
    uint64_t ep; /* cookie of the endpoint that it belongs to, or 0 */
} fab_page_key;

typedef struct fab_page {
    struct {
        _Atomic uint64_t cookie; /* 0: closed */
        _Atomic int32_t receives; /* that any peer may use */
    } ep[FAB_EPS];
    fab_page_peer peer[FAB_PEERS];
    fab_page_key key[FAB_KEYS];
} fab_page;

/* The number of this process in the mounted /proc, which a pid namespace of its own doesn't change. */
int fab_own_pid(void);

fab_page *fab_page_new(int *fd);
fab_page *fab_page_of(int pid, int fd);
void fab_page_drop(fab_page *page);

/* Adds to (or takes from) the count of insertions. */
void fab_page_insert(fab_page *page, uint64_t cookie, int count);
bool fab_page_knows(fab_page *page, uint64_t cookie);
bool fab_page_knew(fab_page *page, uint64_t cookie);

/* One receive more for a peer (cookie 0: for all). False: no room for the peer. */
bool fab_page_post(fab_page *page, uint32_t ep, uint64_t cookie, int count);
/* Takes one, for the peer or for all. 0: none is there; 1: the peer's; 2: one of all. */
int fab_page_take(fab_page *page, uint32_t ep, uint64_t cookie);

bool fab_page_key_add(fab_page *page, const fab_page_key *key);
void fab_page_key_drop(fab_page *page, uint64_t key);
bool fab_page_key_get(fab_page *page, uint64_t key, fab_page_key *out);

#endif
