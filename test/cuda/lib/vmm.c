/* VMM: address ranges, handles, mappings. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ct.h"

static struct range {
    struct range *next;
    uint64_t at, size;
} *ranges;

/* References to a handle that the caller holds. Together they hold one reference to the memory; each mapping holds another. */
static struct held {
    struct held *next;
    ct_mem *mem;
    int refs, owner;
} *list;

/* Names a descriptor of a process; /proc opens another descriptor of the same file. */
typedef struct fabric_handle {
    uint32_t magic;
    int32_t pid, fd, pad;
    uint64_t inode, rest[5];
} fabric_handle;
_Static_assert(sizeof(fabric_handle) == 64, "CUmemFabricHandle");
enum { FABRIC = 0x46414252 };

static int open_fabric(const fabric_handle *f)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", f->pid, f->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static struct held *held(cu_mem handle)
{
    struct held *h = list;
    while (h && (cu_mem)(uintptr_t)h->mem != handle)
        h = h->next;
    return h;
}

static cu_mem hold(ct_mem *mem, int owner)
{
    struct held *h = held((cu_mem)(uintptr_t)mem);
    if (!h) {
        h = calloc(1, sizeof(*h));
        *h = (struct held){list, mem, 0, owner};
        list = h;
    }
    h->refs++;
    ct_count[CT_handles]++;
    return (cu_mem)(uintptr_t)mem;
}

static struct range *range(uint64_t at, uint64_t size)
{
    struct range *r = ranges;
    while (r && (at < r->at || at - r->at >= r->size || size > r->size - (at - r->at)))
        r = r->next;
    return r;
}

cu_result cuMemAddressReserve(cu_ptr *ptr, size_t size, size_t align, cu_ptr at, unsigned long long flags)
{
    BEGIN(CALL_MemAddressReserve, NO_CTX);
    (void)at;
    if (!size || size % CT_GRANULE || align || flags)
        END(CU_INVALID_VALUE);
    struct range *r = calloc(1, sizeof(*r));
    *r = (struct range){ranges, ct_reserve(size), size};
    ranges = r;
    ct_count[CT_reservations]++;
    *ptr = r->at;
    END(CU_OK);
}

cu_result cuMemAddressFree(cu_ptr ptr, size_t size)
{
    BEGIN(-1, NO_CTX);
    struct range **p = &ranges;
    while (*p && !((*p)->at == ptr && (*p)->size == size))
        p = &(*p)->next;
    struct range *r = *p;
    if (!r)
        END(CU_INVALID_VALUE);
    for (uint64_t at = ptr; at < ptr + size; at += CT_GRANULE)
        if (ct_map_at(at))
            END(CU_INVALID_VALUE); /* a handle is still mapped */
    *p = r->next;
    free(r);
    ct_unreserve(ptr, size);
    ct_count[CT_reservations]--;
    END(CU_OK);
}

cu_result cuMemCreate(cu_mem *handle, size_t size, const cu_alloc_prop *prop, unsigned long long flags)
{
    BEGIN(CALL_MemCreate, NO_CTX);
    if (!size || size % CT_GRANULE || prop->type != 1 || (prop->location.type != CU_LOCATION_DEVICE && prop->location.type != CU_LOCATION_HOST_NUMA) || flags ||
        ((prop->handle_types & CU_HANDLE_FABRIC) && !ct_switch[SW_fabric]))
        END(CU_INVALID_VALUE);
    int fabric = prop->handle_types & CU_HANDLE_FABRIC && ct_imex();
    int r = fabric ? ct_imex_check() : CU_OK;
    if (r)
        END(r);
    ct_mem *m = ct_mem_new(size, prop->location.type == CU_LOCATION_HOST_NUMA ? -1 : prop->location.id, prop->handle_types);
    if (!m)
        END(CU_OUT_OF_MEMORY);
    if (fabric && ct_imex_publish(m)) {
        ct_mem_drop(m, 0);
        END(CU_OUT_OF_MEMORY);
    }
    *handle = hold(m, 1);
    END(CU_OK);
}

cu_result cuMemRelease(cu_mem handle)
{
    BEGIN(-1, NO_CTX);
    struct held *h = held(handle);
    if (!h)
        END(CU_INVALID_VALUE);
    ct_count[CT_handles]--;
    if (--h->refs)
        END(CU_OK);
    struct held **p = &list;
    while (*p != h)
        p = &(*p)->next;
    *p = h->next;
    ct_mem_drop(h->mem, 0);
    free(h);
    END(CU_OK);
}

cu_result cuMemRetainAllocationHandle(cu_mem *handle, void *ptr)
{
    BEGIN(CALL_MemRetainAllocationHandle, NO_CTX);
    ct_map *m = ct_map_at((uint64_t)ptr);
    if (!m || m->kind != KIND_VMM)
        END(CU_INVALID_VALUE);
    if (!held((cu_mem)(uintptr_t)m->mem))
        m->mem->refs++; /* the one reference of all holders */
    *handle = hold(m->mem, 0);
    END(CU_OK);
}

cu_result cuMemExportToShareableHandle(void *shared, cu_mem handle, int type, unsigned long long flags)
{
    BEGIN(CALL_MemExportToShareableHandle, NO_CTX);
    struct held *h = held(handle);
    if (!h || (type != CU_HANDLE_FD && type != CU_HANDLE_FABRIC) || flags || !(h->mem->types & type))
        END(CU_INVALID_VALUE);
    if (type == CU_HANDLE_FABRIC && ct_imex()) {
        ct_count[CT_exports]++;
        END(ct_imex_export(h->mem, shared));
    }
    if (type == CU_HANDLE_FABRIC) {
        *(fabric_handle *)shared = (fabric_handle){.magic = FABRIC, .pid = getpid(), .fd = h->mem->fd, .inode = h->mem->inode};
        ct_count[CT_exports]++;
        END(CU_OK);
    }
    int fd = fcntl(h->mem->fd, F_DUPFD, 3);
    if (fd < 0)
        END(CU_OS);
    *(int *)shared = fd;
    ct_count[CT_exports]++;
    END(CU_OK);
}

cu_result cuMemImportFromShareableHandle(cu_mem *handle, void *shared, int type)
{
    if (ct_switch[SW_slow_import])
        usleep((useconds_t)ct_switch[SW_slow_import]);
    BEGIN(CALL_MemImportFromShareableHandle, NO_CTX);
    if (type == CU_HANDLE_FABRIC && ct_imex()) {
        ct_mem *there = NULL;
        int r = ct_imex_import(shared, &there);
        if (!r) {
            *handle = hold(there, 0);
            ct_count[CT_imports]++;
        }
        END(r);
    }
    const fabric_handle *f = type == CU_HANDLE_FABRIC ? shared : NULL;
    if (f && (f->magic != FABRIC || !ct_switch[SW_fabric]))
        END(CU_NOT_PERMITTED);
    int fd = f ? open_fabric(f) : type == CU_HANDLE_FD ? fcntl((int)(intptr_t)shared, F_DUPFD_CLOEXEC, 3) : -1;
    ct_mem *m = fd < 0 ? NULL : ct_mem_of(fd);
    if (!m)
        END(fd < 0 ? CU_OS : CU_INVALID_VALUE);
    if (f && m->inode != f->inode) { /* the exporter has closed the memory; its descriptor number is another file now */
        ct_mem_drop(m, 0);
        END(CU_INVALID_VALUE);
    }
    if (ct_hidden(m)) {
        ct_mem_drop(m, 0);
        END(CU_INVALID_DEVICE);
    }
    *handle = hold(m, 0);
    ct_count[CT_imports]++;
    END(CU_OK);
}

cu_result cuMemMap(cu_ptr ptr, size_t size, size_t offset, cu_mem handle, unsigned long long flags)
{
    BEGIN(CALL_MemMap, NO_CTX);
    struct held *h = held(handle);
    if (!h || offset || flags || size != h->mem->size || ptr % CT_GRANULE || !range(ptr, size))
        END(CU_INVALID_VALUE);
    for (uint64_t at = ptr; at < ptr + size; at += CT_GRANULE)
        if (ct_map_at(at))
            END(CU_INVALID_VALUE);
    h->mem->refs++;
    ct_map_add(ptr, h->mem, KIND_VMM, h->mem->device);
    ct_count[CT_vmm_maps]++;
    END(CU_OK);
}

cu_result cuMemUnmap(cu_ptr ptr, size_t size)
{
    BEGIN(-1, NO_CTX);
    if (ct_uses(ptr, size))
        ct_breach("cuMemUnmap: a stream has queued work that may access the memory");
    for (uint64_t at = ptr; at < ptr + size;) {
        ct_map *m = ct_map_at(at);
        if (!m || m->kind != KIND_VMM || m->at != at || m->size > ptr + size - at)
            END(CU_INVALID_VALUE);
        at += m->size;
        if (m->mem->gpu < 0)
            (void)mmap((void *)m->at, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        ct_mem_drop(m->mem, 0);
        ct_map_remove(m);
        ct_count[CT_vmm_maps]--;
    }
    END(CU_OK);
}

cu_result cuMemSetAccess(cu_ptr ptr, size_t size, const cu_access *access, size_t count)
{
    BEGIN(CALL_MemSetAccess, NO_CTX);
    for (uint64_t at = ptr; at < ptr + size;) {
        ct_map *m = ct_map_at(at);
        if (!m || m->kind != KIND_VMM || m->at != at || m->size > ptr + size - at)
            END(CU_INVALID_VALUE);
        for (size_t i = 0; i < count; i++)
            if (access[i].location.type == CU_LOCATION_HOST_NUMA && m->mem->gpu < 0) { /* the processor's own memory: at the same addresses */
                if (mmap((void *)m->at, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->mem->fd, 0) == MAP_FAILED)
                    END(CU_INVALID_VALUE);
            } else if (access[i].location.type != CU_LOCATION_DEVICE || (access[i].location.id != m->mem->device && !ct_switch[SW_peers]))
                END(CU_INVALID_VALUE);
            else {
                unsigned bit = 1u << access[i].location.id;
                m->access = access[i].flags == CU_ACCESS_NONE ? m->access & ~bit : m->access | bit;
                m->writes = access[i].flags == CU_ACCESS_READWRITE ? m->writes | bit : m->writes & ~bit;
            }
        at += m->size;
    }
    END(CU_OK);
}

cu_result cuMemGetAccess(unsigned long long *flags, const cu_location *location, cu_ptr ptr)
{
    BEGIN(-1, NO_CTX);
    ct_map *m = ct_map_at(ptr);
    if (!m || m->kind != KIND_VMM || location->type != CU_LOCATION_DEVICE)
        END(CU_INVALID_VALUE);
    *flags = ct_access(m, location->id);
    END(CU_OK);
}
