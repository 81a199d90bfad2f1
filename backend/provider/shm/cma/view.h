/* Views: regions of a peer that are files in memory (memfd, POSIX shared memory, hugetlbfs), mapped into this process. */
#ifndef GORAIL_SHM_VIEW_H
#define GORAIL_SHM_VIEW_H

#include <pthread.h>
#include <sys/types.h>

#include "shared.h"

/* A task of the mapper (shm/mapper.go). */
typedef struct cma_task {
    struct cma_task *next;
    int what;
} cma_task;

enum { CMA_VIEW_ASKED, CMA_VIEW_READY, CMA_VIEW_FAILED };

enum {
    CMA_VIEWS = 256,      /* of an endpoint, a power of two */
    CMA_ALL_VIEWS = 4096, /* of a rail */
};
#define CMA_VIEW_BYTES (UINT64_C(4) << 40) /* of a rail: page tables take a 512th of it */

typedef struct cma_view {
    cma_task begin, end;
    struct cma_view *next; /* in its list */
    uint64_t key, base, len; /* the region as the peer's table had it */
    uint32_t users;      /* the list, and threads that copy; under cma_views.mu */
    uint64_t retry_ns; /* of a failed view: the time of the next try; written before the state */
    _Atomic int state;
    uint8_t *at; /* of the region's first byte. The mapper writes it, and the next one, before the state is CMA_VIEW_READY */
    int writable;
    uint64_t dev, inode, offset; /* of the file, and of the region's first byte in it, as cma_range has them */
    pid_t pid;     /* the peer's process; 0: it has no number in our pid namespace */
    uint8_t server_place[CMA_PLACE], server_token[CMA_TOKEN];
} cma_view;

/* The views of an endpoint. A list per hash of the region's index; mu guards all of it. */
typedef struct cma_views {
    pthread_mutex_t mu;
    uint32_t n;
    int used; /* there has been a view. Written under the rail's lock */
    cma_view **list; /* CMA_VIEWS of them; NULL before the first view: most endpoints have none */
    cma_view *none;  /* the list of a key until then: empty */
} cma_views;

void cma_views_open(cma_views *vs);
void cma_views_close(cma_views *vs);
/* Whether a view of the key is there, in any state. *due: a failed one whose next try is due by then, taken off the list; or NULL. */
int cma_view_known(cma_views *vs, uint64_t key, uint64_t now, cma_view **due);
/* Whether READs, or WRITEs too, can go through the view of the key. */
int cma_view_usable(cma_views *vs, uint64_t key, int write);
/* Adds a view, which the list owns; 0: there is no room. */
int cma_view_add(cma_views *vs, cma_view *v);
/* The usable view of that key with all of the range, to copy through; NULL: there is none. The caller puts it back. */
cma_view *cma_view_get(cma_views *vs, uint64_t key, int write, uint64_t addr, uint64_t len);
/* Describes the file behind a range of the usable view of that key; 0: there is none. */
int cma_view_range(cma_views *vs, uint64_t key, int write, uint64_t addr, uint64_t len, cma_range *out);
/* Ends one use. 1: it was the last one, and the caller adds the end task. */
int cma_view_put(cma_views *vs, cma_view *v);
/* Nothing more goes through the views of these keys. */
void cma_view_fail(cma_views *vs, uint64_t key);
/* Takes the view of a key off the list; NULL: there is none. The caller puts it back. */
cma_view *cma_view_take(cma_views *vs, uint64_t key);
cma_view *cma_view_take_any(cma_views *vs);

#endif
