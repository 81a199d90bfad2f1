/* The owner of memory answers importers' questions: is the memory at an address still what they have mapped? */
#include <errno.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>

#include "cma.h"

/* struct procmap_query of linux/fs.h (Linux 6.11). */
struct procmap_query {
    uint64_t size, flags, addr;
    uint64_t start, end, vma_flags;
    uint64_t page_size, offset, inode;
    uint32_t major, minor, name_size, build_id_size;
    uint64_t name, build_id;
};
#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)
enum { SHORT_PAUSE_NS = 500 * 1000 };
enum { VMA_READ = 1, VMA_WRITE = 2, VMA_SHARED = 8 };

/* files.id as one number. */
static uint64_t dev_of(const struct procmap_query *q) { return (uint64_t)q->major << 32 | q->minor; }

/* Whether a range is that file, at that offset. It may lie in several mappings of the file. */
static int same_file(cma_rail *rail, const cma_range *r, uint32_t write)
{
    uint32_t need = VMA_SHARED | (write ? VMA_WRITE : VMA_READ);
    for (uint64_t at = r->addr, to = r->addr + r->len; at < to;) {
        struct procmap_query q = {.size = sizeof(q), .addr = at};
        if (ioctl(atomic_load(&rail->maps), PROCMAP_QUERY, &q))
            return errno == ENOENT ? EFAULT : ESTALE;
        if ((q.vma_flags & need) != need || q.inode != r->inode || dev_of(&q) != r->dev || q.offset + (at - q.start) != r->offset + (at - r->addr))
            return ESTALE;
        at = q.end;
    }
    return 0;
}

static int same_gpu(cma_rail *rail, const cma_range *r)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    const cma_vram *v = atomic_load(&rail->known[(uint32_t)r->key]);
    uint64_t at;
    if (!g || !v || !v->parts)
        return ESTALE;
    int rc = g->ops->same(g, v->parts, r->addr, r->len, 0, &at);
    return rc == 0 ? 0 : rc == -GR_GPU_LOST ? EIO : rc == -GR_GPU_UNMAPPED ? EFAULT : ESTALE;
}

static int same(cma_rail *rail, const cma_range *r, uint32_t write)
{
    int err = cma_allowed(rail->table, r->key, r->addr, r->len);
    if (err)
        return err;
    uint64_t share = atomic_load(&rail->table[(uint32_t)r->key].share);
    if (r->inode)
        err = share == CMA_FILE ? same_file(rail, r, write) : ESTALE;
    else
        err = share && share != CMA_FILE ? same_gpu(rail, r) : ESTALE;
    if (err)
        cma_note_changed(rail);
    return err;
}

/* Returns the low half of cma_question.answer. The question is read once: later writes of the peer have no effect. */
static uint32_t look(cma_ep *ep, uint32_t epoch, const volatile cma_question *q)
{
    cma_epoch *own = &ep->rail->pool.own[epoch];
    cma_range r[CMA_ASK_RANGES];
    uint32_t n = q->n, write = q->write, i = 0;
    uint64_t regions = 0;
    int err = 0;
    if (n == 0 || n > CMA_ASK_RANGES)
        return EPROTO;
    for (; i < n; i++) {
        r[i] = (cma_range){q->range[i].key, q->range[i].addr, q->range[i].len, q->range[i].dev, q->range[i].inode, q->range[i].offset};
        regions |= cma_region_bit(r[i].key);
    }
    atomic_store(&own->regions, regions);
    atomic_fetch_add(&own->turn, 1); /* before the checks that follow: a deregistration waits with the end of `known` */
    for (i = 0; i < n && !err; i++)
        err = same(ep->rail, &r[i], write);
    atomic_fetch_add(&own->turn, 1);
    return err ? (i - 1) << 16 | (uint32_t)err : CMA_SAME;
}

/* Questions come in a row, one for each copy. A thread that has slept answers 12 us later, which is 4 % of a copy of 80 MB between two GPUs.
 * So it polls on for one and a half times the last pause, if that was short. */
static void expect_next(cma_rail *rail)
{
    uint64_t now = cma_now(), pause = now - atomic_exchange_explicit(&rail->asked.last_ns, now, memory_order_relaxed);
    atomic_store_explicit(&rail->asked.until_ns, pause < SHORT_PAUSE_NS ? now + pause + pause / 2 : 0, memory_order_relaxed);
}

void cma_answer_all(cma_ep *ep, uint32_t epoch)
{
    cma_shm *shm = ep->shm;
    for (uint32_t bits = atomic_load(&shm->asked); bits; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(bits), bit = UINT32_C(1) << i;
        if (!(atomic_fetch_and(&shm->asked, ~bit) & bit)) /* another thread has it */
            continue;
        cma_question *q = &shm->question[i];
        uint32_t seq = __atomic_load_n(&q->seq, __ATOMIC_ACQUIRE);
        uint64_t mine = (uint64_t)seq << 32 | look(ep, epoch, q), was = atomic_load(&q->answer);
        /* the peer may have given the question up and asked another one, which another thread has answered */
        while ((int32_t)(seq - (uint32_t)(was >> 32)) >= 0 && !atomic_compare_exchange_weak(&q->answer, &was, mine)) /* before cma_ring_asleep */
            ;
        cma_ring_asleep(ep);
        expect_next(ep->rail);
    }
}

void cma_note_changed(cma_rail *rail)
{
    if (atomic_exchange(&rail->changed, 1))
        return;
    rail->changed_task.what = CMA_CHANGED;
    cma_mapper_add(rail, &rail->changed_task);
}
