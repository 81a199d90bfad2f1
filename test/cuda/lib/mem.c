/* GPU memory and its addresses; pinned host memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ct.h"

enum { MAGIC = 0x47524355 };

static ct_map *maps;
static ct_host *hosts;
static uint64_t ids = 900;
static struct gap {
    struct gap *next;
    uint64_t at, size;
} *gaps;

uint64_t ct_id(void) { return ++ids; }

/* Takes the lowest gap that is large enough. Freed addresses are soon reused, as with the real driver. */
uint64_t ct_reserve(uint64_t size)
{
    if (!gaps) {
        const uint64_t all = 1ull << 37; /* more than any test needs; sanitizers leave no more address space */
        void *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        struct gap *g = calloc(1, sizeof(*g));
        if (p == MAP_FAILED || !g)
            abort();
        g->at = ((uint64_t)p + CT_GRANULE - 1) & ~(uint64_t)(CT_GRANULE - 1);
        g->size = all - CT_GRANULE;
        gaps = g;
    }
    size = (size + CT_GRANULE - 1) & ~(uint64_t)(CT_GRANULE - 1);
    for (struct gap **p = &gaps, *g; (g = *p); p = &g->next)
        if (g->size > size || (g->size == size && g->next)) { /* the last gap is never used up: gaps is empty only before the first call */
            uint64_t at = g->at;
            g->at += size;
            g->size -= size;
            if (!g->size) {
                *p = g->next;
                free(g);
            }
            return at;
        }
    return 0;
}

void ct_unreserve(uint64_t at, uint64_t size)
{
    size = (size + CT_GRANULE - 1) & ~(uint64_t)(CT_GRANULE - 1);
    struct gap **p = &gaps;
    while ((*p)->at < at)
        p = &(*p)->next;
    if (at + size == (*p)->at) {
        (*p)->at = at;
        (*p)->size += size;
        return;
    }
    struct gap *g = calloc(1, sizeof(*g));
    *g = (struct gap){*p, at, size};
    *p = g;
}

static const char *node(void) { return getenv("GORAIL_TEST_GPU_NODE"); }

int ct_hidden(const ct_mem *mem) { return ct_switch[SW_hidden] >> mem->gpu & 1; }

static void name_of(char *path, size_t len, uint64_t inode) { snprintf(path, len, "%s/gpu-%lx", node(), inode); }

int ct_mem_publish(ct_mem *m)
{
    char from[64], to[512];
    if (!node())
        return 0;
    snprintf(from, sizeof(from), "/proc/self/fd/%d", m->fd);
    name_of(to, sizeof(to), m->inode);
    return linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW);
}

int ct_mem_open(int pid, int fd, uint64_t inode)
{
    char path[512];
    if (node())
        name_of(path, sizeof(path), inode);
    else
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

ct_tail *ct_mem_tail(ct_mem *mem) { return (ct_tail *)(mem->view + mem->size); }

static ct_mem *view(int fd, uint64_t size)
{
    ct_mem *m = calloc(1, sizeof(*m));
    struct stat st;
    char *v = mmap(NULL, size + CT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!m || v == MAP_FAILED || fstat(fd, &st)) {
        free(m);
        close(fd);
        return NULL;
    }
    *m = (ct_mem){.fd = fd, .size = size, .inode = st.st_ino, .refs = 1, .view = v};
    return m;
}

ct_mem *ct_mem_new(uint64_t size, int device, int types)
{
    size = (size + CT_PAGE - 1) & ~(uint64_t)(CT_PAGE - 1);
    const char *in = node() ? node() : (types & CU_HANDLE_FABRIC) ? ct_imex() : NULL;
    int fd = in ? open(in, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : memfd_create("gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(size + CT_PAGE))) {
        close(fd);
        return NULL;
    }
    ct_mem *m = view(fd, size);
    if (m) {
        m->device = device;
        m->gpu = device < 0 ? -1 : ct_gpu(device);
        m->types = types;
        *ct_mem_tail(m) = (ct_tail){.magic = MAGIC, .size = size, .gpu = m->gpu, .types = types};
    }
    return m;
}

ct_mem *ct_mem_of(int fd)
{
    struct stat st;
    if (fstat(fd, &st) || st.st_size <= CT_PAGE) {
        close(fd);
        return NULL;
    }
    ct_mem *m = view(fd, (uint64_t)st.st_size - CT_PAGE);
    if (m && (ct_mem_tail(m)->magic != MAGIC || ct_mem_tail(m)->size != m->size)) {
        ct_mem_drop(m, 0);
        return NULL;
    }
    if (m) {
        m->gpu = ct_mem_tail(m)->gpu;
        m->device = m->gpu < 0 ? -1 : ct_device_of(m->gpu);
        m->types = ct_mem_tail(m)->types;
    }
    return m;
}

void ct_mem_drop(ct_mem *m, int owner)
{
    if (--m->refs)
        return;
    /* A process that maps the memory by an IPC handle holds a lock. The driver unmaps the memory of a killed process: that is no breach. */
    if (owner && flock(m->fd, LOCK_EX | LOCK_NB))
        ct_breach("memory was freed while a peer had it mapped by an IPC handle");
    if (owner)
        ct_mem_tail(m)->freed = 1;
    if (owner && node()) {
        char path[512];
        name_of(path, sizeof(path), m->inode);
        (void)unlink(path);
    }
    if (m->named)
        ct_imex_hide(m);
    munmap(m->view, m->size + CT_PAGE);
    close(m->fd);
    free(m);
}

ct_map *ct_map_add(uint64_t at, ct_mem *mem, int kind, int device)
{
    ct_map *m = calloc(1, sizeof(*m));
    *m = (ct_map){.next = maps, .at = at, .size = mem->size, .id = ct_id(), .mem = mem, .kind = kind, .device = device};
    maps = m;
    return m;
}

void ct_map_remove(ct_map *map)
{
    ct_map **p = &maps;
    while (*p != map)
        p = &(*p)->next;
    *p = map->next;
    free(map);
}

ct_map *ct_map_at(uint64_t at)
{
    ct_map *m = maps;
    while (m && (at < m->at || at - m->at >= m->size))
        m = m->next;
    return m;
}

ct_map *ct_map_of(uint64_t inode, int device)
{
    ct_map *m = maps;
    while (m && !(m->kind == KIND_IPC && m->mem->inode == inode && m->device == device))
        m = m->next;
    return m;
}

ct_host *ct_host_at(uint64_t at)
{
    ct_host *h = hosts;
    while (h && (at < (uint64_t)h->at || at - (uint64_t)h->at >= h->size))
        h = h->next;
    return h;
}

unsigned ct_access(const ct_map *m, int device)
{
    return m->writes >> device & 1 ? CU_ACCESS_READWRITE : m->access >> device & 1 ? CU_ACCESS_READ : CU_ACCESS_NONE;
}

char *ct_touch(uint64_t at, uint64_t *len, int device, int how)
{
    ct_host *h = ct_host_at(at);
    uint64_t left;
    if (h) {
        left = h->size - (at - (uint64_t)h->at);
        *len = *len < left ? *len : left;
        return (char *)at;
    }
    ct_map *m = ct_map_at(at);
    if (!m)
        return NULL;
    unsigned bit = 1u << device;
    if (m->kind == KIND_VMM ? !((how & TO_WRITE ? m->writes : m->access) & bit)
                            : (how & BY_KERNEL) && m->device != device && m->kind != KIND_MANAGED && !(ct_ctx[device].peers & 1u << m->device))
        return NULL;
    left = (m->kind == KIND_ALLOC ? m->mem->size : m->size) - (at - m->at);
    *len = *len < left ? *len : left;
    return m->mem->view + (at - m->at);
}

/* A GPU's pages have 2 MiB. What an allocation leaves of its last page is mapped, too: an access there does not fail. */
static cu_result alloc(cu_ptr *ptr, size_t size, int kind)
{
    uint64_t pages = kind == KIND_ALLOC ? (size + CT_GRANULE - 1) / CT_GRANULE * CT_GRANULE : size;
    ct_mem *m = size ? ct_mem_new(pages, ct_current()->device, 0) : NULL;
    if (!m)
        return size ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
    if (kind == KIND_ALLOC && ct_mem_publish(m)) {
        ct_mem_drop(m, 1);
        return CU_OUT_OF_MEMORY;
    }
    *ptr = ct_reserve(m->size);
    ct_map_add(*ptr, m, kind, m->device)->size = size;
    ct_count[CT_mems]++;
    return CU_OK;
}

cu_result cuMemAlloc(cu_ptr *ptr, size_t size)
{
    BEGIN(CALL_MemAlloc, WITH_CTX);
    END(alloc(ptr, size, KIND_ALLOC));
}

cu_result cuMemAllocManaged(cu_ptr *ptr, size_t size, unsigned flags)
{
    BEGIN(-1, WITH_CTX);
    (void)flags;
    END(alloc(ptr, size, KIND_MANAGED));
}

cu_result cuMemAllocAsync(cu_ptr *ptr, size_t size, cu_stream stream)
{
    BEGIN(-1, WITH_CTX);
    (void)stream;
    END(alloc(ptr, size, KIND_POOL));
}

cu_result cuMemFree(cu_ptr ptr)
{
    BEGIN(-1, WITH_CTX);
    ct_idle();
    ct_map *m = ct_map_at(ptr);
    if (!m || m->at != ptr || m->kind > KIND_MANAGED)
        END(CU_INVALID_VALUE);
    ct_unreserve(m->at, m->mem->size);
    ct_mem_drop(m->mem, 1);
    ct_map_remove(m);
    ct_count[CT_mems]--;
    END(CU_OK);
}

/* ---- pinned memory ---- */

static void pinned(void *at, size_t size, int ours)
{
    ct_host *h = calloc(1, sizeof(*h));
    *h = (ct_host){hosts, at, size, ct_id(), ours, ct_current()->device};
    hosts = h;
    ct_count[ours ? CT_hosts : CT_registered]++;
}

static cu_result unpinned(void *at, int ours)
{
    for (ct_host **p = &hosts; *p; p = &(*p)->next)
        if ((*p)->at == at && (*p)->ours == ours) {
            ct_host *h = *p;
            *p = h->next;
            if (ours) {
                (void)mmap(at, h->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
                ct_unreserve((uint64_t)at, h->size);
            }
            free(h);
            ct_count[ours ? CT_hosts : CT_registered]--;
            return CU_OK;
        }
    return ours ? CU_INVALID_VALUE : CU_HOST_NOT_REGISTERED;
}

cu_result cuMemHostAlloc(void **ptr, size_t size, unsigned flags)
{
    BEGIN(CALL_MemHostAlloc, WITH_CTX);
    /* as the real driver: addresses of freed GPU memory serve pinned memory, too */
    uint64_t at = size && (flags & CU_HOST_PORTABLE) ? ct_reserve(size) : 0;
    void *p = at ? mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED)
        END(CU_INVALID_VALUE);
    pinned(p, size, 1);
    *ptr = p;
    END(CU_OK);
}

cu_result cuMemFreeHost(void *ptr)
{
    BEGIN(-1, WITH_CTX);
    ct_idle();
    END(unpinned(ptr, 1));
}

cu_result cuMemHostRegister(void *ptr, size_t size, unsigned flags)
{
    BEGIN(CALL_MemHostRegister, WITH_CTX);
    if (!size || !(flags & CU_HOST_PORTABLE))
        END(CU_INVALID_VALUE);
    for (ct_host *h = hosts; h; h = h->next)
        if ((char *)ptr < h->at + h->size && h->at < (char *)ptr + size)
            END(CU_HOST_REGISTERED);
    pinned(ptr, size, 0);
    END(CU_OK);
}

cu_result cuMemHostUnregister(void *ptr)
{
    BEGIN(-1, WITH_CTX);
    ct_idle();
    END(unpinned(ptr, 0));
}
