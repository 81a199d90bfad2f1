/* A domain's page: shared memory with the domain's endpoints, inserted addresses, posted receives and regions. The domains of other
 * processes of the host map the page. The initiator's library reads there what the target's device would check. An address names the
 * process and the descriptor of the page, so a killed process leaves nothing behind.
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
    _Atomic int32_t ever_inserted;
    _Atomic int32_t receives[FAB_EPS]; /* posted receives that only this peer may use, by endpoint */
} fab_page_peer;

typedef struct fab_page_key {
    _Atomic uint64_t state; /* generation << 2 | EMPTY, DEAD or LIVE */
    uint64_t key, base, len, access;
    uint64_t ep; /* cookie of the region's endpoint, or 0 */
} fab_page_key;

typedef struct fab_page {
    struct {
        _Atomic uint64_t cookie; /* 0: closed */
        _Atomic int32_t receives; /* posted receives that any peer may use */
    } ep[FAB_EPS];
    fab_page_peer peer[FAB_PEERS];
    fab_page_key key[FAB_KEYS];
} fab_page;

/* This process's id in the mounted /proc. Inside a pid namespace it differs from getpid() if /proc is the host's. */
int fab_own_pid(void);

fab_page *fab_page_new(int *fd);
/* Maps the page of a process, or returns NULL. */
fab_page *fab_page_of(int pid, int fd);
void fab_page_drop(fab_page *page);

/* Adds count, which may be negative, to the number of insertions of an address. */
void fab_page_insert(fab_page *page, uint64_t cookie, int count);
bool fab_page_inserted(fab_page *page, uint64_t cookie);
bool fab_page_ever_inserted(fab_page *page, uint64_t cookie);

/* Adds count receives for a peer (cookie 0: for all peers). false: the table of peers is full. */
bool fab_page_post(fab_page *page, uint32_t ep, uint64_t cookie, int count);
/* Takes a receive for the peer. 0: there is none; 1: a receive of this peer; 2: a receive for all peers. */
int fab_page_take(fab_page *page, uint32_t ep, uint64_t cookie);

bool fab_page_key_add(fab_page *page, const fab_page_key *key);
void fab_page_key_drop(fab_page *page, uint64_t key);
bool fab_page_key_get(fab_page *page, uint64_t key, fab_page_key *out);

#endif
