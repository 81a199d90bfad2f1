/* GPU memory that we allocate: marks of jobs, tables of deltas, bounce buffers, words of proofs. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_int.h"

/* Waits for the copies and fills of the GPU's util stream. After an error they have ended, too, unless the context is lost or the
 * driver's answers stay unclear. */
static int wait_util(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    cu_result r = g->cu.stream_sync(d->util);
    int rc = gg_result(g, fault, r, gg_name_stream_sync);
    for (int unclear = 0; r != CU_OK && !gg_lost(r) && unclear < GG_UNCLEAR; unclear += r != CU_NOT_READY) {
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        r = g->cu.stream_query(d->util);
    }
    return rc;
}

/* Within the context. */
static int allocate(gg *g, cu_ptr *mem, size_t size, gr_gpu_fault *fault)
{
    int rc = gg_owned_begin(g, fault);
    if (rc)
        return rc;
    rc = GG_CALL(g, fault, mem_alloc, mem, size);
    gg_owned_made(g, *mem, rc ? 0 : size);
    return rc;
}

static int release(gg *g, cu_ptr mem, gr_gpu_fault *fault)
{
    gg_owned_freeing(g);
    int rc = GG_CALL(g, fault, mem_free, mem);
    gg_owned_freed(g, mem);
    return rc;
}

/* Allocates zeroed GPU memory. With mu held, within the context. */
static int block(gg *g, gg_dev *d, gg_block **list, size_t size, cu_ptr *out, gr_gpu_fault *fault)
{
    gg_block *b = GR_ALLOC(gpu_block, malloc(sizeof(*b)));
    if (!b)
        return gg_fail(fault, GR_GPU_NO_MEMORY, "malloc");
    b->mem = 0;
    int rc = allocate(g, &b->mem, size, fault);
    if (rc) {
        free(b);
        return rc;
    }
    b->next = *list;
    *list = b;
    *out = b->mem;
    if ((rc = GG_CALL(g, fault, fill, b->mem, 0, size, d->util)) == 0)
        rc = wait_util(g, d, fault);
    return rc;
}

static int more_marks(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    cu_ptr mem;
    cu_ptr *list = GR_ALLOC(gpu_marks, realloc(d->free_marks, (d->marks + GG_MARKS) * sizeof(*list)));
    if (!list)
        return gg_fail(fault, GR_GPU_NO_MEMORY, "realloc");
    d->free_marks = list;
    int rc = block(g, d, &d->blocks, GG_MARKS * sizeof(gr_gather_mark), &mem, fault);
    for (uint32_t i = 0; rc == 0 && i < GG_MARKS; i++)
        d->free_marks[d->free_mark_count++] = mem + i * sizeof(gr_gather_mark);
    d->marks += rc ? 0 : GG_MARKS;
    return rc;
}

int gg_mark(gg *g, gg_dev *d, cu_ptr *out, gr_gpu_fault *fault)
{
    int rc = 0;
    pthread_mutex_lock(&g->mu);
    if (d->free_mark_count == 0 && (rc = gg_enter(g, d, fault)) == 0) {
        rc = more_marks(g, d, fault);
        gg_leave(g);
    }
    if (rc == 0)
        *out = d->free_marks[--d->free_mark_count];
    pthread_mutex_unlock(&g->mu);
    return rc;
}

void gg_mark_free(gg *g, gg_dev *d, cu_ptr mark)
{
    pthread_mutex_lock(&g->mu);
    d->free_marks[d->free_mark_count++] = mark;
    pthread_mutex_unlock(&g->mu);
}

static void discard(gg *g, gg_block *list)
{
    for (gg_block *b = list, *next; b; b = next) {
        next = b->next;
        (void)release(g, b->mem, NULL);
        free(b);
    }
}

void gg_marks_close(gg *g, gg_dev *d)
{
    discard(g, d->blocks);
    free(d->free_marks);
}

int gg_table(gr_gpu *gpu, int device, gr_gpu_table **out, gr_gpu_fault *fault)
{
    int rc;
    gg_dev *d = gg_device(gg_of(gpu), device, fault, &rc);
    *out = NULL;
    if (!d)
        return rc;
    if (!(*out = GR_ALLOC(gpu_table, calloc(1, sizeof(**out)))))
        return gg_fail(fault, GR_GPU_NO_MEMORY, "calloc");
    (*out)->g = gg_of(gpu);
    (*out)->dev = d;
    atomic_fetch_add(&gg_of(gpu)->tables, 1);
    return 0;
}

void gg_table_free(gr_gpu_table *t)
{
    gg *g = t->g;
    if (t->blocks && gg_enter(g, t->dev, NULL) == 0) {
        discard(g, t->blocks);
        gg_leave(g);
    }
    gg_free(&g->pub, atomic_load(&t->shadow));
    free(t);
    atomic_fetch_sub(&g->tables, 1);
}

/* Enlarges a table. With mu held, within the context. The GPU's old entries stay for running kernels. */
static int grow(gr_gpu_table *t, uint32_t idx, gr_gpu_fault *fault)
{
    gg *g = t->g;
    uint32_t n = t->entries ? t->entries : GG_TABLE;
    cu_ptr mem;
    while (n <= idx)
        n *= 2;
    uint64_t *shadow = gg_alloc(&g->pub, n * sizeof(*shadow)), *old = atomic_load(&t->shadow);
    if (!shadow)
        return gg_fail(fault, GR_GPU_NO_MEMORY, gg_name_host_alloc);
    memset(shadow, 0, n * sizeof(*shadow));
    if (old)
        memcpy(shadow, old, t->entries * sizeof(*shadow)); /* ours */
    int rc = block(g, t->dev, &t->blocks, n * sizeof(*shadow), &mem, fault);
    if (rc) {
        gg_free(&g->pub, shadow);
        return rc;
    }
    if ((rc = GG_CALL(g, fault, copy_in, mem, shadow, n * sizeof(*shadow), t->dev->util)) == 0)
        rc = wait_util(g, t->dev, fault);
    if (rc)
        return rc; /* shadow stays in the arena: the copy may still read it */
    atomic_store(&t->shadow, shadow);
    atomic_store(&t->mem, mem);
    t->entries = n;
    return 0;
}

int gg_entry(gr_gpu_table *t, uint32_t idx, uint64_t delta, gr_gpu_fault *fault)
{
    gg *g = t->g;
    if (idx >= 1u << 27)
        return gg_fail(fault, GR_GPU_BAD_SHARE, "region number");
    pthread_mutex_lock(&g->mu);
    int rc = gg_enter(g, t->dev, fault);
    if (rc == 0) {
        if (idx >= t->entries)
            rc = grow(t, idx, fault);
        uint64_t *shadow = atomic_load(&t->shadow);
        if (rc == 0 && shadow[idx] != delta) {
            shadow[idx] = delta;
            cu_ptr to = atomic_load(&t->mem) + idx * sizeof(*shadow);
            if ((rc = GG_CALL(g, fault, copy_in, to, &shadow[idx], sizeof(*shadow), t->dev->util)) == 0)
                rc = wait_util(g, t->dev, fault);
            if (rc)
                shadow[idx] = ~delta; /* makes the next attempt copy the entry */
        }
        gg_leave(g);
    }
    pthread_mutex_unlock(&g->mu);
    return rc;
}

int gg_vram(gr_gpu *gpu, int device, size_t size, uint64_t *addr, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    cu_ptr mem = 0;
    int rc;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d || (rc = gg_enter(g, d, fault)))
        return rc;
    rc = allocate(g, &mem, size, fault);
    gg_leave(g);
    *addr = mem;
    return rc;
}

int gg_vram_free(gr_gpu *gpu, int device, uint64_t addr, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d || (rc = gg_enter(g, d, fault)))
        return rc;
    rc = release(g, addr, fault);
    gg_leave(g);
    return rc;
}

int gg_bytes(gr_gpu *gpu, int device, int write, uint64_t addr, void *mem, size_t size, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d)
        return rc;
    pthread_mutex_lock(&g->mu);
    if ((rc = gg_enter(g, d, fault)) == 0) {
        rc = write ? GG_CALL(g, fault, copy_in, addr, mem, size, d->util)
                   : GG_CALL(g, fault, copy, (cu_ptr)(uintptr_t)mem, addr, size, d->util);
        if (rc == 0)
            rc = wait_util(g, d, fault);
        gg_leave(g);
    }
    pthread_mutex_unlock(&g->mu);
    return rc;
}
