/* What C wants of a GPU's driver: copies that are posted and polled without Go. What a pointer is, and mapping a peer's memory, Go asks (package gpu).
 *
 * A driver is a table of functions, as a provider is (gr_provider.h), so that any C of ours may call it by a pointer that Go hands
 * over, and another driver (HIP) can stand beside CUDA's. Nothing is done to a GPU before it is used. No call leaves a
 * current context in its caller's thread.
 *
 * Every function may be called by any thread. Those that say "posts" or "polls" are for the hot path, allocate nothing and take no lock
 * but the stream's; the others take locks and may last milliseconds: not under a rail's lock. A stream's jobs are posted and polled by one
 * thread at a time (the core holds the rail's lock round it).
 *
 * All functions return 0 or a negative gr_gpu_why, and say more in *fault (which may be NULL).
 */
#ifndef GORAIL_GPU_H
#define GORAIL_GPU_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gr_op.h"

/* Why something can't be had. The texts are gr_gpu_why_text's. */
#define GR_GPU_WHYS(X) \
    X(OK, "nothing is wrong") \
    X(NO_LIBRARY, "the driver's library is not there") \
    X(NOT_A_DRIVER, "the library lacks calls of a CUDA driver") \
    X(OLD_DRIVER, "the driver is too old") \
    X(NO_DEVICE, "no such GPU in this process") \
    X(DRIVER, "a call of the driver failed") \
    X(NO_MEMORY, "out of memory") \
    X(LOST, "the GPU's context is in error for good: CUDA has ended for this process") \
    X(HOST, "memory that the driver doesn't know") \
    X(TORN, "the range is in several allocations, or not wholly in one") \
    X(CHANGED, "the memory has been freed, or freed and allocated anew") \
    X(NO_HANDLE, "VMM memory made without a handle type that can be shared") \
    X(POOL, "memory of a stream-ordered pool (cudaMallocAsync)") \
    X(MANAGED, "managed memory") \
    X(PINNED, "host memory") \
    X(NO_PEER, "the two GPUs have no access to each other") \
    X(UNSEEN, "the peer's GPU is not visible in this process") \
    X(REFUSED, "the driver refused to map the peer's memory") \
    X(NO_FDS, "out of file descriptors") \
    X(BAD_SHARE, "the peer's description of its memory makes no sense") \
    X(NO_DMABUF, "memory of this GPU can't be had as a dmabuf (the driver wants CUDA 11.7 and its open kernel modules)") \
    X(BUSY, "still in use") \
    X(CANCELLED, "cancelled") \
    X(SILENT, "the process that has the memory does not give its descriptors") \
    X(NO_FABRIC, "VMM memory with a handle for NVLink between hosts alone, which the driver does not give") \
    X(FABRICS, "VMM memory of several handles, each for NVLink between hosts alone")
#define GR_GPU_WHY_ENUM(name, text) GR_GPU_##name,
enum gr_gpu_why { GR_GPU_WHYS(GR_GPU_WHY_ENUM) GR_GPU_WHY_COUNT };

typedef struct gr_gpu_fault {
    int32_t why;
    int32_t result;   /* the driver's (CUresult), 0: it was not asked */
    const char *call; /* its entry point, or what else failed */
    char text[96];    /* the driver's name of the result, the loader's message */
} gr_gpu_fault;

/* ---- memory ---- */

/* What a peer of the same host needs to map memory; goes to it as it is (fixed layout, little-endian machines of one host). */
enum { GR_GPU_SHARE_IPC = 1, GR_GPU_SHARE_FDS = 2, GR_GPU_SHARE_FABRIC = 3 };
enum { GR_GPU_SHARE_VERSION = 1 };
typedef struct gr_gpu_share {
    uint32_t version, how;
    uint64_t base, size;  /* where the owner has it */
    uint64_t buffer;
    uint8_t owner[16];    /* the process, by a random number of its own */
    uint8_t gpu[16];      /* UUID */
    uint32_t pieces;      /* FDS: descriptors that are to follow; IPC: 1 */
    uint32_t pad;         /* with whom it came, for those who ask for a mapping: what another says is another mapping */
    uint8_t handle[64];   /* IPC, FABRIC */
} gr_gpu_share;
_Static_assert(sizeof(gr_gpu_share) == 136, "peers exchange it");

/* ---- copies ---- */

/* A stream of one of our GPUs towards another GPU. */
typedef struct gr_gpu_stream gr_gpu_stream;
typedef struct gr_gpu_job gr_gpu_job;
/* What is to be added to the addresses of remote regions, by their numbers: one for each core and GPU, since numbers are a core's. */
typedef struct gr_gpu_table gr_gpu_table;

enum gr_gpu_how { GR_GPU_AUTO, GR_GPU_KERNEL, GR_GPU_ENGINE };

/* Operations to copy. ops lies in the arena (else copy engines serve) and stays unchanged until the job has ended. The remote address
 * of an operation is remote + the table's entry of rregion, or without a table remote + delta; the local one is as it is.
 * Memory of either side that is the host's must be pinned and known to the driver (gpu.Driver.Pin). */
typedef struct gr_gpu_work {
    const gr_op *ops;
    uint32_t nops;
    uint32_t write;         /* 1: local to remote, 0: remote to local */
    uint64_t bytes;         /* of all operations */
    const gr_gpu_table *table; /* of the stream's GPU, or NULL */
    uint64_t delta;
    uint32_t how;           /* of gr_gpu_how */
    uint32_t blocks;        /* that the kernel may take, of 256 threads; 0: the default */
} gr_gpu_work;

/* ---- the driver ---- */

typedef struct gr_gpu gr_gpu;

typedef struct gr_gpu_ops {
    /* Memory that every GPU of the process reads at the address the CPU has: for operations. Aligned to 64 bytes. NULL without memory, or
     * before any GPU is in use. Needs no call of the driver unless the arena has to grow. */
    void *(*alloc)(gr_gpu *gpu, size_t size);
    void (*free)(gr_gpu *gpu, void *mem);
    int (*table)(gr_gpu *gpu, int device, gr_gpu_table **out, gr_gpu_fault *fault);
    /* No job that was posted with it may be under way. */
    void (*table_free)(gr_gpu_table *table);
    /* Sets the entry of a remote region. No job that uses the region may be under way; others may. Some 10 us. */
    int (*entry)(gr_gpu_table *table, uint32_t idx, uint64_t delta, gr_gpu_fault *fault);
    /* The stream of a pair of GPUs (peer -1: host memory), counted. */
    int (*stream)(gr_gpu *gpu, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault);
    void (*stream_close)(gr_gpu *gpu, gr_gpu_stream *stream);
    /* A job can be posted again and again, by one at a time. Free: -GR_GPU_BUSY while it is under way. */
    int (*job)(gr_gpu_stream *stream, gr_gpu_job **out, gr_gpu_fault *fault);
    int (*job_free)(gr_gpu_job *job);
    /* Posts. One launch, or the first pieces for the copy engine, which poll follows up. Work is copied; its operations are not. */
    int (*post)(gr_gpu_job *job, const gr_gpu_work *work, gr_gpu_fault *fault);
    /* Polls. 1: under way, 0: done, every byte in place for whoever is told now; else it has ended with that: -GR_GPU_CANCELLED (nothing of
     * it touches memory any more), -GR_GPU_LOST. */
    int (*poll)(gr_gpu_job *job, gr_gpu_fault *fault);
    /* The job ends soon: no piece more is queued, the kernel stops at its next operation. Poll until it has. Safe from any thread. */
    void (*cancel)(gr_gpu_job *job);
} gr_gpu_ops;

/* Begins every driver's own structure. */
struct gr_gpu {
    const gr_gpu_ops *ops;
    int32_t devices; /* visible to this process */
    int32_t version; /* of the driver: 13000 is 13.0 */
    uint8_t owner[16];
    /* counters, for statistics; relaxed */
    _Atomic uint64_t launches, engine_copies, polls;
};

#endif
