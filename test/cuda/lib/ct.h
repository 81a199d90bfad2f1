/* A libcuda.so.1 for tests. GPU memory is memfds. Processes share it by IPC handles and descriptors, as with the real driver.
 * The application gets PROT_NONE addresses: only the library's calls can access the memory. Each stream is a thread that works with a delay.
 *
 * Environment: CUDA_VISIBLE_DEVICES, as for the real driver. GORAIL_TEST_GPU_SWITCHES ("layout=1,hidden=2") sets switches. GORAIL_TEST_GPU_NODE
 * is a folder that stands for the kernel's driver: with it, IPC handles work between pid namespaces.
 *
 * control.c (control by tests), entry.c (list of calls), device.c (devices, contexts), mem.c (allocations, addresses, pinned memory),
 * ipc.c (IPC handles), vmm.c (VMM), imex.c (fabric handles between machines), account.c (files behind addresses, free memory), direct.c (dmabufs, nvidia_peermem), what.c (pointer attributes), stream.c (streams, events, copies),
 * kernel.c (modules, launches of our kernels). One lock, ct_mu, protects everything. The caller of a ct_* function holds ct_mu unless the
 * function's comment says otherwise.
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
#define CT_TOTAL ((size_t)8 << 30) /* memory of a GPU */

extern pthread_mutex_t ct_mu;
extern long ct_switch[SW_COUNT], ct_count[CT_COUNT];
extern int ct_dead; /* a sticky CUresult: all later calls of this process return it */

/* In a page of its own, behind the memory in every memfd. */
typedef struct ct_tail {
    uint64_t magic, size;
    int32_t gpu, types; /* gpu: its number in the machine */
    _Atomic uint32_t freed; /* the owner has freed the memory */
} ct_tail;

/* Physical memory of a GPU. */
typedef struct ct_mem {
    int fd, device, types; /* device: this process's number of the GPU; -1: not visible */
    int gpu;               /* the machine's number of it */
    uint64_t size, inode;
    int refs, named; /* named: this process has given it a name in the IMEX domain */
    char *view; /* the library's own mapping; the tail is behind the memory */
} ct_mem;

enum { KIND_ALLOC, KIND_POOL, KIND_MANAGED, KIND_IPC, KIND_VMM };

/* Memory mapped at an address. */
typedef struct ct_map {
    struct ct_map *next;
    uint64_t at, size, id;
    ct_mem *mem;
    int kind, opens;    /* opens: how often this context has opened the IPC handle */
    int device;         /* IPC: the device whose context opened the handle; else the memory's device */
    unsigned access;    /* VMM: a bit for each device that may read */
    unsigned writes;    /* VMM: a bit for each device that may write */
} ct_map;

/* Pinned host memory. */
typedef struct ct_host {
    struct ct_host *next;
    char *at;
    size_t size;
    uint64_t id;
    int ours; /* 1: by cuMemHostAlloc, 0: by cuMemHostRegister */
    int device; /* of the context that made it */
} ct_host;

struct CUctx_st {
    int device, refs;
    unsigned peers; /* a bit for each device whose memory the context may access */
};
extern struct CUctx_st ct_ctx[CT_DEVICES];

/* ---- control.c ---- */

int ct_fails(int call);
void ct_breach(const char *what, ...) __attribute__((format(printf, 1, 2)));

/* ---- device.c ---- */

extern int ct_ready; /* cuInit was called */
int ct_device_count(void);
int ct_gpu(int device);  /* the machine's number of a device, and back; -1: CUDA_VISIBLE_DEVICES hides it */
int ct_device_of(int gpu);
cu_ctx ct_current(void); /* this thread's context, or NULL */
extern __thread int ct_depth; /* contexts on this thread's stack */

/* ---- mem.c ---- */

uint64_t ct_reserve(uint64_t size);      /* PROT_NONE addresses */
void ct_unreserve(uint64_t at, uint64_t size);
ct_mem *ct_mem_new(uint64_t size, int device, int types);
int ct_mem_publish(ct_mem *mem);         /* gives the memory a name in the node's folder; -1: there is no room */
int ct_mem_open(int pid, int fd, uint64_t inode); /* a descriptor of another process's memory: by name, or by /proc; -1: none */
int ct_hidden(const ct_mem *mem);        /* whether this process cannot open the GPU's device node */
ct_mem *ct_mem_of(int fd);               /* takes the descriptor; NULL: not memory of this library */
void ct_mem_drop(ct_mem *mem, int owner);
ct_tail *ct_mem_tail(ct_mem *mem);
ct_map *ct_map_add(uint64_t at, ct_mem *mem, int kind, int device);
void ct_map_remove(ct_map *map);
ct_map *ct_map_at(uint64_t at);
ct_map *ct_map_of(uint64_t inode, int device); /* the mapping of an IPC handle in the device's context, or NULL */
ct_host *ct_host_at(uint64_t at);
uint64_t ct_id(void);
/* Translates [at, at + *len) to the library's own mapping, for a kernel or a copy engine of the device. *len gets shorter at the end
 * of a mapping. NULL: unknown address, or the device has no access. */
enum { BY_ENGINE = 0, BY_KERNEL = 1, TO_WRITE = 2 };
char *ct_touch(uint64_t at, uint64_t *len, int device, int how);
unsigned ct_access(const ct_map *m, int device); /* VMM: a CU_ACCESS_* */

/* ---- imex.c ---- */

const char *ct_imex(void); /* the folder of the domain, or NULL */
const char *ct_node(void);
int ct_imex_check(void);   /* a CUresult: whether this process may use fabric handles now */
int ct_imex_publish(ct_mem *mem);
void ct_imex_hide(const ct_mem *mem);
int ct_imex_export(const ct_mem *mem, void *handle);
int ct_imex_import(const void *handle, ct_mem **out);

/* ---- stream.c ---- */

void ct_idle(void); /* waits until no stream has work, and releases the lock meanwhile */
int ct_busy(void);
int ct_uses(uint64_t at, uint64_t size); /* whether queued or running work may access the range */
int ct_is_stream(cu_stream s); /* whether s is a stream of the current context */
void ct_queue_kernel(cu_stream s, const void *args, size_t size, int kind, unsigned blocks);

/* ---- kernel.c ---- */

enum { CT_GATHER, CT_GATHER_SHORT, CT_PACK, CT_PACK_OUT, CT_UNPACK };

/* Runs a launch. Called without the lock. Sets *done, with the lock, just before it reports completion. Returns 0, or a CUresult
 * that becomes the sticky error. */
int ct_kernel_uses(const void *args, int kind, int device, uint64_t addr, uint64_t size);
int ct_run(const void *args, int kind, int device, int *done);

/* BEGIN and END enclose every call. with: WITH_CTX if the call needs a current context. */
enum { NO_CTX = 0, WITH_CTX = 1 };
int ct_begin(int call, int with_ctx);
#define BEGIN(call, with)                                                                                                                            \
    do {                                                                                                                                             \
        int e_ = ct_begin(call, with);                                                                                                               \
        if (e_)                                                                                                                                      \
            return e_;                                                                                                                               \
    } while (0)
#define END(result)                                                                                                                                  \
    do {                                                                                                                                             \
        int r_ = (result);                                                                                                                           \
        pthread_mutex_unlock(&ct_mu);                                                                                                                \
        return r_;                                                                                                                                   \
    } while (0)

#endif
