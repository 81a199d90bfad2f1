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

/* Applications unmap memory while we ask about it. The driver (580, H200) bears that for buffer ids and devices (25 million questions beside 1,000
 * unmappings), and not for access flags and most else: docs/gpu.md has the table. So `need` is for a transfer that holds the memory. The flags are
 * those of the current context's GPU. Without `need` no context is needed. */
static int look(gg *g, uint64_t addr, uint32_t need, unsigned long long *buffer, int *device)
{
    unsigned flags = 0;
    int which[] = {CU_PTR_BUFFER, CU_PTR_ACCESS, CU_PTR_DEVICE};
    void *to[] = {buffer, &flags, device};
    *buffer = 0;
    cu_result r = g->cu.ptr_attrs(need ? 3 : 1, which, to, addr);
    if (gg_lost(r))
        return -GR_GPU_LOST;
    return r != CU_OK || !*buffer || (flags & need) != need ? -GR_GPU_UNMAPPED : 0;
}

static int compare(gg *g, const gr_gpu_parts *parts, uint64_t addr, uint64_t len, uint32_t need, uint64_t *at)
{
    const gr_gpu_part *p = part_at(parts, addr), *end = parts->part + parts->n;
    for (uint64_t to = addr + len; addr < to; addr = p++->end) {
        unsigned long long buffer;
        int device;
        *at = addr;
        int rc = p && p < end ? look(g, addr, need, &buffer, &device) : -GR_GPU_CHANGED;
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

int gg_unchanged(gr_gpu *gpu, const gr_gpu_part *parts, size_t n, size_t *which)
{
    for (size_t i = 0; i < n; i++) {
        unsigned long long buffer;
        int device;
        int rc = look(gg_of(gpu), parts[i].base, 0, &buffer, &device);
        if (rc || buffer != parts[i].buffer) {
            *which = i;
            return rc ? rc : -GR_GPU_CHANGED;
        }
    }
    return 0;
}

/* Memory is mapped in multiples of that: the granularity of VMM memory, and of what the driver takes for other memory. */
static const uint64_t UNIT = 2 << 20;
static inline uint64_t unit_after(uint64_t addr) { return (addr & ~(UNIT - 1)) + UNIT; }

/* Units that were found, so that operations on one unit ask once. */
enum { SEEN = 64 };
typedef struct seen {
    uint64_t unit[SEEN];
} seen;

static int walk(gg *g, int device, uint64_t addr, uint64_t len, uint32_t need, int ours, seen *s, uint64_t *at)
{
    for (uint64_t to = addr + len; addr < to; addr = unit_after(addr)) {
        unsigned long long buffer;
        int on = -1;
        uint64_t unit = addr / UNIT, *had = &s->unit[unit % SEEN];
        if (*had == unit && !ours)
            continue;
        int rc = look(g, *at = addr, need, &buffer, &on);
        if (rc == 0 && need && on != device)
            rc = -GR_GPU_UNMAPPED;
        if (rc == 0 && !ours)
            rc = gg_foreign(g, buffer, addr, to < unit_after(addr) ? to : unit_after(addr));
        if (rc)
            return rc;
        if (!ours)
            *had = unit;
    }
    return 0;
}

uint64_t gg_identity(gr_gpu *gpu, uint64_t addr, uint64_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint64_t at = addr, to = addr + len; at < to; at = unit_after(at)) {
        unsigned long long buffer;
        int on;
        if (look(gg_of(gpu), at, 0, &buffer, &on))
            return 0;
        h = (h ^ buffer) * UINT64_C(0x100000001b3);
    }
    if (gg_overlaps_owned(gg_of(gpu), addr, addr + len))
        return 0;
    return h ? h : 1;
}

int gg_mapped(gr_gpu *gpu, int device, const gr_op *ops, uint64_t nops, uint32_t need, uint64_t *at)
{
    return gg_mapped_ops(gpu, device, ops, nops, 0, need, at);
}

int gg_mapped_ops(gr_gpu *gpu, int device, const gr_op *ops, size_t n, int remote, uint32_t need, uint64_t *at)
{
    gg *g = gg_of(gpu);
    seen s = {0};
    int rc = enter(g, device, need);
    if (rc)
        return rc;
    for (size_t i = 0; i < n && !rc; i++)
        rc = walk(g, device, remote ? ops[i].remote : ops[i].local, ops[i].len, need, ops[i].lregion == GR_GPU_OURS, &s, at);
    if (need)
        gg_leave(g);
    return rc;
}
