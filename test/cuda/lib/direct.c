/* Access by other devices to GPU memory: by dmabufs, or by addresses through nvidia_peermem. */
#define _GNU_SOURCE
#include "dmabuf.h"

#include "ct.h"

/* Returns a descriptor of a file that describes the range; the caller closes it. -1: the range is not memory of one GPU. */
static int describe(uint64_t ptr, uint64_t size, int by_pcie)
{
    static dmabuf d;
    int fd, device = -1;
    d = (dmabuf){.magic = DMABUF_MAGIC, .size = size, .by_pcie = (uint32_t)by_pcie};
    for (uint64_t at = ptr, n; at < ptr + size; at += n) {
        ct_map *m = ct_map_at(at);
        if (!m || d.pieces == DMABUF_PIECES || (device >= 0 && m->device != device) || m->kind == KIND_MANAGED || m->kind == KIND_IPC)
            return -1;
        device = m->device;
        n = m->mem->size - (at - m->at); /* Whole pages: no other allocation uses the rest of the last page. */
        n = n < ptr + size - at ? n : ptr + size - at;
        d.piece[d.pieces++] = (dmabuf_piece){.fd = m->mem->fd, .inode = m->mem->inode, .offset = at - m->at, .len = n};
    }
    fd = memfd_create("dmabuf", 0);
    if (fd >= 0 && pwrite(fd, &d, sizeof(d), 0) != (ssize_t)sizeof(d)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

cu_result cuMemGetHandleForAddressRange(void *handle, cu_ptr ptr, size_t size, int type, unsigned long long flags)
{
    BEGIN(CALL_MemGetHandleForAddressRange, WITH_CTX);
    if (type != CU_RANGE_DMABUF || !size || ptr % CT_PAGE || size % CT_PAGE || !ct_switch[SW_dmabuf] ||
        (flags && (flags != CU_RANGE_PCIE || !ct_switch[SW_dmabuf_pcie])))
        END(CU_INVALID_VALUE);
    int fd = describe(ptr, size, flags == CU_RANGE_PCIE);
    if (fd < 0)
        END(CU_INVALID_VALUE);
    ct_count[CT_dmabufs]++;
    ct_count[CT_dmabufs_pcie] += flags == CU_RANGE_PCIE;
    *(int *)handle = fd;
    END(CU_OK);
}

cu_result cuPointerSetAttribute(const void *value, int attribute, cu_ptr ptr)
{
    BEGIN(-1, NO_CTX);
    ct_map *m = ct_map_at(ptr);
    if (!m || m->kind != KIND_ALLOC || attribute != CU_PTR_SYNC_MEMOPS || *(const unsigned *)value != 1)
        END(CU_INVALID_VALUE);
    ct_count[CT_synced]++;
    END(CU_OK);
}

cu_result cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    BEGIN(CALL_FlushGPUDirectRDMAWrites, WITH_CTX);
    if (target != CU_FLUSH_CURRENT || scope != CU_WRITES_TO_OWNER)
        END(CU_INVALID_VALUE);
    if (ct_switch[SW_writes_order] >= CU_WRITES_TO_OWNER)
        ct_breach("cuFlushGPUDirectRDMAWrites: the GPU orders writes and needs no flush");
    ct_count[CT_flushes]++;
    END(CU_OK);
}

/* A device asks nvidia_peermem with this. Returns a dmabuf of the pages around the range, which the caller closes; -1: not memory of
 * one GPU. */
int ct_control_peermem(uint64_t ptr, uint64_t size)
{
    uint64_t from = ptr & ~(uint64_t)(CT_PAGE - 1), end = (ptr + size + CT_PAGE - 1) & ~(uint64_t)(CT_PAGE - 1);
    pthread_mutex_lock(&ct_mu);
    int fd = describe(from, end - from, 0);
    pthread_mutex_unlock(&ct_mu);
    return fd;
}
