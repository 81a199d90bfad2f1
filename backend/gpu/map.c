/* Peers' memory, mapped once for each allocation and GPU of ours. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_int.h"

static int set(gg *g, gg_map *m, int rc, int why)
{
    atomic_fetch_add_explicit(why ? &g->pub.maps_failed : &g->pub.maps_open, 1, memory_order_relaxed);
    m->pub.why = why;
    atomic_store(&m->pub.state, why ? GR_GPU_MAP_FAILED : GR_GPU_MAP_READY);
    return rc;
}

/* What the driver says no to when a peer's memory can't be had, as opposed to being broken. */
static int refused(gr_gpu_fault *fault, int rc)
{
    if (rc != -GR_GPU_DRIVER)
        return rc;
    if (fault)
        fault->why = GR_GPU_REFUSED;
    return -GR_GPU_REFUSED;
}

static int access_for(gg *g, gg_map *m, uint64_t at, uint64_t size, gr_gpu_fault *fault)
{
    cu_access a = { { CU_LOCATION_DEVICE, m->dev->ordinal }, CU_ACCESS_READWRITE };
    return GG_CALL(g, fault, vmm_access, at, size, &a, 1);
}

/* Puts a handle behind those mapped already; the handle is the caller's to release. */
static int place(gg *g, gg_map *m, cu_mem handle, uint64_t size, gr_gpu_fault *fault)
{
    uint32_t have = atomic_load(&m->pub.have);
    if (have == m->pub.pieces || size == 0 || size > m->pub.size - m->mapped || (have + 1 == m->pub.pieces && size != m->pub.size - m->mapped))
        return gg_fail(fault, GR_GPU_BAD_SHARE, "size of a piece");
    int rc = GG_CALL(g, fault, vmm_map, m->pub.at + m->mapped, size, 0, handle, 0);
    if (rc)
        return rc;
    m->sizes[have] = size;
    m->mapped += size;
    atomic_store(&m->pub.have, have + 1);
    return 0;
}

static int reserve(gg *g, gg_map *m, gr_gpu_fault *fault)
{
    cu_ptr at = 0;
    if (!(m->sizes = calloc(m->pub.pieces, sizeof(*m->sizes))))
        return gg_fail(fault, GR_GPU_NO_MEMORY, "calloc");
    int rc = GG_CALL(g, fault, vmm_reserve, &at, m->pub.size, 0, 0, 0);
    m->pub.at = at;
    return rc;
}

/* VMM memory of this process for another GPU of it: a mapping of our own, so that the application's stays as it is. */
static int again(gg *g, gg_map *m, gr_gpu_fault *fault)
{
    int rc = reserve(g, m, fault);
    while (rc == 0 && m->mapped < m->pub.size) {
        uint64_t from = m->pub.base + m->mapped, base, size;
        cu_mem handle;
        if (gg_mapping(g, from, &base, &size) != CU_OK || base != from)
            return gg_fail(fault, GR_GPU_CHANGED, "mappings");
        if ((rc = GG_CALL(g, fault, vmm_retain, &handle, (void *)from)))
            return rc;
        rc = place(g, m, handle, size, fault);
        (void)g->cu.vmm_release(handle);
    }
    return rc ? rc : access_for(g, m, m->pub.at, m->pub.size, fault);
}

/* Memory that its handle in the share is all of. */
static int of_handle(gg *g, gg_map *m, gr_gpu_fault *fault)
{
    cu_mem handle;
    int rc = reserve(g, m, fault);
    if (rc || (rc = GG_CALL(g, fault, vmm_import, &handle, m->share.handle, CU_HANDLE_FABRIC)))
        return rc;
    rc = place(g, m, handle, m->pub.size, fault);
    (void)g->cu.vmm_release(handle); /* the mapping keeps the memory */
    atomic_fetch_add_explicit(&g->pub.imports, 1, memory_order_relaxed);
    return rc ? rc : access_for(g, m, m->pub.at, m->pub.size, fault);
}

/* A peer may say that its memory is ours: it has to be there. */
static int own(gg *g, gg_map *m, gg_dev *theirs, gr_gpu_fault *fault)
{
    gr_gpu_mem is;
    int rc = gg_what(&g->pub, m->pub.base, m->pub.size, &is, fault);
    if (rc)
        return rc;
    if (is.buffer != m->share.buffer || is.shareable != m->share.how || is.pieces != m->pub.pieces || is.device != theirs->ordinal)
        return gg_fail(fault, GR_GPU_CHANGED, "memory of this process");
    if (theirs != m->dev && m->share.how != GR_GPU_SHARE_IPC)
        return again(g, m, fault);
    m->identity = 1;
    m->pub.at = m->pub.base;
    if (theirs == m->dev)
        return 0;
    rc = GG_CALL(g, fault, ctx_enable_peer, theirs->ctx, 0);
    return rc && fault && fault->result == CU_PEER_ENABLED ? 0 : rc;
}

/* Within the context, with m->mu held. FDS of another process: what is left to do is the feeder's. */
static int begin(gg *g, gg_map *m, gg_dev *theirs, gr_gpu_fault *fault)
{
    cu_ptr at = 0;
    cu_ipc handle;
    if (memcmp(m->share.owner, g->pub.owner, 16) == 0)
        return own(g, m, theirs, fault);
    if (m->share.how == GR_GPU_SHARE_FDS)
        return reserve(g, m, fault);
    if (m->share.how == GR_GPU_SHARE_FABRIC)
        return of_handle(g, m, fault);
    memcpy(handle.bytes, m->share.handle, sizeof(handle.bytes));
    int rc = GG_CALL(g, fault, ipc_open, &at, handle, CU_IPC_LAZY_PEER);
    if (rc)
        return rc;
    m->pub.at = at;
    /* The size is the peer's word, and a copy beyond the end would end CUDA for this process. */
    cu_ptr start = 0;
    size_t size = 0;
    if ((rc = GG_CALL(g, fault, ptr_attr, &start, CU_PTR_START, at)) || (rc = GG_CALL(g, fault, ptr_attr, &size, CU_PTR_SIZE, at)))
        return rc;
    return start == at && size >= m->pub.size ? 0 : gg_fail(fault, GR_GPU_BAD_SHARE, "size of the allocation");
}

/* Undoes what there is of it. */
static int undo(gg *g, gg_map *m, gr_gpu_fault *fault)
{
    int rc = 0, r;
    if (m->identity || (!m->pub.at && !m->sizes))
        return 0;
    if ((rc = gg_enter(g, m->dev, fault))) {
        free(m->sizes);
        return rc;
    }
    if (!m->sizes)
        rc = GG_CALL(g, fault, ipc_close, m->pub.at);
    else {
        uint64_t at = m->pub.at;
        for (uint32_t i = 0; i < atomic_load(&m->pub.have); at += m->sizes[i++])
            if ((r = GG_CALL(g, fault, vmm_unmap, at, m->sizes[i])))
                rc = r;
        if (m->pub.at && (r = GG_CALL(g, fault, vmm_free, m->pub.at, m->pub.size)))
            rc = r;
        free(m->sizes);
        m->sizes = NULL;
    }
    gg_leave(g);
    m->pub.at = 0;
    return rc;
}

/* With map_mu held: one reference more, or a new one that nobody has begun. */
static gg_map *look(gg *g, const gr_gpu_share *share, gg_dev *d)
{
    gg_map *m = g->maps;
    while (m && !(m->dev == d && m->share.base == share->base && m->share.buffer == share->buffer && m->share.size == share->size &&
                  m->share.pad == share->pad && m->share.how == share->how && memcmp(m->share.owner, share->owner, 16) == 0))
        m = m->next;
    if (!m && (m = calloc(1, sizeof(*m)))) {
        m->share = *share;
        m->dev = d;
        m->pub.base = share->base;
        m->pub.size = share->size;
        m->pub.pieces = share->pieces;
        m->pub.device = d->ordinal;
        pthread_mutex_init(&m->mu, NULL);
        m->next = g->maps;
        g->maps = m;
    }
    if (m)
        m->refs++;
    return m;
}

/* pieces: no driver has handles of less than 64 KiB, and the list of them is ours. */
static int sane(const gr_gpu_share *s)
{
    return s->version == GR_GPU_SHARE_VERSION && s->size && s->base && s->base + s->size > s->base && s->pieces &&
           s->pieces <= (s->size + 0xffff) >> 16 && s->pieces <= GG_PIECES && (s->how == GR_GPU_SHARE_FDS || ((s->how == GR_GPU_SHARE_IPC || s->how == GR_GPU_SHARE_FABRIC) && s->pieces == 1));
}

int gg_map_open(gr_gpu *gpu, const gr_gpu_share *share, int device, gr_gpu_map **out, int *feeder, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    gr_gpu_fault mine = { 0 };
    int rc;
    *out = NULL;
    *feeder = 0;
    if (!sane(share))
        return gg_fail(fault, GR_GPU_BAD_SHARE, "share");
    gg_dev *d = gg_device(g, device, fault, &rc), *theirs = NULL;
    if (!d)
        return rc;
    /* A GPU that this process doesn't see may be mappable all the same: the driver knows. */
    int ordinal = gg_find(gpu, share->gpu);
    if (ordinal >= 0 && (rc = gg_peer(gpu, device, ordinal, fault)))
        return rc;
    if (memcmp(share->owner, gpu->owner, 16) == 0 && !(theirs = gg_device(g, ordinal, fault, &rc)))
        return rc;
    pthread_mutex_lock(&g->map_mu);
    gg_map *m = look(g, share, d);
    pthread_mutex_unlock(&g->map_mu);
    if (!m)
        return gg_fail(fault, GR_GPU_NO_MEMORY, "calloc");
    pthread_mutex_lock(&m->mu);
    if (atomic_load(&m->pub.state) == GR_GPU_MAP_OPENING && !m->pub.at) {
        if ((rc = gg_enter(g, d, &mine)) == 0) {
            rc = refused(&mine, begin(g, m, theirs, &mine));
            gg_leave(g);
        }
        if (rc)
            set(g, m, rc, mine.why);
        else if (m->identity || !m->sizes || atomic_load(&m->pub.have) == m->pub.pieces)
            set(g, m, 0, 0);
        else
            *feeder = 1;
        if (rc && fault)
            *fault = mine;
    } else if (atomic_load(&m->pub.state) == GR_GPU_MAP_FAILED)
        rc = gg_fail(fault, m->pub.why, "an earlier attempt");
    pthread_mutex_unlock(&m->mu);
    if (rc)
        (void)gg_unmap(gpu, &m->pub, NULL);
    else
        *out = &m->pub;
    return rc;
}

int gg_map_add(gr_gpu *gpu, gr_gpu_map *map, uint32_t n, const int *fds, const uint64_t *sizes, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    gg_map *m = (gg_map *)map;
    gr_gpu_fault mine = { 0 };
    pthread_mutex_lock(&m->mu);
    uint64_t from = m->mapped;
    int rc = atomic_load(&map->state) == GR_GPU_MAP_OPENING && m->sizes ? 0 : gg_fail(&mine, GR_GPU_BAD_SHARE, "pieces");
    int inside = rc == 0 && (rc = gg_enter(g, m->dev, &mine)) == 0;
    for (uint32_t i = 0; i < n; i++) {
        cu_mem handle;
        if (rc == 0 && (rc = GG_CALL(g, &mine, vmm_import, &handle, (void *)(intptr_t)fds[i], CU_HANDLE_FD)) == 0) {
            rc = place(g, m, handle, sizes[i], &mine);
            (void)g->cu.vmm_release(handle); /* the mapping keeps the memory */
            atomic_fetch_add_explicit(&gpu->imports, 1, memory_order_relaxed);
        }
        close(fds[i]);
    }
    if (rc == 0 && m->mapped > from)
        rc = access_for(g, m, map->at + from, m->mapped - from, &mine);
    if (inside)
        gg_leave(g);
    rc = refused(&mine, rc);
    if (atomic_load(&map->state) == GR_GPU_MAP_OPENING) {
        if (rc)
            set(g, m, rc, mine.why);
        else if (m->mapped == map->size && atomic_load(&map->have) == map->pieces)
            set(g, m, 0, 0);
    }
    if (rc && fault)
        *fault = mine;
    pthread_mutex_unlock(&m->mu);
    return rc;
}

void gg_map_fail(gr_gpu *gpu, gr_gpu_map *map, int why)
{
    gg_map *m = (gg_map *)map;
    pthread_mutex_lock(&m->mu);
    if (atomic_load(&map->state) == GR_GPU_MAP_OPENING)
        set(gg_of(gpu), m, 0, why ? why : GR_GPU_CANCELLED);
    pthread_mutex_unlock(&m->mu);
}

int gg_unmap(gr_gpu *gpu, gr_gpu_map *map, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    gg_map *m = (gg_map *)map;
    pthread_mutex_lock(&g->map_mu);
    uint32_t left = --m->refs;
    for (gg_map **p = &g->maps; left == 0 && *p; p = &(*p)->next)
        if (*p == m) {
            *p = m->next;
            break;
        }
    pthread_mutex_unlock(&g->map_mu);
    if (left)
        return 0;
    int rc = undo(g, m, fault);
    pthread_mutex_destroy(&m->mu);
    free(m);
    return rc;
}
