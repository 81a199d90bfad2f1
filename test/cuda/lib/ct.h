/* A libcuda.so.1 for tests. The memory of its GPUs is memfds: processes share it by IPC handles and descriptors as with the real one.
 * What the application has of it are addresses that nobody may touch but through the library; work of streams is done by threads, late.
 *
 * control.c (tests), entry.c (which calls there are), device.c (contexts), mem.c (allocations, addresses, pinned memory), ipc.c,
 * vmm.c, direct.c (other devices), what.c (pointers), stream.c (streams, events, copies), kernel.c (modules and what our kernel does). One lock, ct_mu, round everything; functions
 * named ct_* want it held unless they say otherwise.
 */
#ifndef CT_H
#define CT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda_abi.h"
#include "switches.h"

enum { CT_DEVICES = 8, CT_GRANULE = 2 << 20, CT_PAGE = 4096 };

extern pthread_mutex_t ct_mu;
extern long ct_switch[SW_COUNT], ct_count[CT_COUNT];
extern int ct_dead; /* a CUresult: CUDA has ended for this process */

/* Behind the memory of every memfd, in a page of its own. */
typedef struct ct_tail {
    uint64_t magic, size;
    int32_t device, types;
    _Atomic uint32_t freed; /* by its owner */
    _Atomic uint32_t mapped; /* by others */
    _Atomic int32_t mapper;  /* the last of them */
} ct_tail;

/* Memory, as a GPU has it. */
typedef struct ct_mem {
    int fd, device, types;
    uint64_t size, inode;
    int refs;
    char *view; /* where the library itself touches it; the tail is behind it */
} ct_mem;

enum { KIND_ALLOC, KIND_POOL, KIND_MANAGED, KIND_IPC, KIND_VMM };

/* Memory at an address. */
typedef struct ct_map {
    struct ct_map *next;
    uint64_t at, size, id;
    ct_mem *mem;
    int kind, opens;    /* opens: of an IPC handle in this context */
    int device;         /* IPC: whose context opened it */
    unsigned access;    /* VMM: a bit for each device that may touch it */
} ct_map;

typedef struct ct_host {
    struct ct_host *next;
    char *at;
    size_t size;
    uint64_t id;
    int ours;
} ct_host;

struct CUctx_st {
    int device, refs;
    unsigned peers; /* whose memory it may touch */
};
extern struct CUctx_st ct_ctx[CT_DEVICES];

/* ---- control.c ---- */

int ct_fails(int call);
void ct_breach(const char *what, ...) __attribute__((format(printf, 1, 2)));

/* ---- device.c ---- */

extern int ct_ready; /* cuInit was called */
cu_ctx ct_current(void); /* of this thread, or NULL */
extern __thread int ct_depth;

/* ---- mem.c ---- */

uint64_t ct_reserve(uint64_t size);      /* addresses that nobody may touch */
void ct_unreserve(uint64_t at, uint64_t size);
ct_mem *ct_mem_new(uint64_t size, int device, int types);
ct_mem *ct_mem_of(int fd);               /* takes the descriptor; NULL: not one of ours */
void ct_mem_drop(ct_mem *mem, int owner);
ct_tail *ct_mem_tail(ct_mem *mem);
ct_map *ct_map_add(uint64_t at, ct_mem *mem, int kind, int device);
void ct_map_remove(ct_map *map);
ct_map *ct_map_at(uint64_t at);
ct_map *ct_map_of(uint64_t inode, int device); /* of an IPC handle */
ct_host *ct_host_at(uint64_t at);
uint64_t ct_id(void);
/* Where the library may touch [at, at + *len), for a kernel or copy engine of that device; *len gets shorter at the end of a mapping. NULL: it
 * may not. */
char *ct_touch(uint64_t at, uint64_t *len, int device, int kernel);

/* ---- stream.c ---- */

void ct_idle(void); /* waits until no stream has work; gives the lock away meanwhile */
int ct_busy(void);
int ct_uses(uint64_t at, uint64_t size);
int ct_is_stream(cu_stream s); /* of the current context */
void ct_queue_kernel(cu_stream s, const void *args, size_t size, int is_short, unsigned blocks);

/* ---- kernel.c ---- */

/* Runs a launch; without the lock. 0 or a CUresult that ends CUDA. */
int ct_run(const void *args, int is_short, int device, unsigned blocks);

/* Begins and ends every call. flags: whether a context must be current. */
enum { NO_CTX = 0, WITH_CTX = 1 };
int ct_begin(int call, int with_ctx);
#define BEGIN(call, with) do { int e_ = ct_begin(call, with); if (e_) return e_; } while (0)
#define END(result) do { int r_ = (result); pthread_mutex_unlock(&ct_mu); return r_; } while (0)

#endif
