/* Memory of GPUs: peers' as our GPUs see it, and the jobs that copy. */
#ifndef GORAIL_LOCAL_VRAM_H
#define GORAIL_LOCAL_VRAM_H

#include <pthread.h>

#include "gr_provider.h"
#include "shared.h"

typedef struct cma_rail cma_rail;
typedef struct cma_ep cma_ep;
typedef struct cma_import cma_import;
typedef struct cma_pair cma_pair;
typedef struct cma_bulk cma_bulk;

/* A region of ours in a GPU's memory: what the core has as its descriptor. */
typedef struct cma_vram {
    int device;
} cma_vram;

/* ---- mapper.c ---- */

/* What the mapper (shm/mapper.go) does: the driver's calls that last milliseconds. */
enum { CMA_BEGIN, CMA_END, CMA_PAIR };
typedef struct cma_task {
    struct cma_task *next;
    int what;
} cma_task;

/* Under mu, which is below the rail's lock. */
typedef struct cma_mapper {
    pthread_mutex_t mu;
    int doorbell_fd; /* rung with each task */
    cma_task *head, **tail;
    uint64_t asked;
    char last_error[256];        /* why memory could not be reached, last */
    _Atomic uint32_t opening; /* imports that are asked for and not there */
} cma_mapper;

void cma_mapper_open(cma_mapper *m, int doorbell_fd);
void cma_mapper_close(cma_mapper *m);
void cma_mapper_add(cma_rail *rail, cma_task *task); /* it is run once, after those before it */
cma_task *cma_mapper_take(cma_rail *rail);           /* the mapper's: the next; NULL */
uint64_t cma_mapper_asked(cma_rail *rail);          /* how many were added, ever */
void cma_set_last_error(cma_rail *rail, const char *text);
/* Keeps the reason why memory can't be reached: a gr_gpu_why, of a call that failed if fault is given. */
void cma_note_error(cma_rail *rail, const char *what, int why, const gr_gpu_fault *fault);
void cma_last_error(cma_rail *rail, char *to, size_t size);

/* ---- import.c ---- */

enum { CMA_ASKED, CMA_READY, CMA_FAILED };
struct cma_import {
    cma_task begin, end;
    cma_import *next; /* of the same region, or ep->left */
    uint64_t key;
    uint32_t index;
    uint32_t jobs;   /* at it; under the rail's lock */
    int self;        /* memory of this very process */
    int device;      /* ours */
    int peer;        /* the memory's GPU, as we number it: the mapper's */
    int why;         /* why no other process can map it, by its owner's word; CMA_FAILED: why it is not there */
    _Atomic int state; /* the rest is the mapper's until it is not CMA_ASKED */
    gr_gpu_share share;
    uint64_t delta;

    /* where its owner gives descriptors */
    uint8_t server_name_len, server_token[CMA_TOKEN];
    char server_name[15];
};

/* The mapper's: the import is there, or why not. 0, or why it is not there all the same. One at a time. */
int cma_import_finish(cma_rail *rail, cma_import *m, int why, uint64_t delta);
/* Likewise of one that is not to be waited for any more. */
void cma_import_abandon(cma_rail *rail);
void cma_import_free(cma_import *m); /* its end has been run */
cma_import *cma_task_import(cma_task *task);

/* A peer's region as a GPU of ours sees it: ready, NULL while it is being mapped (*rc is -EAGAIN), or -ENOTSUP: what may be otherwise the next
 * time is tried again with the next post. With the rail locked. */
cma_import *cma_import_of(cma_ep *ep, const gr_bulk_region *remote, int device, int *rc);
/* The region's memory is wanted no more: unmapped when the mapper has done what it was asked, or as soon as no job is at it. 0: there was
 * none. Without the rail's lock. */
int cma_import_drop(cma_ep *ep, uint32_t index);
/* Those that were dropped are unmapped. With the rail locked. */
void cma_import_sweep(cma_ep *ep);
/* All of the endpoint's, at its end. With the rail locked. */
void cma_import_close(cma_ep *ep);
/* ---- bulk.c ---- */

int cma_bulk_post(gr_rail *base, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
void cma_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx);
void *cma_ops_alloc(gr_rail *base, size_t size);
void cma_ops_free(gr_rail *base, void *mem);
/* Jobs that have ended become completions. */
void cma_bulk_poll(cma_rail *rail);
/* The endpoint's jobs end, however long the GPU has no room for them. With the rail locked; it is not meanwhile. */
void cma_bulk_drain(cma_ep *ep);
void cma_pair_make(cma_rail *rail, cma_task *task); /* the mapper's: one job more */
void cma_bulk_close(cma_rail *rail); /* streams and tables */

#endif
