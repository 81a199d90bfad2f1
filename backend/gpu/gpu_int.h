/* CUDA's driver behind gr_gpu.h.
 *
 * C code posts and polls, and serves C callers: loader.c (the table of driver calls), device.c (contexts), arena.c (pinned
 * memory), table.c, owned.c, stream.c (streams, jobs), post.c, copy_engine.c, packed.c. Go code queries memory, shares it, and maps and pins
 * memory, over the same table (cuda.go).
 *
 * Locks: mu (devices, marks, tables), load_mu (the kernels), arena_mu, stream_mu, a stream's pack_mu, owned.mu. arena_mu may be taken under mu.
 * load_mu, stream_mu and pack_mu are never held with another one. owned.mu is the innermost, and no call of the driver is made under it.
 */
#ifndef GORAIL_GPU_INT_H
#define GORAIL_GPU_INT_H

#include <pthread.h>

#include "cuda_abi.h"
#include "gr_failpoint.h"
#include "gr_gather.h"
#include "gr_gpu.h"
#include "gr_pack.h"

enum {
    GG_DEVICES = 64,
    GG_CHUNKS = 512,
    GG_CLASSES = 40,            /* block sizes of the arena, powers of two */
    GG_MARKS = 4096,            /* per allocation */
    GG_TABLE = 4096,            /* initial entries */
    GG_PIECES = 1 << 20,        /* largest number of handles of a mapping */
    /* Bytes of a copy engine's piece: the initial size, until the speed is known. At 396 GB/s, pieces of 16 MiB cost 7 %, of 64
     * MiB 2 %. */
    GG_PIECE = 64 << 20,
    GG_PIECE_HOST = 16 << 20,   /* to host memory, where copies take ten times as long */
    GG_PIECE_LEAST = 16 << 20,
    GG_PIECE_MOST = 256 << 20,
    GG_PIECE_ALIGN = 2 << 20,
    GG_PIECE_NS = 900000, /* target time of a piece; two are queued, so a release waits about 2 ms once the speed is known and above 17 GB/s */
    GG_GROUP = 8, /* operations of a piece: 1.4 to 2.7 us each to post */
    GG_QUEUED = 2,
    GG_KNOWN = 256,
    GG_UNCLEAR = 16, /* driver answers other than done or pending, after which a copy is given up */
};

typedef struct gr_gpu_device_info {
    char name[64];
    uint8_t uuid[16];
    char pci[16]; /* domain:bus:device.function, in the format of sysfs */
    int32_t sms;
    int32_t dmabuf; /* dmabufs are supported */
    int32_t flush; /* the GPU's work sees other devices' writes in order only after gg_flush */
    int32_t pad;
    uint64_t memory;
} gr_gpu_device_info;

/* List of memory that is freed in one go, with its table or when the driver closes. */
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
    _Atomic int tried; /* the copy kernel is loaded, or cannot be; written with load_mu held */
    cu_result refusal; /* the driver's result then */
    cu_module module;
    cu_function gather, gather_short; /* NULL: copy engines are used */
    cu_module pack_module; /* loaded by the first gg_pack_room */
    cu_function pack, pack_out, unpack;
    cu_stream util; /* for cancels, tables and fills: never behind a copy */
    int priority;
    gr_gpu *gpu; /* of this device */

    /* under mu */
    gg_block *blocks; /* of marks */
    cu_ptr *free_marks;
    uint32_t free_mark_count, marks;
} gg_dev;

typedef struct gg_chunk {
    char *mem;
    size_t size;
} gg_chunk;

typedef struct gg_range {
    uint64_t at, end;
} gg_range;

/* What is ours at the driver's addresses. */
typedef struct gg_owned {
    pthread_mutex_t mu;
    gg_range *list;
    uint32_t n, room;
    uint32_t changing; /* under mu: calls of the driver in progress that make or free a range */
    _Atomic uint64_t known[GG_KNOWN]; /* ids of buffers that are not ours; the driver never gives an id twice */
} gg_owned;

typedef struct gg {
    gr_gpu pub;
    void *dl;
    const char *ptx, *pack_ptx; /* the kernels; the caller keeps them forever */
    cu_calls cu;
    pthread_mutex_t mu, arena_mu, stream_mu, load_mu;
    gg_dev dev[GG_DEVICES];
    _Atomic(gg_dev *) first; /* its context makes pinned memory */
    _Atomic uint32_t seq, chunks, tables;
    _Atomic uint32_t ending; /* streams whose scratch is being freed */
    gg_chunk chunk[GG_CHUNKS];
    size_t used; /* bytes used of the chunk that is being cut */
    int cut; /* index of that chunk; -1: none */
    void *free_block[GG_CLASSES];
    gr_gpu_stream *streams;
    gg_owned owned;
} gg;

/* GPU memory in which a stream's jobs pack and unpack, one after the other. */
typedef struct gg_scratch {
    struct gg_scratch *next; /* smaller ones, which queued jobs may use until the stream ends */
    cu_ptr text, blocks, lens;
    uint64_t bytes, room; /* of text, blocks */
} gg_scratch;

struct gr_gpu_stream {
    gg *g;
    gg_dev *dev;
    gr_gpu_stream *next;
    int peer;
    uint32_t refs, jobs; /* under stream_mu */
    cu_stream handle;
    _Atomic uint64_t piece; /* bytes of the next piece for the copy engine */
    _Atomic uint64_t busy_until; /* ns; before that, kernels are expected to wait for the application's */
    _Atomic uint32_t posted; /* jobs, and not ended: a kernel waits for those before it */
    pthread_mutex_t pack_mu; /* a job's launches follow each other: engines of one process share streams */
    gg_scratch *scratch; /* under pack_mu */
};

struct gr_gpu_table {
    gg *g;
    gg_dev *dev;
    gg_block *blocks; /* includes replaced tables, which running kernels may read */
    uint32_t entries; /* under mu */
    _Atomic(uint64_t *) shadow; /* the CPU's copy */
    _Atomic cu_ptr mem;
};

enum { GG_IDLE, GG_BY_KERNEL, GG_BY_ENGINE };

struct gr_gpu_job {
    gr_gpu_stream *stream;
    gr_gather_word *word;
    cu_ptr mark;
    cu_event event[GG_QUEUED];
    _Atomic uint32_t seq; /* of the current launch; 0: none */
    _Atomic uint32_t cancelled;
    int state;
    uint32_t polls;
    uint64_t late; /* ns; a kernel that is pending then waits for the application's. 0: it may wait for ours */
    gr_gpu_work work;
    const uint64_t *shadow; /* for the copy engine: the deltas, or NULL */
    uint32_t next; /* first operation that is not fully queued */
    uint64_t at; /* bytes of that operation that are queued */
    uint32_t queued, head;
    struct {
        uint64_t bytes, ns; /* ns: when a large piece was queued as the only one of its job; otherwise 0 */
        uint64_t busy; /* when the piece was last seen pending */
    } timed[GG_QUEUED];
    int unmarked; /* copies without an event may be in progress */
    int unclear;
    int broken; /* why no more pieces are queued; 0: no error */
    uint32_t packed; /* bytes of the packed chunk that the last job made; 0: in clear */
    gr_gpu_fault fault;
};

uint64_t gg_now(void); /* CLOCK_MONOTONIC in ns */
static inline gg *gg_of(gr_gpu *gpu) { return (gg *)gpu; }

/* ---- loader.c ---- */

/* NULL: *fault has the reason. Go initializes the driver and sets gr_gpu.devices and owner. */
gr_gpu *gg_open(const char *path, const char *ptx, const char *pack_ptx, gr_gpu_fault *fault);
/* Whether streams or tables are open. */
int gg_busy(gr_gpu *gpu);
/* -GR_GPU_BUSY: streams or tables are open. Waits for all work of the GPUs. */
int gg_close(gr_gpu *gpu);
extern const gr_gpu_ops gg_ops;
const char *gr_gpu_why_text(int why);
/* For Go, which cannot use C atomics. */
void gg_counts(gr_gpu *gpu, uint64_t out[3]);

/* ---- loader.c: errors ---- */

/* Fills in *fault and returns -why. */
int gg_fail(gr_gpu_fault *fault, int why, const char *what);
int gg_result(gg *g, gr_gpu_fault *fault, cu_result result, const char *call);
int gg_lost(cu_result result);
#define GG_CALL(g, fault, field, ...) gg_result(g, fault, (g)->cu.field(__VA_ARGS__), gg_name_##field)
#define GG_NAME(field, name, version, needed, args) extern const char gg_name_##field[];
CU_ENTRIES(GG_NAME)

/* ---- device.c ---- */

/* Makes the GPU's context at first use. NULL: *fault has the reason, and *rc the error. */
gg_dev *gg_device(gg *g, int ordinal, gr_gpu_fault *fault, int *rc);
/* Makes the GPU's context current in this thread, and relaxes it, until gg_leave. */
int gg_enter(gg *g, gg_dev *d, gr_gpu_fault *fault);
void gg_leave(gg *g);
/* Until gg_restore, calls of this thread do not break a graph that the application captures, here or in another thread: in mode global, torch's
 * default, the driver would refuse allocations and queries of events, and the capture would be lost. */
void gg_relax(gg *g);
void gg_restore(gg *g);
/* Loads a module and its functions, three at most, all or none. Within the context, with load_mu held. */
cu_result gg_module(gg *g, const char *image, const char *const *names, cu_function *functions, int n, cu_module *out);
int gg_cannot_jit(cu_result result); /* 1: the driver cannot translate the kernel, now or later */
int gg_info(gr_gpu *gpu, int device, gr_gpu_device_info *out, gr_gpu_fault *fault);
/* Loads the copy kernel once: 0, and *loaded says whether copies can use it. fault has the driver's result if not. May take a second. */
int gg_kernel(gr_gpu *gpu, int device, int *loaded, gr_gpu_fault *fault);
int gg_load(gg *g, gg_dev *d, gr_gpu_fault *fault);
void gg_devices_close(gg *g);

/* ---- device.c: flushes ---- */

int gg_flush(gr_gpu *gpu, int device, gr_gpu_fault *fault);
/* gg_flush for C, with a gg_dev as argument. */
void gg_flush_dev(void *dev);
/* Returns the argument for gg_flush_dev. NULL: the GPU needs no flush, or is not in use. */
void *gg_flusher(gr_gpu *gpu, int device);
/* Returns 1 if the GPU needs flushes. */
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
/* Copies between GPU memory that the device can access and the arena, and waits for the end of the copy. */
int gg_bytes(gr_gpu *gpu, int device, int write, uint64_t addr, void *mem, size_t size, gr_gpu_fault *fault);

/* ---- stream.c ---- */

int gg_stream(gr_gpu *gpu, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault);
void gg_stream_close(gr_gpu *gpu, gr_gpu_stream *stream);
int gg_job(gr_gpu_stream *stream, gr_gpu_job **out, gr_gpu_fault *fault);
int gg_job_free(gr_gpu_job *job);

/* ---- post.c, copy_engine.c ---- */

int gg_post(gr_gpu_job *job, const gr_gpu_work *work, gr_gpu_fault *fault);
int gg_poll(gr_gpu_job *job, gr_gpu_fault *fault);
void gg_cancel(gr_gpu_job *job);
int gg_pump(gr_gpu_job *job, gr_gpu_fault *fault); /* fills the queue of a copy engine */
int gg_poll_engine(gr_gpu_job *job, gr_gpu_fault *fault);
int gg_unclear(gr_gpu_job *job, cu_result result); /* 1: ask again */
uint32_t gg_next_seq(gg *g);
int gg_gather(gr_gpu_job *job, uint32_t seq, gr_gpu_fault *fault); /* launches the copy of a job's work; within the context */

/* ---- packed.c ---- */

/* Makes room for jobs with pack of up to so many bytes, until the stream ends. Loads the kernels at first use. -GR_GPU_NO_PACK: the driver
 * cannot translate them. May take a second. */
int gg_pack_room(gr_gpu_stream *stream, uint64_t bytes, gr_gpu_fault *fault);
int gg_post_packed(gr_gpu_job *job, gr_gpu_fault *fault);
/* Frees the list. No job uses it. */
void gg_scratch_free(gg *g, int device, gg_scratch *list);
uint32_t gg_packed(const gr_gpu_job *job);

/* ---- owned.c ---- */

/* The driver is about to make memory or a mapping of ours: gg_owned_made ends that, with size 0 after an error. Returns 0 or -GR_GPU_NO_MEMORY. */
int gg_owned_begin(gg *g, gr_gpu_fault *fault);
void gg_owned_made(gg *g, uint64_t at, uint64_t size);
/* The driver is about to free what begins at an address: gg_owned_freed ends that, also after an error. */
void gg_owned_freeing(gg *g);
void gg_owned_freed(gg *g, uint64_t at);
/* 0: nothing of ours is in the range. -GR_GPU_UNMAPPED: something is, so nothing of the application's. -GR_GPU_BUSY: the driver makes or frees
 * something of ours at this moment: ask again, it takes milliseconds. */
int gg_overlaps_owned(gg *g, uint64_t at, uint64_t end);
/* The same about a buffer that the driver has found there before this call, and -GR_GPU_UNMAPPED for host memory. Mostly without a call. */
int gg_foreign(gg *g, uint64_t buffer, uint64_t at, uint64_t end);
/* Whether all of a range is in one of ours. The caller keeps it from being freed. */
int gg_owns(gr_gpu *gpu, uint64_t at, uint64_t size);

/* ---- parts.c ---- */

int gg_same(gr_gpu *gpu, const gr_gpu_parts *parts, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at);
/* gg_same for all of the parts, with *which instead of an address. */
int gg_unchanged(gr_gpu *gpu, const gr_gpu_part *parts, size_t n, size_t *which);
int gg_mapped(gr_gpu *gpu, int device, const gr_op *ops, uint64_t nops, uint32_t need, uint64_t *at);
/* gg_mapped for one side of operations. */
int gg_mapped_ops(gr_gpu *gpu, int device, const gr_op *ops, size_t n, int remote, uint32_t need, uint64_t *at);
/* A number for what is mapped in a range: equal for equal memory. 0: a byte is not mapped. 0.1 us for 2 MiB. */
uint64_t gg_identity(gr_gpu *gpu, uint64_t addr, uint64_t len);

#endif
