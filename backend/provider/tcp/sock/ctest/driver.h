/* The calls of a GPU driver that only make and free things. Include it after the struct gr_gpu_job of the test. */
#ifndef GR_TCP_CTEST_DRIVER_H
#define GR_TCP_CTEST_DRIVER_H

#include <stdlib.h>

#include "../sock.h"

static void *alloc(gr_gpu *gpu, size_t size) { return (void)gpu, malloc(size); }
static void drop(gr_gpu *gpu, void *mem) { (void)gpu, free(mem); }
static int stream(gr_gpu *gpu, int device, int peer, gr_gpu_stream **out, gr_gpu_fault *fault)
{
    (void)gpu, (void)device, (void)peer, (void)fault;
    *out = (void *)1;
    return 0;
}
static void stream_close(gr_gpu *gpu, gr_gpu_stream *s) { (void)gpu, (void)s; }
static int job(gr_gpu_stream *s, gr_gpu_job **out, gr_gpu_fault *fault) { return (void)s, (void)fault, (*out = calloc(1, sizeof(**out))) ? 0 : -1; }

#endif
