/* The benchmark's own use of a GPU: memory, copies from and to the host, and a load for its kernels. Functions return a CUresult. Each makes
 * the GPU's primary context current for its own time, so any thread may call them. */
#ifndef GORAIL_BENCH_CUDA_H
#define GORAIL_BENCH_CUDA_H

#include "cuda_abi.h"

typedef struct bc_driver bc_driver;
typedef struct bc_load bc_load;

/* bc_open loads the driver. On failure it returns NULL and writes the reason. */
bc_driver *bc_open(const char *path, char *why, size_t len);
const char *bc_error(bc_driver *d, cu_result r);

/* bc_release gives up the contexts. */
void bc_release(bc_driver *d);

int bc_count(bc_driver *d, int *gpus);
int bc_describe(bc_driver *d, int gpu, char *name, size_t len, int *sms);

/* bc_alloc allocates by cuMemAlloc, or as VMM memory whose handle peers can import. *size grows to what was allocated. */
int bc_alloc(bc_driver *d, int gpu, size_t *size, int vmm, cu_ptr *out);
int bc_free(bc_driver *d, int gpu, size_t size, int vmm, cu_ptr at);
int bc_write(bc_driver *d, int gpu, cu_ptr to, const void *from, size_t len);
int bc_read(bc_driver *d, int gpu, void *to, cu_ptr from, size_t len);

/* bc_load_start keeps all of a GPU's SMs busy with launches of the kernel, by a thread of its own, until bc_load_stop. */
int bc_load_start(bc_driver *d, int gpu, int sms, const char *ptx, bc_load **out);
/* bc_load_count returns the launches that have ended, or -CUresult. */
long bc_load_count(bc_load *l);
int bc_load_stop(bc_load *l);

#endif
