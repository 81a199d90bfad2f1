/* Regions. A key is the table index << 8, plus seven bits that change with each registration. An rkey has REMOTE_BIT, an lkey has not. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dmabuf.h"
#include "vt.h"

enum { REMOTE_BIT = 0x80 };

static vt_mr **table;
static uint32_t size, last;
static uint32_t turn;

/* Whether the CPU can read the byte: test/cuda's GPU memory is mapped without access. */
static int readable(char *at)
{
    char byte;
    struct iovec to = {&byte, 1}, from = {at, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static int mapped(void *addr, size_t len)
{
    unsigned char seen[1024];
    if (!len || !readable(addr) || !readable((char *)addr + len - 1))
        return 0;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)addr & ~(page - 1), end = (uintptr_t)addr + len;
    for (; at < end; at += sizeof(seen) * page) {
        uintptr_t n = end - at;
        if (mincore((void *)at, n < sizeof(seen) * page ? n : sizeof(seen) * page, seen) != 0)
            return 0;
    }
    return 1;
}

/* A free slot, or -1. The search starts after the last slot, so a key is not reused soon. */
static int64_t slot(void)
{
    for (uint32_t i = 0; i < size; i++) {
        uint32_t k = (last + 1 + i) % size;
        if (!table[k])
            return last = k;
    }
    uint32_t n = size ? size * 2 : 64;
    vt_mr **more = realloc(table, n * sizeof(*more));
    if (!more)
        return -1;
    for (uint32_t i = size; i < n; i++)
        more[i] = NULL;
    table = more;
    last = size;
    size = n;
    return last;
}

/* Registers memory at addr. map, if not NULL, is the mapping that contains addr. The region owns the mapping; a failure unmaps it. */
static struct ibv_mr *open_mr(struct ibv_pd *pd, uint64_t iova, void *addr, size_t len, unsigned access, unsigned known, int call, void *map,
                              size_t map_len)
{
    vt_mr *mr = calloc(1, sizeof(*mr));
    int64_t at = -1;
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(call);
    if (!rc && SW(mr_size) && len > (size_t)SW(mr_size))
        rc = EINVAL;
    if (!rc && ((access & ~known) || ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))))
        rc = EINVAL;
    if (!rc && !mapped(addr, len))
        rc = EFAULT;
    if (!rc && (COUNT(mrs) >= SW(mr_max) || (at = slot()) < 0))
        rc = ENOMEM;
    if (!rc) {
        uint32_t key = (uint32_t)at << 8 | (turn++ & 0x7f);
        mr->base = (struct ibv_mr){
            .context = pd->context, .pd = pd, .addr = addr, .length = len, .handle = (uint32_t)at, .lkey = key, .rkey = key | REMOTE_BIT};
        mr->access = access;
        mr->iova = iova;
        mr->mem = addr;
        mr->map = map;
        mr->map_len = map_len;
        table[at] = mr;
        ((vt_pd *)pd)->users++;
        COUNT(mrs)++;
    }
    pthread_mutex_unlock(&vt_mu);
    if (rc) {
        free(mr);
        if (map)
            munmap(map, map_len);
        errno = rc;
        return NULL;
    }
    return &mr->base;
}

enum { OLD_FLAGS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

int (*vt_peermem)(uint64_t addr, uint64_t size);

/* Registers by address. Memory that the CPU cannot read is passed to nvidia_peermem, if that is loaded. */
static struct ibv_mr *at_address(struct ibv_pd *pd, void *addr, size_t len, unsigned access)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), in = (uint64_t)addr & (page - 1);
    int fd = -1;
    dmabuf d;
    pthread_mutex_lock(&vt_mu);
    int (*peermem)(uint64_t, uint64_t) = vt_peermem;
    pthread_mutex_unlock(&vt_mu);
    if (peermem && !mapped(addr, len))
        fd = peermem((uint64_t)addr, len);
    if (fd < 0)
        return open_mr(pd, (uintptr_t)addr, addr, len, access, OLD_FLAGS, CALL_reg_mr, NULL, 0);
    char *at = dmabuf_read(fd, &d) ? dmabuf_map(&d, 0, d.size) : MAP_FAILED;
    close(fd);
    if (at == MAP_FAILED) {
        errno = EFAULT;
        return NULL;
    }
    return open_mr(pd, (uintptr_t)addr, at + in, len, access, OLD_FLAGS, CALL_reg_mr, at, d.size);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access) { return at_address(pd, addr, len, (unsigned)access); }

#ifndef VT_OLD
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
    if (iova != (uint64_t)(uintptr_t)addr) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return at_address(pd, addr, len, access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE);
}

/* The descriptor is a dmabuf of test/cuda or any other file. Support is checked before the descriptor, as in the kernel. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), in = offset & (page - 1);
    pthread_mutex_lock(&vt_mu);
    int has = SW(dmabuf) != 0;
    pthread_mutex_unlock(&vt_mu);
    errno = !has ? EOPNOTSUPP : (offset ^ iova) & (page - 1) || !len ? EINVAL : 0;
    if (errno)
        return NULL;
    dmabuf d;
    if (dmabuf_read(fd, &d)) {
        uint64_t whole = (in + len + page - 1) & ~(uint64_t)(page - 1);
        char *at = dmabuf_map(&d, offset - in, whole);
        if (at == MAP_FAILED) {
            errno = EINVAL;
            return NULL;
        }
        pthread_mutex_lock(&vt_mu);
        COUNT(dmabufs_pcie) += d.by_pcie;
        pthread_mutex_unlock(&vt_mu);
        return open_mr(pd, iova, at + in, len, (unsigned)access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE, OLD_FLAGS, CALL_reg_dmabuf_mr, at,
                       whole);
    }
    if (lseek(fd, 0, SEEK_END) < (off_t)(offset + len)) { /* lseek also fails if fd is no descriptor */
        errno = errno ? errno : EINVAL;
        return NULL;
    }
    char *map = mmap(NULL, in + len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - in));
    if (map == MAP_FAILED)
        return NULL;
    return open_mr(pd, iova, map + in, len, (unsigned)access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE, OLD_FLAGS, CALL_reg_dmabuf_mr, map,
                   in + len);
}
#endif

int ibv_dereg_mr(struct ibv_mr *base)
{
    pthread_mutex_lock(&vt_mu);
    int rc = vt_fails(CALL_dereg_mr);
    if (!rc) {
        table[base->handle] = NULL;
        ((vt_pd *)base->pd)->users--;
        COUNT(mrs)--;
    }
    pthread_mutex_unlock(&vt_mu);
    vt_mr *mr = (vt_mr *)base;
    if (!rc && mr->map)
        munmap(mr->map, mr->map_len);
    if (!rc)
        free(mr);
    return rc;
}

void *vt_memory(const struct ibv_pd *pd, uint32_t key, int remote, uint64_t addr, uint64_t len, unsigned access)
{
    vt_mr *mr = key >> 8 < size ? table[key >> 8] : NULL;
    if (!mr || (remote ? mr->base.rkey : mr->base.lkey) != key || mr->base.pd != pd || (mr->access & access) != access)
        return NULL;
    if (addr < mr->iova || len > mr->base.length || addr - mr->iova > mr->base.length - len)
        return NULL;
    return mr->mem + (addr - mr->iova);
}
