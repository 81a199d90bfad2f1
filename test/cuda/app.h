/* What an application does with a GPU by itself, through the driver: memory of every kind, made, filled, read and freed. Each call retains
 * what it needs and leaves no context current. Functions return a CUresult. */
#ifndef CUDA_APP_H
#define CUDA_APP_H

#include "cuda_abi.h"

typedef struct app app;

app *app_open(const char *path, char *err, size_t len);
void app_close(app *a);

enum { APP_ALLOC, APP_POOL, APP_MANAGED, APP_HOST };
int app_alloc(app *a, int device, int kind, size_t size, cu_ptr *out);
int app_free(app *a, int device, int kind, cu_ptr at);
/* n handles of size bytes each, end to end; handle_types: of CU_HANDLE_*, how they can be shared. */
int app_vmm(app *a, int device, int n, size_t size, int handle_types, cu_ptr *out);
int app_vmm_free(app *a, int device, int n, size_t size, cu_ptr at);
int app_write(app *a, int device, cu_ptr to, const void *from, size_t len);
int app_read(app *a, int device, void *to, cu_ptr from, size_t len);
/* Whether this thread has a context, 1 or 0, or < 0. */
int app_has_context(app *a);
/* Makes the GPU's context this thread's, as the application would have it; NULL takes it away. */
int app_enter(app *a, int device);
int app_leave(app *a);

/* Mistakes that a driver has to refuse. What it says. */
enum { WRONG_NO_CONTEXT, WRONG_VMM_SIZE, WRONG_VMM_EXPORT, WRONG_VMM_IPC, WRONG_OWN_IPC, WRONG_DOUBLE_FREE, WRONG_REGISTERED_TWICE, WRONG_FREE_MAPPED,
       WRONG_PTX, WRONG_STREAM, WRONG_COUNT };
int app_wrong(app *a, int which);

#endif
