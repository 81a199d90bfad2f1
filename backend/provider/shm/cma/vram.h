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

/* What the mapper (shm/mapper.go) does: the driver's calls that last milliseconds. */
enum { LC_BEGIN, LC_END, LC_PAIR };
typedef struct lc_task {
    struct lc_task *next;
    int what;
} lc_task;

/* Under mu, which is below the rail's lock. */
typedef struct lc_mapper {
    pthread_mutex_t mu;
    int bell_fd; /* rung with each task */
    lc_task *head, **tail;
    uint64_t asked;
    char trouble[256];        /* why memory could not be reached, last */
    _Atomic uint32_t opening; /* imports that are asked for and not there */
} lc_mapper;

void lc_mapper_open(lc_mapper *m, int bell_fd);
void lc_mapper_close(lc_mapper *m);
void lc_mapper_add(lc_rail *rail, lc_task *task); /* it is run once, after those before it */
lc_task *lc_mapper_take(lc_rail *rail);           /* the mapper's: the next; NULL */
uint64_t lc_mapper_asked(lc_rail *rail);          /* how many were added, ever */
void lc_trouble_set(lc_rail *rail, const char *text);
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
    int peer;        /* the memory's GPU, as we number it: the mapper's */
    int why;         /* why no other process can map it, by its owner's word; LC_FAILED: why it is not there */
    _Atomic int state; /* the rest is the mapper's until it is not LC_ASKED */
    gr_gpu_share share;
    uint64_t delta;

    /* where its owner gives descriptors */
    uint8_t feed_len, feed_token[LC_TOKEN];
    char feed_name[15];
};

/* The mapper's: the import is there, or why not. 0, or why it is not there all the same. One at a time. */
int lc_import_settle(lc_rail *rail, lc_import *m, int why, uint64_t delta);
/* Likewise of one that is not to be waited for any more. */
void lc_import_abandon(lc_rail *rail);
void lc_import_free(lc_import *m); /* its end has been run */
lc_import *lc_task_import(lc_task *task);

/* A peer's region as a GPU of ours sees it: ready, NULL while it is being mapped (*rc is -EAGAIN), or -ENOTSUP: what may be otherwise the next
 * time is tried again with the next post. With the rail locked. */
lc_import *lc_import_of(lc_ep *ep, const gr_bulk_region *remote, int device, int *rc);
/* The region's memory is wanted no more: unmapped when the mapper has done what it was asked, or as soon as no job is at it. 0: there was
 * none. Without the rail's lock. */
int lc_import_drop(lc_ep *ep, uint32_t index);
/* Those that were dropped are unmapped. With the rail locked. */
void lc_import_sweep(lc_ep *ep);
/* All of the endpoint's, at its end. With the rail locked. */
void lc_import_close(lc_ep *ep);
/* ---- bulk.c ---- */

int lc_bulk_post(gr_rail *base, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
void lc_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx);
void *lc_ops_alloc(gr_rail *base, size_t size);
void lc_ops_free(gr_rail *base, void *mem);
/* Jobs that have ended become completions. */
void lc_bulk_poll(lc_rail *rail);
/* The endpoint's jobs end, however long the GPU has no room for them. With the rail locked; it is not meanwhile. */
void lc_bulk_drain(lc_ep *ep);
void lc_pair_make(lc_rail *rail, lc_task *task); /* the mapper's: one job more */
void lc_bulk_close(lc_rail *rail); /* streams and tables */

#endif
