/* Memory of GPUs: peers' as our GPUs see it, and the jobs that copy. */
#ifndef GORAIL_LOCAL_VRAM_H
#define GORAIL_LOCAL_VRAM_H

#include <pthread.h>

#include "gr_provider.h"
#include "shared.h"

typedef struct lc_rail lc_rail;
typedef struct lc_ep lc_ep;
typedef struct lc_import lc_import;
typedef struct lc_pair lc_pair;
typedef struct lc_bulk lc_bulk;

/* A region of ours in a GPU's memory: what the core has as its descriptor. */
typedef struct lc_vram {
    int device;
} lc_vram;

/* ---- mapper.c ---- */

/* The thread that calls the driver where that lasts milliseconds, and what it does: under mu, which is below the rail's lock. It waits for no
 * peer: an import that a peer still has to bring something for is parked, and looked at between tasks. */
typedef struct lc_task {
    struct lc_task *next;
    void (*run)(lc_rail *rail, struct lc_task *task);
} lc_task;

typedef struct lc_mapper {
    pthread_mutex_t mu;
    pthread_cond_t work, idle;
    pthread_t thread;
    int up, stop;
    lc_task *head, **tail;
    uint64_t asked, done;
    char trouble[256];  /* why memory could not be reached, last */
    lc_import *parked;  /* the thread's own */
    _Atomic uint32_t opening; /* imports that are asked for and not there */
} lc_mapper;

void lc_mapper_open(lc_mapper *m);
void lc_mapper_close(lc_rail *rail);
int lc_mapper_add(lc_rail *rail, lc_task *task); /* runs it once, after those before it; 0 or a negative errno */
void lc_mapper_wait(lc_rail *rail); /* until what was added has been run. Without the rail's lock */
/* Keeps the reason why memory can't be reached: a gr_gpu_why, of a call that failed if fault is given. */
void lc_trouble(lc_rail *rail, const char *what, int why, const gr_gpu_fault *fault);
void lc_trouble_text(lc_rail *rail, char *to, size_t size);

/* ---- import.c ---- */

enum { LC_ASKED, LC_READY, LC_FAILED };
struct lc_import {
    lc_task begin, end;
    lc_import *next; /* of the same region, or ep->left */
    uint64_t key;
    uint32_t index;
    uint32_t jobs;   /* at it; under the rail's lock */
    int self;        /* memory of this very process */
    int device;      /* ours */
    int peer;        /* the memory's GPU, as we number it */
    int why;         /* LC_FAILED: why */
    _Atomic int state; /* the rest is the mapper's until it is not LC_ASKED */
    gr_gpu_share share;
    gr_gpu_map *map; /* NULL: memory of this process as it is */
    uint64_t delta;

    /* pieces that its owner has to send, while it is parked */
    lc_import *parked;
    int feeder, sock, met; /* sock: -1 for none; met: it is connected */
    uint32_t fed, want;    /* pieces that are mapped, and that were asked for */
    uint64_t until;        /* CLOCK_MONOTONIC ns: when patience ends */
    uint8_t feed_len, feed_token[LC_TOKEN];
    char feed_name[15];
};

/* A peer's region as a GPU of ours sees it: ready, NULL while it is being mapped (*rc is -EAGAIN), or -ENOTSUP: what may be otherwise the next
 * time is tried again with the next post. With the rail locked. */
lc_import *lc_import_of(lc_ep *ep, const gr_bulk_region *remote, int device, int *rc);
/* The region's memory is wanted no more: unmapped before it returns, or as soon as no job is at it. Without the rail's lock. */
void lc_import_drop(lc_ep *ep, uint32_t index);
/* Those that were dropped are unmapped. With the rail locked. */
void lc_import_sweep(lc_ep *ep);
/* All of the endpoint's, at its end. With the rail locked. */
void lc_import_close(lc_ep *ep);
/* The mapper's, when it has no task: waits for peers, a millisecond at most. */
void lc_import_step(lc_rail *rail);

/* ---- fetch.c: descriptors of VMM memory; their owner's side is Go's (package descriptors) ---- */

enum {
    LC_PIECES = 64,  /* of a message; the kernel takes 253 */
    LC_PATIENCE_S = 5,
};

typedef struct lc_want {
    uint8_t token[LC_TOKEN];
    uint64_t key;
    uint32_t first, n;
} lc_want;

typedef struct lc_given {
    int32_t why; /* a gr_gpu_why */
    uint32_t n;
    uint64_t size[LC_PIECES];
} lc_given;

/* The next step of bringing an import's pieces, without waiting. 1: more is to come, 0: all are there; else a negative gr_gpu_why. */
int lc_fetch(gr_gpu *g, lc_import *in, gr_gpu_fault *fault);
void lc_fetch_end(lc_import *in);

/* ---- bulk.c ---- */

int lc_bulk_post(gr_rail *base, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
void lc_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx);
void *lc_ops_alloc(gr_rail *base, size_t size);
void lc_ops_free(gr_rail *base, void *mem);
/* Jobs that have ended become completions. */
void lc_bulk_poll(lc_rail *rail);
/* The endpoint's jobs end, however long the GPU has no room for them. With the rail locked; it is not meanwhile. */
void lc_bulk_drain(lc_ep *ep);
void lc_bulk_close(lc_rail *rail); /* streams and tables */

#endif
