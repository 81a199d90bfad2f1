/* Whether memory of this process is still what it was. Applications map other memory under a registered address, and leave addresses
 * unmapped. In C because posts and answers to peers ask. */
#include "gpu_int.h"
#include "gr_op.h"

static const gr_gpu_part *part_at(const gr_gpu_parts *parts, uint64_t addr)
{
    uint32_t low = 0, high = parts->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (addr >= parts->part[mid].end)
            low = mid + 1;
        else
            high = mid;
    }
    return low < parts->n && addr >= parts->part[low].base ? &parts->part[low] : NULL;
}

/* The access flags are those of the current context's GPU. Without `need` no context is needed. */
static int look(gg *g, uint64_t addr, uint32_t need, unsigned long long *buffer)
{
    unsigned flags = 0;
    int which[] = {CU_PTR_BUFFER, CU_PTR_ACCESS};
    void *to[] = {buffer, &flags};
    *buffer = 0;
    cu_result r = g->cu.ptr_attrs(need ? 2 : 1, which, to, addr);
    if (gg_lost(r))
        return -GR_GPU_LOST;
    return r != CU_OK || !*buffer || (flags & need) != need ? -GR_GPU_UNMAPPED : 0;
}

static int compare(gg *g, const gr_gpu_parts *parts, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at)
{
    const gr_gpu_part *p = part_at(parts, addr), *end = parts->part + parts->n;
    for (uint64_t to = addr + len; addr < to; addr = p++->end) {
        unsigned long long buffer;
        *at = addr;
        int rc = p && p < end ? look(g, addr, need, &buffer) : -GR_GPU_CHANGED;
        if (rc || buffer != p->buffer)
            return rc ? rc : -GR_GPU_CHANGED;
    }
    return 0;
}

/* Enters the context if it is needed: 0, or an error of gr_gpu_ops.same. */
static int enter(gg *g, int device, uint32_t need)
{
    gg_dev *d = need && device >= 0 && device < GG_DEVICES ? &g->dev[device] : NULL;
    if (!need)
        return 0;
    return d && atomic_load(&d->open) && gg_enter(g, d, NULL) == 0 ? 0 : -GR_GPU_LOST;
}

int gg_same(gr_gpu *gpu, const gr_gpu_parts *parts, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at)
{
    gg *g = gg_of(gpu);
    int rc = enter(g, parts->device, need);
    if (rc)
        return rc;
    rc = compare(g, parts, addr, len, need, at);
    if (need)
        gg_leave(g);
    return rc;
}

/* Mappings that were found, so that operations on one allocation ask once. */
enum { SEEN = 8 };
typedef struct seen {
    struct {
        uint64_t from, end;
    } range[SEEN];
    uint32_t n;
} seen;

static int walk(gg *g, int device, uint64_t addr, uint64_t len, uint32_t need, seen *s, uint64_t *at)
{
    for (uint64_t to = addr + len, end = 0; addr < to; addr = end) {
        unsigned long long buffer;
        uint32_t i = 0;
        while (i < SEEN && !(addr >= s->range[i].from && addr < s->range[i].end))
            i++;
        if (i < SEEN) {
            end = s->range[i].end;
            continue;
        }
        int rc = look(g, *at = addr, need, &buffer);
        if (!rc && (gg_part_at(g, addr, &end, device) != 0 || end <= addr))
            rc = -GR_GPU_UNMAPPED;
        if (rc)
            return rc;
        s->range[s->n % SEEN].from = addr;
        s->range[s->n++ % SEEN].end = end;
    }
    return 0;
}

int gg_mapped(gr_gpu *gpu, int device, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at)
{
    return gg_mapped_ops(gpu, device, &(gr_op){.local = addr, .len = len}, 1, 0, need, at);
}

int gg_mapped_ops(gr_gpu *gpu, int device, const gr_op *ops, size_t n, int remote, uint32_t need, uint64_t *at)
{
    gg *g = gg_of(gpu);
    seen s = {0};
    int rc = enter(g, device, need);
    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        rc = walk(g, device, remote ? ops[i].remote : ops[i].local, ops[i].len, need, &s, at);
    if (need)
        gg_leave(g);
    return rc;
}

int gg_part_at(gg *g, uint64_t addr, uint64_t *end, int device)
{
    cu_ptr base = 0;
    size_t size = 0;
    int on = -1;
    /* of VMM memory these are of one handle; else they fail, or are of the allocation */
    int which[] = {CU_PTR_MAPPING_BASE, CU_PTR_MAPPING_SIZE, CU_PTR_DEVICE}, whole[] = {CU_PTR_START, CU_PTR_SIZE, CU_PTR_DEVICE};
    void *to[] = {&base, &size, &on};
    if (g->cu.ptr_attrs(3, which, to, addr) != CU_OK || !size)
        for (int i = 0; i < 3; i++)
            if (g->cu.ptr_attr(to[i], which[i], addr) != CU_OK && g->cu.ptr_attr(to[i], whole[i], addr) != CU_OK)
                return -1;
    *end = base + size;
    return on == device && addr - base < size ? 0 : -1;
}
