/* GPU memory: peers' memory as our GPUs see it, and the jobs that copy. */
#ifndef GORAIL_SHM_VRAM_H
#define GORAIL_SHM_VRAM_H

#include <pthread.h>
#include <sys/types.h>

#include "gr_provider.h"
#include "shared.h"
#include "view.h"

typedef struct cma_rail cma_rail;
typedef struct cma_ep cma_ep;
typedef struct cma_import cma_import;
typedef struct cma_pair cma_pair;
typedef struct cma_bulk cma_bulk;

/* The descriptor that the core has of a GPU region. */
typedef struct cma_vram {
    int device;
    const gr_gpu_parts *parts; /* what was mapped there at registration; NULL: unknown */
    struct cma_vram *next;     /* retired */
    uint64_t region; /* cma_region_bit of the region's key */
} cma_vram;

/* ---- mapper.c ---- */

/* Tasks of the mapper (shm/mapper.go): calls that last milliseconds. */
enum { CMA_BEGIN, CMA_END, CMA_PAIR, CMA_VIEW_BEGIN, CMA_VIEW_END, CMA_CHANGED };

/* Guarded by mu, which is taken after the rail's lock. */
typedef struct cma_mapper {
    pthread_mutex_t mu;
    int doorbell_fd; /* eventfd, signaled with each task */
    cma_task *head, **tail;
    uint64_t asked;
    char last_error[256];     /* why GPU memory could not be reached, last */
    _Atomic uint32_t opening; /* imports that are requested and not mapped yet */
    _Atomic uint32_t views;   /* and their bytes: of all endpoints */
    _Atomic uint64_t view_bytes;
    _Atomic uint64_t viewed; /* bytes copied through views */
} cma_mapper;

void cma_mapper_open(cma_mapper *m, int doorbell_fd);
void cma_mapper_close(cma_mapper *m);
void cma_mapper_add(cma_rail *rail, cma_task *task); /* runs once, after the tasks before it */
cma_task *cma_mapper_take(cma_rail *rail);           /* for the mapper: the next task, or NULL */
uint64_t cma_mapper_asked(cma_rail *rail);          /* tasks added so far */
void cma_set_last_error(cma_rail *rail, const char *text);
/* Keeps the reason why GPU memory cannot be reached: a gr_gpu_why. fault: the driver call that failed, or NULL. */
void cma_note_error(cma_rail *rail, const char *what, int why, const gr_gpu_fault *fault);
void cma_last_error(cma_rail *rail, char *to, size_t size);

/* ---- import.c ---- */

enum { CMA_ASKED, CMA_READY, CMA_FAILED };
struct cma_import {
    cma_task begin, end;
    cma_import *next; /* of the same region, or in ep->left */
    uint64_t key;
    uint32_t index;
    uint32_t jobs; /* jobs that use the import; under the rail's lock */
    int self;      /* memory of this process */
    pid_t pid;     /* the peer's process; 0: it has no number in our pid namespace */
    int device;    /* our GPU */
    int peer;      /* the GPU that has the memory, in our numbering; set by the mapper */
    /* before the mapping: why no other process can map the memory, as its owner claims. CMA_FAILED: why the mapping failed */
    int why;
    _Atomic int state; /* the mapper owns the fields below while this is CMA_ASKED */
    gr_gpu_share share;
    uint64_t delta;

    /* descriptor server of the owner */
    uint8_t server_place[CMA_PLACE], server_token[CMA_TOKEN];
};

/* For the mapper: ends an import as mapped, or as failed because of `why`. Returns 0 or the reason of the failure.
 * One call at a time. */
int cma_import_finish(cma_rail *rail, cma_import *m, int why, uint64_t delta);
/* For the mapper: ends an import that will not be finished. */
void cma_import_abandon(cma_rail *rail);
void cma_import_free(cma_import *m); /* after its end task */
cma_import *cma_task_import(cma_task *task);

/* A peer's region as our GPU sees it. NULL with *rc: -EAGAIN while the mapping is under way, -ENOTSUP if it has
 * failed. The next post retries a transient failure. Other codes: the peer does not allow the access. With the rail
 * locked. */
cma_import *cma_import_of(cma_ep *ep, const gr_bulk_region *remote, int device, int *rc);
/* Drops the imports of a region. The mapper unmaps each when no job uses it. 0: there was none. Takes the rail's lock. */
int cma_import_drop(cma_ep *ep, uint32_t index);
/* Drops the imports of a key, whose memory is not what was mapped. With the rail locked. */
void cma_import_stale(cma_ep *ep, uint64_t key);
/* Hands dropped imports without jobs to the mapper. With the rail locked. */
void cma_import_sweep(cma_ep *ep);
/* Drops all imports of the endpoint, when it closes. With the rail locked. */
void cma_import_close(cma_ep *ep);
/* ---- bulk.c ---- */

/* Our GPU memory that a job uses. */
typedef struct cma_here {
    const cma_vram *mem;
    uint64_t from, len;
} cma_here;

/* A job of the driver, with its endpoint and context while it is under way. A READ asks the peer and copies at once. A WRITE copies after
 * the peer's answer (ask.c). */
struct cma_bulk {
    cma_bulk *next;
    cma_pair *pair;
    gr_gpu_job *job;
    cma_ep *ep;
    gr_ctx *ctx; /* NULL: the endpoint is closed, and the job has not ended (rail->gpu.kept) */
    uint32_t epoch;
    int write;
    int stopped;            /* no more is to be copied */
    int posted, under_way;  /* the job was posted; it has not ended */
    int answered, err;      /* the peer has answered all; 0 or an errno of the transfer */
    uint32_t asked, asking; /* ranges that the peer has confirmed; those of the present question */
    uint64_t regions;       /* ours that it uses, as cma_region_bit */
    uint64_t late_ns;       /* until then deregistrations wait for it; 0: none has waited */
    gr_gpu_work work;
    int ops_freed; /* the core has freed the operations: they are freed when the job has ended */
    struct {
        cma_range *range; /* of the peer */
        cma_here *here;
        cma_import **on; /* the peer's imports that it uses */
        uint32_t nrange, nhere, room, n;
    } use;
};

/* A stream from one of our GPUs to another GPU, with its free jobs. */
struct cma_pair {
    cma_task task;
    cma_pair *next;
    int device, peer;
    int asked, failed;     /* asked: a task is queued; failed: a gr_gpu_why */
    gr_gpu_stream *stream; /* set by the mapper */
    cma_bulk *free;
};

int cma_bulk_post(gr_rail *base, void *ep, int op, const gr_bulk *bulk, gr_ctx *ctx);
void cma_bulk_stop(gr_rail *base, void *ep, gr_ctx *ctx);
void *cma_ops_alloc(gr_rail *base, size_t size);
void cma_ops_free(gr_rail *base, void *mem);
/* Reports the completions of ended jobs. */
void cma_bulk_poll(cma_rail *rail);
/* Whether a job has more to do than to wait for its peer's answer. */
int cma_bulk_busy(const cma_rail *rail);
/* Frees a descriptor of memory that was registered again. A job that was posted with it may still wait for an answer. Takes the rail's lock. */
void cma_vram_retire(cma_rail *rail, cma_vram *v);
/* Cancels the endpoint's jobs and waits for them, CMA_WAIT_MS at most. -EINPROGRESS: a GPU has not ended some; they stay in
 * rail->gpu.kept, and polls collect them. With the rail locked; unlocks the rail while it waits. */
int cma_bulk_drain(cma_ep *ep);
/* rail.c: moves the endpoint's jobs to rail->gpu.kept. cma_ops_kept: whether such
 * a job reads the operations; they are freed when it has ended. With the rail locked. */
int cma_jobs_keep(cma_ep *ep);
int cma_ops_kept(cma_rail *rail, const void *ops);
void cma_pair_make(cma_rail *rail, cma_task *task); /* for the mapper: makes a stream, if needed, and one job */
void cma_bulk_close(cma_rail *rail); /* frees streams, jobs and tables, unless a job has not ended */

#endif
