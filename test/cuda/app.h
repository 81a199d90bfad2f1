/* The application's own use of a GPU through the driver: it allocates, fills, reads and frees memory of every kind.
 * A call retains the GPU's primary context on first use; app_close releases it. Only app_enter leaves a context current.
 * Functions return a CUresult. */
#ifndef CUDA_APP_H
#define CUDA_APP_H

#include "cuda_abi.h"

typedef struct app app;

app *app_open(const char *path, char *err, size_t len);
void app_close(app *a);

enum { APP_ALLOC, APP_POOL, APP_MANAGED, APP_HOST };
int app_alloc(app *a, int device, int kind, size_t size, cu_ptr *out);
int app_free(app *a, int device, int kind, cu_ptr at);
enum { APP_OF_HOST = 1 << 16 };
/* Maps n handles of size bytes each at consecutive addresses. handle_types: CU_HANDLE_* bits, how the handles can be shared, and APP_OF_HOST: memory of
 * the host, which the processor and the GPU reach (EGM). */
int app_vmm(app *a, int device, int n, size_t size, int handle_types, cu_ptr *out);
int app_vmm_free(app *a, int device, int n, size_t size, cu_ptr at);
/* The two halves: what is behind reserved addresses, which stay. */
int app_vmm_unmap(app *a, int device, int n, size_t size, cu_ptr at);
int app_vmm_map(app *a, int device, int n, size_t size, int handle_types, cu_ptr at);
int app_vmm_protect(app *a, int device, size_t size, cu_ptr at); /* the GPU may only read */
/* Free memory of a GPU. */
int app_left(app *a, int device, size_t *left);
int app_write(app *a, int device, cu_ptr to, const void *from, size_t len);
int app_read(app *a, int device, void *to, cu_ptr from, size_t len);
/* 1: this thread has a current context, 0: it has none, < 0: -CUresult. */
int app_has_context(app *a);
/* app_enter pushes the GPU's primary context on this thread, app_leave pops a context. */
int app_enter(app *a, int device);
int app_leave(app *a);

/* Makes a mistake that a driver must refuse. Returns the driver's CUresult, or < 0 if a call before the mistake failed. */
enum {
    WRONG_NO_CONTEXT,
    WRONG_VMM_SIZE,
    WRONG_VMM_EXPORT,
    WRONG_VMM_IPC,
    WRONG_OWN_IPC,
    WRONG_DOUBLE_FREE,
    WRONG_REGISTERED_TWICE,
    WRONG_FREE_MAPPED,
    WRONG_PTX,
    WRONG_STREAM,
    WRONG_COUNT
};
int app_wrong(app *a, int which);

#endif
