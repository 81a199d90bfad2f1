/* What GORAIL wants of a GPU's driver: what a pointer is, mapping a peer's memory, copies that are posted and polled without Go.
 *
 * A driver is a table of functions, as a provider is (gr_provider.h), so that any C of ours may call it by a pointer that Go hands
 * over, and another driver (HIP) can stand beside CUDA's. Nothing is done to a GPU before gr_gpu_ops.device of it. No call leaves a
 * current context in its caller's thread.
 *
 * Every function may be called by any thread. Those that say "posts" or "polls" are for the hot path, allocate nothing and take no lock
 * but the lane's; the others take locks and may last milliseconds: not under a rail's lock. A lane's jobs are posted and polled by one
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

enum gr_gpu_kind { GR_GPU_MEM_UNKNOWN, GR_GPU_MEM_HOST, GR_GPU_MEM_MANAGED, GR_GPU_MEM_DEVICE, GR_GPU_MEM_VMM, GR_GPU_MEM_POOL };

/* A range, as the driver knows it. HOST is pinned host memory; UNKNOWN what the driver has no idea of (pageable). */
typedef struct gr_gpu_mem {
    int32_t kind;
    int32_t device;      /* ordinal; -1: none */
    uint64_t base, size; /* of the allocation; VMM: of the handles that the range touches, end to end */
    uint64_t buffer;     /* id of the allocation, never used twice in a process; VMM: of the first handle */
    uint32_t pieces;     /* VMM: handles */
    uint32_t shareable;  /* a GR_GPU_SHARE_*: how a peer can map it; 0: it can't, see why */
    int32_t why;         /* why it is not shareable */
    uint32_t pad;
} gr_gpu_mem;

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

/* A mapping of a peer's memory for one of our GPUs. */
enum gr_gpu_map_state { GR_GPU_MAP_OPENING, GR_GPU_MAP_READY, GR_GPU_MAP_FAILED };
typedef struct gr_gpu_map {
    _Atomic int32_t state; /* of gr_gpu_map_state; READY or FAILED are for good */
    int32_t why;           /* FAILED: why; written before state */
    uint64_t at;           /* READY: where share.base is here */
    uint64_t base, size;   /* of the share */
    int32_t device;        /* ours */
    uint32_t pieces;
    _Atomic uint32_t have; /* FDS: pieces mapped so far, in order */
} gr_gpu_map;

/* ---- copies ---- */

/* A stream of one of our GPUs towards another GPU. */
typedef struct gr_gpu_lane gr_gpu_lane;
typedef struct gr_gpu_job gr_gpu_job;
/* What is to be added to the addresses of remote regions, by their numbers: one for each core and GPU, since numbers are a core's. */
typedef struct gr_gpu_table gr_gpu_table;

enum gr_gpu_how { GR_GPU_AUTO, GR_GPU_KERNEL, GR_GPU_ENGINE };

/* Operations to copy. ops lies in the arena (else copy engines serve) and stays unchanged until the job has ended. The remote address
 * of an operation is remote + the table's entry of rregion, or without a table remote + delta; the local one is as it is.
 * Memory of either side that is the host's must be pinned and known to the driver (gr_gpu_ops.pin). */
typedef struct gr_gpu_work {
    const gr_op *ops;
    uint32_t nops;
    uint32_t write;         /* 1: local to remote, 0: remote to local */
    uint64_t bytes;         /* of all operations */
    const gr_gpu_table *table; /* of the lane's GPU, or NULL */
    uint64_t delta;
    uint32_t how;           /* of gr_gpu_how */
    uint32_t blocks;        /* that the kernel may take, of 256 threads; 0: the default */
} gr_gpu_work;

/* ---- the driver ---- */

typedef struct gr_gpu gr_gpu;

typedef struct gr_gpu_device_info {
    char name[64];
    uint8_t uuid[16];
    char pci[16]; /* domain:bus:device.function, as sysfs spells it */
    int32_t sms;
    int32_t kernel;    /* 1: the copy kernel is loaded; 0: copy engines serve, since: */
    int32_t why;       /* the driver's result of loading it */
    int32_t dmabuf;    /* memory can be had as dmabufs */
    int32_t flush;     /* what other devices write is in order for this GPU's work only after gr_gpu_ops.flush */
    int32_t pad;
    char why_text[96]; /* its name */
    uint64_t memory;
} gr_gpu_device_info;

typedef struct gr_gpu_ops {
    /* Retains the GPU's primary context, once a process, and loads the kernel into it; every call about memory of that GPU does
     * it by itself, so this one is for those who want to know early. It stays retained until the driver is closed. */
    int (*device)(gr_gpu *gpu, int device, gr_gpu_device_info *out, gr_gpu_fault *fault);
    /* Ordinal of the GPU of that UUID, or -GR_GPU_UNSEEN. */
    int (*find)(gr_gpu *gpu, const uint8_t uuid[16]);
    /* 0: GPU a may map and touch memory of GPU b (a == b: always). Else -GR_GPU_NO_PEER. */
    int (*peer)(gr_gpu *gpu, int a, int b, gr_gpu_fault *fault);

    /* What [addr, addr + len) is. Memory that the driver doesn't know is no error: kind is UNKNOWN. Makes no context.
     * cuPointerGetAttributes, cuMemRetainAllocationHandle */
    int (*what)(gr_gpu *gpu, uint64_t addr, uint64_t len, gr_gpu_mem *out, gr_gpu_fault *fault);
    /* 0: the memory at addr is still the one of that buffer id; else -GR_GPU_CHANGED. */
    int (*same)(gr_gpu *gpu, uint64_t addr, uint64_t buffer, gr_gpu_fault *fault);
    /* Makes what a peer needs. cuIpcGetMemHandle; VMM: nothing, its descriptors are made when they are to be sent, but for memory that has
     * only a fabric handle: cuMemExportToShareableHandle, which the driver may refuse (no IMEX channel). */
    int (*share)(gr_gpu *gpu, const gr_gpu_mem *mem, gr_gpu_share *out, gr_gpu_fault *fault);
    /* Descriptors and sizes of n pieces from first on, the caller's to close; all or none. cuMemRetainAllocationHandle,
     * cuMemExportToShareableHandle */
    int (*pieces)(gr_gpu *gpu, const gr_gpu_mem *mem, uint32_t first, uint32_t n, int *fds, uint64_t *sizes, gr_gpu_fault *fault);

    /* Maps a peer's memory for our GPU: one mapping for each allocation and GPU, counted; *out is the same for all who ask. IPC and memory
     * of this process, and fabric handles: READY or an error on return, which takes 2 to 10 ms. FDS: OPENING until map_add has had all pieces; *feeder is 1
     * for the one caller who shall bring them. cuIpcOpenMemHandle, cuMemAddressReserve */
    int (*map)(gr_gpu *gpu, const gr_gpu_share *share, int device, gr_gpu_map **out, int *feeder, gr_gpu_fault *fault);
    /* Takes the next n pieces; closes the descriptors whatever comes of it. An error makes the mapping FAILED. 0.1 to 10 ms a piece.
     * cuMemImportFromShareableHandle, cuMemMap, cuMemSetAccess */
    int (*map_add)(gr_gpu *gpu, gr_gpu_map *map, uint32_t n, const int *fds, const uint64_t *sizes, gr_gpu_fault *fault);
    /* The feeder gives up: FAILED for all who share it. */
    void (*map_fail)(gr_gpu *gpu, gr_gpu_map *map, int why);
    /* Gives one reference back; the last closes the mapping. No job that uses it may be under way. */
    int (*unmap)(gr_gpu *gpu, gr_gpu_map *map, gr_gpu_fault *fault);

    /* Memory that every GPU of the process reads at the address the CPU has: for operations. Aligned to 64 bytes. NULL without memory, or
     * before any GPU is in use. Needs no call of the driver unless the arena has to grow. */
    void *(*alloc)(gr_gpu *gpu, size_t size);
    void (*free)(gr_gpu *gpu, void *mem);
    int (*table)(gr_gpu *gpu, int device, gr_gpu_table **out, gr_gpu_fault *fault);
    /* No job that was posted with it may be under way. */
    void (*table_free)(gr_gpu_table *table);
    /* Sets the entry of a remote region. No job that uses the region may be under way; others may. Some 10 us. */
    int (*entry)(gr_gpu_table *table, uint32_t idx, uint64_t delta, gr_gpu_fault *fault);
    /* Makes host memory usable in copies, counted by exact range; memory that is pinned already stays as it is. cuMemHostRegister */
    int (*pin)(gr_gpu *gpu, void *addr, size_t len, gr_gpu_fault *fault);
    int (*unpin)(gr_gpu *gpu, void *addr, size_t len, gr_gpu_fault *fault);

    /* The lane of a pair of GPUs (peer -1: host memory), counted. */
    int (*lane)(gr_gpu *gpu, int device, int peer, gr_gpu_lane **out, gr_gpu_fault *fault);
    void (*lane_close)(gr_gpu *gpu, gr_gpu_lane *lane);
    /* A job can be posted again and again, by one at a time. Free: -GR_GPU_BUSY while it is under way. */
    int (*job)(gr_gpu_lane *lane, gr_gpu_job **out, gr_gpu_fault *fault);
    int (*job_free)(gr_gpu_job *job);
    /* Posts. One launch, or the first pieces for the copy engine, which poll follows up. Work is copied; its operations are not. */
    int (*post)(gr_gpu_job *job, const gr_gpu_work *work, gr_gpu_fault *fault);
    /* Polls. 1: under way, 0: done, every byte in place for whoever is told now; else it has ended with that: -GR_GPU_CANCELLED (nothing of
     * it touches memory any more), -GR_GPU_LOST. */
    int (*poll)(gr_gpu_job *job, gr_gpu_fault *fault);
    /* The job ends soon: no piece more is queued, the kernel stops at its next operation. Poll until it has. Safe from any thread. */
    void (*cancel)(gr_gpu_job *job);

    /* Memory of our own on a GPU that peers can map, for staging. cuMemAlloc */
    int (*vram)(gr_gpu *gpu, int device, size_t size, uint64_t *addr, gr_gpu_fault *fault);
    int (*vram_free)(gr_gpu *gpu, int device, uint64_t addr, gr_gpu_fault *fault);
    /* dmabuf of whole pages round a range, which may span handles; the caller's to close; *offset is addr's in it. by_pcie: for devices
     * that reach the GPU without passing a processor; a driver that doesn't know the difference has one way for all. Whoever takes the
     * wrong one is not told at registration. cuMemGetHandleForAddressRange */
    int (*dmabuf)(gr_gpu *gpu, const gr_gpu_mem *mem, uint64_t addr, uint64_t len, int by_pcie, int *fd, uint64_t *offset, gr_gpu_fault *fault);
    /* Makes the application's own copies and fills of the memory that say they are synchronous so, since a device may read it right after.
     * What the driver doesn't do that for is left as it is. cuPointerSetAttribute (SYNC_MEMOPS) */
    void (*sync_memops)(gr_gpu *gpu, const gr_gpu_mem *mem);
    /* What other devices have written to memory of the GPU is seen by its work from now on. cuFlushGPUDirectRDMAWrites */
    int (*flush)(gr_gpu *gpu, int device, gr_gpu_fault *fault);
} gr_gpu_ops;

/* Begins every driver's own structure. */
struct gr_gpu {
    const gr_gpu_ops *ops;
    int32_t devices; /* visible to this process */
    int32_t version; /* of the driver: 13000 is 13.0 */
    uint8_t owner[16];
    /* counters, for statistics; relaxed */
    _Atomic uint64_t launches, engine_copies, maps_open, maps_failed, imports, polls;
};

#endif
