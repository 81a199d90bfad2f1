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

/* A turn of answers to one peer looks at so many parts of memory: handles of a GPU, 0.1 us each, or mappings of files. Then other peers have
 * theirs. An honest question of 64 ranges with 252 MiB each takes one turn. */
enum { TURN = 8192, MAPPING = 8 };     /* limit:shm_answers */
static const uint64_t UNIT = 2 << 20; /* handles are no smaller (gpu/parts.c) */

/* files.id as one number. */
static uint64_t dev_of(const struct procmap_query *q) { return (uint64_t)q->major << 32 | q->minor; }

/* What a turn may still look at, and how far it has come in a range. */
typedef struct turn {
    uint32_t left;
    uint64_t done; /* bytes of the range */
} turn;

/* Whether a range is that file, at that offset. It may lie in several mappings of the file. */
static int same_file(cma_rail *rail, const cma_range *r, uint32_t write, turn *t)
{
    uint32_t need = VMA_SHARED | (write ? VMA_WRITE : VMA_READ);
    uint64_t at = r->addr + t->done;
    for (uint64_t to = r->addr + r->len; at < to && t->left;) {
        struct procmap_query q = {.size = sizeof(q), .addr = at};
        if (ioctl(atomic_load(&rail->maps), PROCMAP_QUERY, &q))
            return errno == ENOENT ? EFAULT : ESTALE;
        if ((q.vma_flags & need) != need || q.inode != r->inode || dev_of(&q) != r->dev || q.offset + (at - q.start) != r->offset + (at - r->addr))
            return ESTALE;
        at = q.end;
        t->left -= t->left < MAPPING ? t->left : MAPPING;
    }
    t->done = at - r->addr < r->len ? at - r->addr : r->len;
    return 0;
}

/* The bytes of GPU memory that the turn looks at next. */
static uint64_t next_bytes(const gr_gpu_parts *parts, uint64_t len, turn *t)
{
    uint64_t most = len / UNIT + 2, now = t->left * UNIT;
    if (most > parts->n)
        most = parts->n;
    if (most <= t->left || now >= len) {
        t->left -= most < t->left ? (uint32_t)most : t->left;
        return len;
    }
    t->left = 0;
    return now;
}

static int same_gpu(cma_rail *rail, const cma_range *r, turn *t)
{
    gr_gpu *g = atomic_load(&rail->gpu.driver);
    const cma_vram *v = atomic_load(&rail->known[(uint32_t)r->key]);
    uint64_t at;
    if (!g || !v || !v->parts)
        return ESTALE;
    uint64_t now = next_bytes(v->parts, r->len - t->done, t);
    int rc = g->ops->same(g, v->parts, r->addr + t->done, now, 0, &at);
    t->done += now;
    return rc == 0 ? 0 : rc == -GR_GPU_LOST ? EIO : rc == -GR_GPU_UNMAPPED ? EFAULT : ESTALE;
}

static int memory_same(cma_rail *rail, const cma_range *r, uint32_t write, turn *t)
{
    int err = cma_allowed(rail->table, r->key, r->addr, r->len);
    if (err)
        return err;
    uint64_t share = atomic_load(&rail->table[(uint32_t)r->key].share);
    if (r->inode)
        err = share == CMA_FILE ? same_file(rail, r, write, t) : ESTALE;
    else
        err = share && share != CMA_FILE ? same_gpu(rail, r, t) : ESTALE;
    if (err)
        cma_note_changed(rail);
    return err;
}

/* Where the answer to question i goes on; from the beginning unless a turn has ended within it. */
static cma_looked begun(cma_ep *ep, uint32_t i, uint32_t seq)
{
    cma_looked l = {.seq = seq};
    if (!(atomic_load(&ep->looked.open) & UINT32_C(1) << i))
        return l;
    pthread_mutex_lock(&ep->rail->pool.mu);
    if (ep->looked.of[i].seq == seq)
        l = ep->looked.of[i];
    atomic_fetch_and(&ep->looked.open, ~(UINT32_C(1) << i));
    pthread_mutex_unlock(&ep->rail->pool.mu);
    return l;
}

/* The turn is over within question i. Another thread, with the next turn, goes on. */
static void go_on_later(cma_ep *ep, uint32_t i, const cma_looked *l)
{
    pthread_mutex_lock(&ep->rail->pool.mu);
    ep->looked.of[i] = *l;
    atomic_fetch_or(&ep->looked.open, UINT32_C(1) << i);
    pthread_mutex_unlock(&ep->rail->pool.mu);
    atomic_fetch_or(&ep->shm->asked, UINT32_C(1) << i);
}

/* Returns the low half of cma_question.answer; 0: the turn is over, and *l says how far it came. The question is read once in a turn: later
 * writes of the peer have no effect. A peer that changes it between two turns deceives itself. */
static uint32_t question_look(cma_ep *ep, uint32_t epoch, const volatile cma_question *q, cma_looked *l, uint32_t *left)
{
    cma_epoch *own = &ep->rail->pool.own[epoch];
    cma_range r[CMA_ASK_RANGES];
    uint32_t n = q->n, write = q->write, i = l->range, k = i;
    uint64_t regions = 0;
    int err = 0;
    if (n == 0 || n > CMA_ASK_RANGES)
        return EPROTO;
    for (; k < n; k++) {
        r[k] = (cma_range){q->range[k].key, q->range[k].addr, q->range[k].len, q->range[k].dev, q->range[k].inode, q->range[k].offset};
        regions |= cma_region_bit(r[k].key);
    }
    turn t = {*left, l->done};
    atomic_store(&own->regions, regions);
    atomic_fetch_add(&own->turn, 1); /* before the checks that follow: a deregistration waits with the end of `known` */
    for (; i < n && t.left; i++) {
        err = t.done <= r[i].len ? memory_same(ep->rail, &r[i], write, &t) : EPROTO;
        if (err || t.done < r[i].len)
            break;
        t.done = 0;
    }
    atomic_fetch_add(&own->turn, 1);
    *left = t.left;
    if (err)
        return i << 16 | (uint32_t)err;
    l->range = i;
    l->done = t.done;
    return i < n ? 0 : CMA_SAME;
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
    uint32_t left = TURN;
    for (uint32_t bits = atomic_load(&shm->asked); bits && left; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(bits), bit = UINT32_C(1) << i;
        if (!(atomic_fetch_and(&shm->asked, ~bit) & bit)) /* another thread has it */
            continue;
        cma_question *q = &shm->question[i];
        cma_looked l = begun(ep, i, __atomic_load_n(&q->seq, __ATOMIC_ACQUIRE));
        uint32_t is = question_look(ep, epoch, q, &l, &left);
        if (!is) {
            go_on_later(ep, i, &l);
            return;
        }
        uint64_t mine = (uint64_t)l.seq << 32 | is, was = atomic_load(&q->answer);
        /* the peer may have given the question up and asked another one, which another thread has answered */
        while ((int32_t)(l.seq - (uint32_t)(was >> 32)) >= 0 && !atomic_compare_exchange_weak(&q->answer, &was, mine)) /* before cma_ring_asleep */
            ;
        cma_ring_asleep(ep);
        expect_next(ep->rail);
    }
}

void cma_note_changed(cma_rail *rail)
{
    int none = CMA_NOT_CHANGED;
    if (!atomic_compare_exchange_strong(&rail->changed, &none, CMA_CHANGE_FOUND))
        return;
    rail->changed_task.what = CMA_CHANGED;
    cma_mapper_add(rail, &rail->changed_task);
}

void cma_change_told(cma_rail *rail) { atomic_store(&rail->changed, CMA_CHANGE_TOLD); }

void cma_looks(cma_rail *rail)
{
    int told = CMA_CHANGE_TOLD;
    atomic_compare_exchange_strong(&rail->changed, &told, CMA_NOT_CHANGED);
}
