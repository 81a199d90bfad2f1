/* CUDA's driver behind gr_gpu.h.
 *
 * What posts and polls, and what C calls: loader.c (the table of the driver's calls), device.c (contexts), arena.c (pinned memory), table.c, stream.c
 * (streams, jobs), post.c, copy_engine.c. What memory is, for peers, peers' and pinned is Go's, over the same table (cuda.go).
 *
 * Locks, none taken under another: mu (devices, marks, tables), arena_mu, stream_mu.
 */
#ifndef GORAIL_GPU_INT_H
#define GORAIL_GPU_INT_H

#include <pthread.h>

#include "cuda_abi.h"
#include "gr_gather.h"
#include "gr_gpu.h"

enum {
    GG_DEVICES = 64,
    GG_CHUNKS = 512,
    GG_CLASSES = 40,            /* of blocks of the arena, powers of two */
    GG_MARKS = 4096,            /* of one allocation */
    GG_TABLE = 4096,            /* entries at first */
    GG_PIECES = 1 << 20,        /* handles of a mapping */
    /* Bytes that a copy engine gets at a time, at first and once it is known how fast it is. At 396 GB/s 16 MiB cost 7 %, 64 MiB 2 %. */
    GG_PIECE = 64 << 20,
    GG_PIECE_HOST = 16 << 20,   /* towards host memory, where as many take ten times as long */
    GG_PIECE_LEAST = 16 << 20, GG_PIECE_MOST = 256 << 20, GG_PIECE_ALIGN = 2 << 20,
    GG_PIECE_NS = 900000,       /* for each of the two that are queued: a release waits some 2 ms, once that is known and above 17 GB/s */
    GG_GROUP = 8,               /* operations of a piece: 1.4 to 2.7 us each to post */
    GG_QUEUED = 2,
};

typedef struct gr_gpu_device_info {
    char name[64];
    uint8_t uuid[16];
    char pci[16]; /* domain:bus:device.function, as sysfs spells it */
    int32_t sms;
    int32_t kernel;    /* 1: the copy kernel is loaded; 0: copy engines serve, since: */
    int32_t why;       /* the driver's result of loading it */
    int32_t dmabuf;    /* memory can be had as dmabufs */
    int32_t flush;     /* what other devices write is in order for this GPU's work only after gg_flush */
    int32_t pad;
    char why_text[96]; /* its name */
    uint64_t memory;
} gr_gpu_device_info;

/* Lists of things that are not freed before the driver is closed. */
typedef struct gg_block {
    struct gg_block *next;
    cu_ptr mem;
} gg_block;

typedef struct gg_dev {
    int ordinal;
    _Atomic int open;
    cu_device dev;
    cu_ctx ctx;
    gr_gpu_device_info info;
    cu_module module;
    cu_function gather, gather_short; /* NULL: copy engines serve */
    cu_stream util;                   /* cancels, tables, fills: never behind a copy */
    int priority;
    gr_gpu *gpu; /* that it is of */

    /* under mu */
    gg_block *blocks; /* of marks */
    cu_ptr *free_marks;
    uint32_t free_mark_count, marks;
} gg_dev;

typedef struct gg_chunk {
    char *mem;
    size_t size;
} gg_chunk;

typedef struct gg {
    gr_gpu pub;
    void *dl;
    const char *ptx; /* the kernel's, the caller's for good */
    cu_calls cu;
    pthread_mutex_t mu, arena_mu, stream_mu;
    gg_dev dev[GG_DEVICES];
    _Atomic(gg_dev *) first; /* whose context pinned memory is of */
    _Atomic uint32_t seq, chunks, tables;
    gg_chunk chunk[GG_CHUNKS];
    size_t used; /* of the last chunk that is cut up */
    int cut;     /* its number, -1: none */
    void *free_block[GG_CLASSES];
    gr_gpu_stream *streams;
} gg;

struct gr_gpu_stream {
    gg *g;
    gg_dev *dev;
    gr_gpu_stream *next;
    int peer;
    uint32_t refs, jobs; /* under stream_mu */
    cu_stream handle;
    _Atomic uint64_t piece; /* bytes that its copy engine gets at a time */
};

struct gr_gpu_table {
    gg *g;
    gg_dev *dev;
    gg_block *blocks; /* those that have become too small, too: kernels may read them */
    uint32_t entries; /* under mu */
    _Atomic(uint64_t *) shadow; /* as the CPU has it */
    _Atomic cu_ptr mem;
};

enum { GG_IDLE, GG_BY_KERNEL, GG_BY_ENGINE };

struct gr_gpu_job {
    gr_gpu_stream *stream;
    gr_gather_word *word;
    cu_ptr mark;
    cu_event event[GG_QUEUED];
    _Atomic uint32_t seq; /* of the launch under way, 0: none */
    _Atomic uint32_t cancelled;
    int state;
    uint32_t polls;
    gr_gpu_work work;
    const uint64_t *shadow; /* by copy engine: the deltas, or NULL */
    uint32_t next;          /* operation that is not queued yet */
    uint64_t at;            /* bytes of it that are */
    uint32_t queued, head;
    struct {
        uint64_t bytes, ns; /* ns: when it was queued, behind nothing of this job; else 0 */
        uint64_t busy;      /* when it was seen to be under way last */
    } timed[GG_QUEUED];
    int unmarked;           /* copies without an event behind them may be under way */
    int odd;
    int broken;             /* why nothing more is queued; 0: nothing wrong */
    gr_gpu_fault fault;
};

static inline gg *gg_of(gr_gpu *gpu) { return (gg *)gpu; }

/* ---- loader.c ---- */

/* NULL: *fault says why. The driver is not initialised: that, and gr_gpu.devices and owner, is Go's. */
gr_gpu *gg_open(const char *path, const char *ptx, gr_gpu_fault *fault);
/* -GR_GPU_BUSY while streams or tables are open. */
int gg_close(gr_gpu *gpu);
extern const gr_gpu_ops gg_ops;
const char *gr_gpu_why_text(int why);
/* For Go, which has no atomics of C. */
void gg_counts(gr_gpu *gpu, uint64_t out[3]);

/* ---- fault.c ---- */

/* Fills *fault in and returns -why. */
int gg_fail(gr_gpu_fault *fault, int why, const char *what);
int gg_result(gg *g, gr_gpu_fault *fault, cu_result result, const char *call);
int gg_lost(cu_result result);
#define GG_CALL(g, fault, field, ...) gg_result(g, fault, (g)->cu.field(__VA_ARGS__), gg_name_##field)
#define GG_NAME(field, name, version, needed, args) extern const char gg_name_##field[];
CU_ENTRIES(GG_NAME)

/* ---- device.c ---- */

/* The GPU's context, made on first use. NULL: *fault says why, *rc holds the error. */
gg_dev *gg_device(gg *g, int ordinal, gr_gpu_fault *fault, int *rc);
int gg_enter(gg *g, gg_dev *d, gr_gpu_fault *fault);
void gg_leave(gg *g);
int gg_info(gr_gpu *gpu, int device, gr_gpu_device_info *out, gr_gpu_fault *fault);
void gg_devices_close(gg *g);

/* ---- device.c: flushes ---- */

int gg_flush(gr_gpu *gpu, int device, gr_gpu_fault *fault);
/* The same with a gg_dev. */
void gg_flush_dev(void *dev);
/* What to call gg_flush_dev with; NULL: that GPU's work needs no flush, or the GPU is not in use. */
void *gg_flusher(gr_gpu *gpu, int device);
/* Whether it has to be called for work of that GPU. */
int gg_wants_flush(gg *g, cu_device dev);

/* ---- arena.c ---- */

void *gg_alloc(gr_gpu *gpu, size_t size);
void gg_free(gr_gpu *gpu, void *mem);
int gg_in_arena(gg *g, const void *mem, size_t size);
void gg_arena_close(gg *g);

/* ---- table.c ---- */

int gg_table(gr_gpu *gpu, int device, gr_gpu_table **out, gr_gpu_fault *fault);
void gg_table_free(gr_gpu_table *table);
int gg_entry(gr_gpu_table *table, uint32_t idx, uint64_t delta, gr_gpu_fault *fault);
int gg_mark(gg *g, gg_dev *d, cu_ptr *out, gr_gpu_fault *fault);
/* Within the context. */
void gg_marks_close(gg *g, gg_dev *d);
void gg_mark_free(gg *g, gg_dev *d, cu_ptr mark);
int gg_vram(gr_gpu *gpu, int device, size_t size, uint64_t *addr, gr_gpu_fault *fault);
int gg_vram_free(gr_gpu *gpu, int device, uint64_t addr, gr_gpu_fault *fault);

/* ---- stream.c ---- */

int gg_stream(gr_gpu *gpu, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault);
void gg_stream_close(gr_gpu *gpu, gr_gpu_stream *stream);
int gg_job(gr_gpu_stream *stream, gr_gpu_job **out, gr_gpu_fault *fault);
int gg_job_free(gr_gpu_job *job);

/* ---- post.c, copy_engine.c ---- */

int gg_post(gr_gpu_job *job, const gr_gpu_work *work, gr_gpu_fault *fault);
int gg_poll(gr_gpu_job *job, gr_gpu_fault *fault);
void gg_cancel(gr_gpu_job *job);
int gg_pump(gr_gpu_job *job, gr_gpu_fault *fault);        /* of a copy engine: fills its queue */
int gg_poll_engine(gr_gpu_job *job, gr_gpu_fault *fault);
int gg_odd(gr_gpu_job *job, cu_result result);            /* ask again */

#endif
