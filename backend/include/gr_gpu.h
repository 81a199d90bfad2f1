/* The interface between the core's C and a GPU driver: copies that are posted and polled without Go. Go (package gpu) finds
 * out where a pointer's memory is, and maps a peer's memory.
 *
 * A driver is a table of functions, as a provider is (gr_provider.h). Any C of ours can call it through a pointer that Go
 * passes on, and another driver (HIP) can stand beside CUDA's. A GPU is untouched before its first use. No call leaves a
 * current context in the caller's thread.
 *
 * Any thread may call every function. Functions that say "Posts" or "Polls" are for the hot path: they allocate nothing and
 * take no lock except the stream's. The other functions take locks and may take milliseconds: do not call them under a rail's
 * lock. One thread at a time posts and polls the jobs of a stream (the core holds the rail's lock meanwhile).
 *
 * All functions return 0 or a negative gr_gpu_why, and give details in *fault (which may be NULL).
 */
#ifndef GORAIL_GPU_H
#define GORAIL_GPU_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gr_op.h"

/* Why a GPU call or a mapping failed. gr_gpu_why_text gives the texts. */
#define GR_GPU_WHYS(X)                                                                                                                               \
    X(OK, "success")                                                                                                                                 \
    X(NO_LIBRARY, "the driver's library was not found")                                                                                              \
    X(NOT_A_DRIVER, "the library lacks calls of a CUDA driver")                                                                                      \
    X(OLD_DRIVER, "the driver is too old")                                                                                                           \
    X(NO_DEVICE, "no such GPU in this process")                                                                                                      \
    X(DRIVER, "a driver call failed")                                                                                                                \
    X(NO_MEMORY, "out of memory")                                                                                                                    \
    X(LOST, "the GPU's context has failed permanently: CUDA no longer works in this process")                                                        \
    X(HOST, "the driver does not know the memory")                                                                                                   \
    X(TORN, "the range is in several allocations, or not wholly in one")                                                                             \
    X(CHANGED, "the memory was freed, or freed and allocated again")                                                                                 \
    X(NO_HANDLE, "VMM memory made without a handle type that can be shared")                                                                         \
    X(POOL, "memory of a stream-ordered pool (cudaMallocAsync)")                                                                                     \
    X(MANAGED, "managed memory")                                                                                                                     \
    X(PINNED, "host memory")                                                                                                                         \
    X(NO_PEER, "the two GPUs have no peer access to each other")                                                                                     \
    X(UNSEEN, "this process cannot open the peer's GPU: its device node is hidden (give both pods both devices; CUDA_VISIBLE_DEVICES chooses)")      \
    X(REFUSED, "the driver refused to map the peer's memory")                                                                                        \
    X(NO_FDS, "out of file descriptors")                                                                                                             \
    X(BAD_SHARE, "the peer's description of its memory is invalid")                                                                                  \
    X(NO_DMABUF, "the driver gives no dmabuf for memory of this GPU (needs CUDA 11.7 and the open kernel modules)")                                  \
    X(BUSY, "still in use")                                                                                                                          \
    X(CANCELLED, "cancelled")                                                                                                                        \
    X(SILENT, "the process that owns the memory does not send its descriptors")                                                                      \
    X(NO_FABRIC, "VMM memory that has only a handle for NVLink between hosts, and the driver does not export that handle")                           \
    X(NO_AWAY, "memory without a handle for NVLink between hosts: made by cudaMalloc, a pool, or cuMemCreate without that handle type")                \
    X(FABRICS, "VMM memory of several allocations, each with only a handle for NVLink between hosts")                                                \
    X(TOO_MANY, "a copy takes at most 4294967295 operations")                                                                                        \
    X(SAME_PID, "the driver takes the peer's IPC handle for one of ours: both processes have the same number, in different pid namespaces")          \
    X(LAYOUT, "the driver takes the peer's IPC handle for one of ours, and the handle is not laid out as known")                                     \
    X(UNPROVED, "the driver takes the peer's IPC handle for one of ours, and with another process number in it the handle opens other memory") \
    X(UNMAPPED, "nothing is mapped there now, or the GPU may not access it: the application has unmapped memory that is still registered")           \
    X(FORBIDDEN, "option gpu_mapping is off in one of the two processes")                                                                           \
    X(NOT_BOTH, "memory that peers may not both read and write (option remote_access): a handle for NVLink between hosts would let them")           \
    X(NO_PACK, "this stream does not compress")                                                                                                      \
    X(BAD_PACK, "the bytes that came are no compressed chunk")
#define GR_GPU_WHY_ENUM(name, text) GR_GPU_##name,
enum gr_gpu_why { GR_GPU_WHYS(GR_GPU_WHY_ENUM) GR_GPU_WHY_COUNT };

/* Whether the peer had other memory there, or none, while its memory was being mapped. */
static inline int gr_gpu_changed(int why) { return why == GR_GPU_CHANGED || why == GR_GPU_UNMAPPED || why == GR_GPU_TORN; }

typedef struct gr_gpu_fault {
    int32_t why;
    int32_t result;   /* CUresult; 0: the driver was not called */
    const char *call; /* the driver's entry point, or the other step that failed */
    char text[96];    /* the driver's name of the result, or the loader's message */
} gr_gpu_fault;

/* ---- memory ---- */

/* What a peer of the same host needs to map memory. Peers exchange the struct unchanged (fixed layout, little-endian
 * machines of one host). */
enum { GR_GPU_SHARE_IPC = 1, GR_GPU_SHARE_FDS = 2, GR_GPU_SHARE_FABRIC = 3, GR_GPU_SHARE_HANDLES = 4 };
enum { GR_GPU_SHARE_VERSION = 1 };
typedef struct gr_gpu_share {
    uint32_t version, how;
    uint64_t base, size;  /* the owner's address range */
    uint64_t buffer;
    uint8_t owner[16];    /* random number that identifies the owner's process */
    uint8_t gpu[16];      /* UUID */
    uint32_t pieces;      /* FDS, HANDLES: how many follow; IPC: 1 */
    uint32_t pad;         /* how 0: the reason (gr_gpu_why); in the importer: a number of the peer, which distinguishes mappings */
    uint8_t handle[64];   /* IPC, FABRIC */
} gr_gpu_share;
_Static_assert(sizeof(gr_gpu_share) == 136, "peers exchange it");

/* ---- what is mapped ---- */

/* The allocations behind a range, in order and end to end. VMM memory has one for each mapped handle. `buffer` is the driver's number of an
 * allocation, or of one mapping of a handle. A process never sees a number twice, so equal numbers mean the same memory. */
typedef struct gr_gpu_part {
    uint64_t base, end, buffer;
} gr_gpu_part;

typedef struct gr_gpu_parts {
    uint32_t n;
    int32_t device;
    gr_gpu_part part[];
} gr_gpu_parts;

/* What a GPU will do with memory of this process: flags of gr_gpu_ops.same. Others' access is not ours to ask about. */
enum { GR_GPU_READS = 1, GR_GPU_WRITES = 3 };

/* The region of an operation for gr_gpu_ops.mapped. */
enum { GR_GPU_OURS = 1 };

/* ---- copies ---- */

/* A stream of one of our GPUs towards another GPU. */
typedef struct gr_gpu_stream gr_gpu_stream;
typedef struct gr_gpu_job gr_gpu_job;
/* Offsets to add to the addresses of remote regions, indexed by region number. One table for each core and GPU, since
 * region numbers belong to a core. */
typedef struct gr_gpu_table gr_gpu_table;

enum gr_gpu_how { GR_GPU_AUTO, GR_GPU_KERNEL, GR_GPU_ENGINE };

enum { GR_GPU_AWAY = 1 << 16 };

/* GR_GPU_PACK (write 1): the local pieces go to the slot as a packed chunk (gr_pack.h), or in clear where that does not gain. GR_GPU_UNPACK
 * (write 0): a packed chunk in the slot goes to the local pieces. */
enum gr_gpu_pack { GR_GPU_CLEAR, GR_GPU_PACK, GR_GPU_UNPACK };

/* Operations to copy. ops lies in the arena and stays unchanged until the job ends; outside the arena, copy engines copy.
 * The remote address is remote + the table's entry of rregion, or remote + delta without a table. The local address is used
 * unchanged. Host memory of either side must be pinned and known to the driver (gpu.Driver.Pin). With pack, post sets remote of the operations,
 * and table, delta and how are unused. */
typedef struct gr_gpu_work {
    const gr_op *ops;
    uint32_t nops;
    uint32_t write;         /* 1: local to remote, 0: remote to local */
    uint64_t bytes;         /* bytes of all operations */
    const gr_gpu_table *table; /* table of the stream's GPU, or NULL */
    uint64_t delta;
    uint32_t how;           /* enum gr_gpu_how */
    uint32_t pack;          /* enum gr_gpu_pack; the stream must have room (gg_pack_room) */
    uint64_t slot;          /* pinned host memory, aligned to 16; PACK: `bytes` long at least */
    uint32_t packed;        /* UNPACK: bytes of the packed chunk */
} gr_gpu_work;

/* ---- the driver ---- */

typedef struct gr_gpu gr_gpu;

typedef struct gr_gpu_ops {
    /* Allocates memory for operations, aligned to 64 bytes. Every GPU of the process reads it at the CPU's address. NULL
     * without memory, or before a GPU is in use. Calls the driver only if the arena must grow. */
    void *(*alloc)(gr_gpu *gpu, size_t size);
    void (*free)(gr_gpu *gpu, void *mem);
    int (*table)(gr_gpu *gpu, int device, gr_gpu_table **out, gr_gpu_fault *fault);
    /* No job that was posted with the table may be in flight. */
    void (*table_free)(gr_gpu_table *table);
    /* Sets the entry of a remote region. Jobs that use the region must have ended; other jobs may run. Takes about 10 us. */
    int (*entry)(gr_gpu_table *table, uint32_t idx, uint64_t delta, gr_gpu_fault *fault);
    /* The stream of a pair of GPUs (peer -1: host memory, from GR_GPU_AWAY on: GPUs of other hosts). Reference-counted. */
    int (*stream)(gr_gpu *gpu, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault);
    void (*stream_close)(gr_gpu *gpu, gr_gpu_stream *stream);
    /* Makes a job. A job can be posted any number of times, by one thread at a time. job_free: -GR_GPU_BUSY while the job
     * is in flight. */
    int (*job)(gr_gpu_stream *stream, gr_gpu_job **out, gr_gpu_fault *fault);
    int (*job_free)(gr_gpu_job *job);
    /* Posts the job: one launch, or the first pieces for the copy engine, which poll continues. The driver copies *work,
     * but not the operations. */
    int (*post)(gr_gpu_job *job, const gr_gpu_work *work, gr_gpu_fault *fault);
    /* Polls the job. 1: in flight. 0: done, and every byte is visible to a reader that learns of it now. -GR_GPU_CANCELLED
     * or -GR_GPU_LOST: ended; with -GR_GPU_CANCELLED no access to memory follows. -GR_GPU_BAD_PACK: ended, and the pieces have any bytes,
     * but none of another job's. */
    int (*poll)(gr_gpu_job *job, gr_gpu_fault *fault);
    /* Cancels the job: no further piece is queued, and the kernel stops at its next operation. Poll until the job has
     * ended. Any thread may call it. */
    void (*cancel)(gr_gpu_job *job);
    /* Compares a range with what is mapped now: 0, -GR_GPU_CHANGED (other memory), -GR_GPU_UNMAPPED or -GR_GPU_LOST. *at: the first address that
     * differs. need: 0, or what our GPU will do there; a kernel that accesses unmapped memory ends the process's use of the GPU. Takes
     * 0.1 us for each part. Any thread. Implements cuPointerGetAttributes. */
    int (*same)(gr_gpu *gpu, const gr_gpu_parts *parts, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at);
    /* Whether our GPU can access the application's memory on the local side of operations, whatever it has mapped there: 0, -GR_GPU_UNMAPPED,
     * -GR_GPU_LOST, or -GR_GPU_BUSY: ask again, the driver makes or frees memory of ours. lregion GR_GPU_OURS: it is a bounce buffer of ours. Ask
     * before a kernel copies. Any thread. Implements cuPointerGetAttributes. */
    int (*mapped)(gr_gpu *gpu, int device, const gr_op *ops, uint64_t nops, uint32_t need, uint64_t *at);
} gr_gpu_ops;

/* Every driver's own structure begins with this one. */
struct gr_gpu {
    const gr_gpu_ops *ops;
    int32_t devices; /* GPUs visible to this process */
    int32_t version; /* driver version: 13000 is 13.0 */
    uint8_t owner[16];
    /* statistics counters; relaxed */
    _Atomic uint64_t launches, engine_copies, polls;
};

#endif
