/* Pinned memory: chunks that every GPU sees at the CPU's address, cut into blocks of powers of two. */
#include <stdlib.h>
#include <string.h>

#include "gpu_int.h"

enum {
    MIN_CLASS = 7,        /* log2 of the smallest block, with its header */
    HEAD = 64,            /* bytes in front of a block: its class; keeps cache lines apart */
    CHUNK = 8 << 20,      /* allocating a chunk takes 5 ms, and pinning waits for the streams of the process */
    OWN_CHUNK = 21,       /* log2 of the smallest block that is its own chunk */
};

static char *chunk_new(gg *g, size_t size)
{
    gg_dev *d = atomic_load(&g->first);
    uint32_t n = atomic_load(&g->chunks);
    void *mem = NULL;
    if (!d || n == GG_CHUNKS || gg_enter(g, d, NULL))
        return NULL;
    if (g->cu.host_alloc(&mem, size, CU_HOST_PORTABLE | CU_HOST_MAPPED) != CU_OK)
        mem = NULL;
    gg_leave(g);
    if (!mem)
        return NULL;
    g->chunk[n] = (gg_chunk){mem, size};
    atomic_store(&g->chunks, n + 1);
    return mem;
}

/* With arena_mu held. */
static char *carve(gg *g, int class)
{
    size_t size = (size_t)1 << class;
    if (class >= OWN_CHUNK)
        return chunk_new(g, size);
    if (g->cut < 0 || g->chunk[g->cut].size - g->used < size) {
        if (!chunk_new(g, CHUNK))
            return NULL;
        g->cut = (int)atomic_load(&g->chunks) - 1;
        g->used = 0;
    }
    char *mem = g->chunk[g->cut].mem + g->used;
    g->used += size;
    return mem;
}

void *gg_alloc(gr_gpu *gpu, size_t size)
{
    gg *g = gg_of(gpu);
    int class = MIN_CLASS;
    while (class < GG_CLASSES && ((size_t)1 << class) - HEAD < size)
        class++;
    if (class == GG_CLASSES)
        return NULL;
    pthread_mutex_lock(&g->arena_mu);
    char *mem = g->free_block[class];
    if (mem)
        g->free_block[class] = *(void **)(mem + HEAD);
    else
        mem = carve(g, class);
    pthread_mutex_unlock(&g->arena_mu);
    if (!mem)
        return NULL;
    *(int *)mem = class;
    return mem + HEAD;
}

void gg_free(gr_gpu *gpu, void *mem)
{
    gg *g = gg_of(gpu);
    if (!mem)
        return;
    int class = *(int *)((char *)mem - HEAD);
    pthread_mutex_lock(&g->arena_mu);
    *(void **)mem = g->free_block[class];
    g->free_block[class] = (char *)mem - HEAD;
    pthread_mutex_unlock(&g->arena_mu);
}

int gg_in_arena(gg *g, const void *mem, size_t size)
{
    const char *at = mem;
    uint32_t n = atomic_load(&g->chunks);
    for (uint32_t i = 0; i < n; i++)
        if (at >= g->chunk[i].mem && at < g->chunk[i].mem + g->chunk[i].size)
            return size <= (size_t)(g->chunk[i].mem + g->chunk[i].size - at);
    return 0;
}

void gg_arena_close(gg *g)
{
    gg_dev *d = atomic_load(&g->first);
    if (!d || gg_enter(g, d, NULL))
        return;
    for (uint32_t i = 0; i < atomic_load(&g->chunks); i++)
        (void)g->cu.host_free(g->chunk[i].mem);
    gg_leave(g);
    atomic_store(&g->chunks, 0);
}
