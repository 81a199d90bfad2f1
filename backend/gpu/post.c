/* Posting and polling: the hot path. One launch of the kernel, or pieces for a copy engine, two of them queued. */
#include <string.h>
#include <time.h>

#include "gpu_int.h"

enum {
    /* So large are operations, on average, that a copy engine is as fast as the kernel (docs/gpu.md); it takes no SMs. */
    ENGINE_VRAM = 8 << 20, ENGINE_HOST = 256 << 10,
    PEER_BLOCKS = 32,        /* at most: 310 of the 353 GB/s that NVLink gives, and 100 of 132 SMs are left to the application */
    ASK_DRIVER = 64,         /* polls between two questions whether the context still lives */
    /* Slices of an operation in pinned memory: their readers queue up, a microsecond each, which is what so many bytes take. */
    PINNED_SPLIT = 4, READER = 256 << 10,
    SHORT = 2 << 20, LOOKS = 4,
    ODD = 16,                /* answers that are neither yes nor no, after which a copy is given up */
    LONG = 64 << 10,         /* bytes of a slice beside which reading its descriptor is nothing */
};

/* ---- copy engine ---- */

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A large piece that waited for none of its job's has ended: how large may they be? It took at most as long as until now, and longer
 * than until it was last seen under way, which is 0 for whoever polls late. */
static void learn(gr_gpu_job *j, uint32_t at)
{
    gr_gpu_lane *l = j->lane;
    uint64_t piece = atomic_load_explicit(&l->piece, memory_order_relaxed), start = j->timed[at].ns, busy = j->timed[at].busy;
    uint64_t room = j->timed[at].bytes * GG_PIECE_NS, fits = room / (now() - start + 1), most = busy ? room / (busy - start + 1) : piece;
    if (fits < piece)
        fits = most >= piece ? piece : piece - (piece - most) / 4; /* others may have had the stream */
    fits = fits < GG_PIECE_LEAST ? GG_PIECE_LEAST : fits > GG_PIECE_MOST ? GG_PIECE_MOST : fits;
    atomic_store_explicit(&l->piece, fits & ~(uint64_t)(GG_PIECE_ALIGN - 1), memory_order_relaxed);
}

/* Within the context: the next piece. *bytes of it are queued, whatever comes of the rest. */
static int queue(gr_gpu_job *j, uint64_t *bytes, gr_gpu_fault *fault)
{
    gr_gpu_lane *l = j->lane;
    gg *g = l->g;
    const gr_gpu_work *w = &j->work;
    uint64_t room = atomic_load_explicit(&l->piece, memory_order_relaxed);
    *bytes = 0;
    for (int n = 0; n < GG_GROUP && room && j->next < w->nops; n++) {
        const gr_op *op = &w->ops[j->next];
        uint64_t len = op->len - j->at;
        if (len > room)
            len = room;
        uint64_t local = op->local + j->at, remote = op->remote + j->at + (j->shadow ? j->shadow[op->rregion] : w->delta);
        if (len) {
            int rc = w->write ? GG_CALL(g, fault, copy, remote, local, len, l->stream) : GG_CALL(g, fault, copy, local, remote, len, l->stream);
            if (rc)
                return rc;
        }
        room -= len;
        *bytes += len;
        j->at += len;
        if (j->at == op->len) {
            j->at = 0;
            j->next++;
        }
    }
    return 0;
}

/* Fills the queue. What was queued before an error goes on, and is waited for. */
static int pump(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->lane->g;
    int rc = 0;
    if (j->queued == GG_QUEUED || j->next == j->work.nops)
        return 0;
    if ((rc = gg_enter(g, j->lane->dev, fault)))
        return rc;
    while (rc == 0 && j->queued < GG_QUEUED && j->next < j->work.nops && !atomic_load(&j->cancelled)) {
        uint32_t at = (j->head + j->queued) % GG_QUEUED;
        uint64_t start = j->queued ? 0 : now();
        rc = queue(j, &j->timed[at].bytes, fault);
        j->timed[at].ns = j->timed[at].bytes < GG_PIECE_LEAST ? 0 : start;
        j->timed[at].busy = 0;
        int event = GG_CALL(g, rc ? NULL : fault, event_record, j->event[at], j->lane->stream);
        if (event == 0)
            j->queued++;
        else
            j->unmarked = 1; /* nothing will tell when these copies have ended, but the stream */
        rc = rc ? rc : event;
    }
    gg_leave(g);
    atomic_fetch_add_explicit(&g->pub.engine_copies, 1, memory_order_relaxed);
    return rc;
}

/* A question that the driver answers neither way: the copy may be under way still, so it is asked again, unless all is lost. */
static int odd(gr_gpu_job *j, cu_result r)
{
    return !gg_lost(r) && ++j->odd < ODD;
}

/* 1: what is queued is under way. */
static int poll_stream(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->lane->g;
    cu_result r = g->cu.stream_query(j->lane->stream);
    if (r == CU_NOT_READY || (r != CU_OK && odd(j, r)))
        return 1;
    j->unmarked = 0;
    return gg_result(g, fault, r, gg_name_stream_query);
}

/* Of a short job the answer is waited for a little, but not within its post: the driver's takes 0.2 us, the way back to here through NIXL more. */
static cu_result ended(gr_gpu_job *j)
{
    cu_result r;
    int looks = j->work.bytes <= SHORT && j->polls++ ? LOOKS : 1;
    do
        r = j->lane->g->cu.event_query(j->event[j->head]);
    while (r == CU_NOT_READY && --looks);
    return r;
}

static int poll_engine(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->lane->g;
    int rc;
    while (j->queued) {
        cu_result r = ended(j);
        if (r == CU_NOT_READY && j->timed[j->head].ns)
            j->timed[j->head].busy = now();
        if (r == CU_NOT_READY || (r != CU_OK && odd(j, r)))
            break;
        if (r != CU_OK) {
            j->queued = 0;
            return gg_result(g, fault, r, gg_name_event_query);
        }
        j->odd = 0;
        if (j->timed[j->head].ns)
            learn(j, j->head);
        j->head = (j->head + 1) % GG_QUEUED;
        j->queued--;
    }
    if (!j->broken && (j->broken = pump(j, &j->fault)) == 0 && !j->queued && j->next < j->work.nops)
        j->broken = gg_fail(&j->fault, GR_GPU_CANCELLED, "cancel");
    if (j->queued)
        return 1;
    if (j->unmarked && (rc = poll_stream(j, fault)))
        return rc;
    if (j->broken && fault)
        *fault = j->fault;
    return j->broken;
}

/* ---- kernel ---- */

static void layout(const gr_gpu_lane *l, const gr_gpu_work *w, int inlined, gr_gather_args *a, unsigned *blocks)
{
    uint32_t sms = (uint32_t)l->dev->info.sms, quarter = sms < 4 ? 1 : sms / 4, far = quarter < PEER_BLOCKS ? quarter : PEER_BLOCKS;
    uint32_t most = w->blocks ? w->blocks : l->peer == l->dev->ordinal ? sms : far, warps = most * (GR_GATHER_THREADS / GR_GATHER_WARP);
    uint64_t each = w->bytes / warps, mean = w->bytes / w->nops;
    if (each > LONG)
        each = each / 4 > LONG ? each / 4 : LONG; /* so that no warp has one more than others and that one lasts */
    if (each < GR_GATHER_ROUND)
        each = GR_GATHER_ROUND;
    uint64_t split = (mean + each - 1) / each;
    if (!inlined && split > PINNED_SPLIT + mean / READER)
        split = PINNED_SPLIT + mean / READER;
    if (split > 4 * warps) /* of at most 128 operations then */
        split = 4 * warps;
    a->nops = w->nops;
    a->split = split && w->nops < 1u << 24 ? (uint32_t)split : 1; /* items stay below 1 << 31 */
    uint64_t items = (uint64_t)a->nops * a->split, run = (items + warps - 1) / warps;
    if (mean / a->split >= LONG)
        run = 1;
    a->run = run > GR_GATHER_RUN ? GR_GATHER_RUN : (uint32_t)run;
    /* Half the warps of a block, so that few slices are on many SMs. */
    uint64_t need = (items + a->run * 4 - 1) / (a->run * 4);
    *blocks = need < most ? (unsigned)need : most;
}

static void inline_ops(const gr_gpu_job *j, gr_gather_few *few)
{
    const gr_gpu_work *w = &j->work;
    for (uint32_t i = 0; i < w->nops; i++) {
        const gr_op *op = &w->ops[i];
        uint64_t remote = op->remote + (j->shadow ? j->shadow[op->rregion] : w->delta);
        few->piece[i] = w->write ? (gr_gather_piece){ op->local, remote, op->len } : (gr_gather_piece){ remote, op->local, op->len };
    }
}

static int launch(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gr_gpu_lane *l = j->lane;
    gg *g = l->g;
    const gr_gpu_work *w = &j->work;
    int inlined = w->nops <= GR_GATHER_FEW;
    gr_gather_few few; /* 3 KiB of which only what is used is written */
    unsigned blocks;
    uint32_t seq;
    do
        seq = atomic_fetch_add(&g->seq, 1) + 1;
    while (seq == 0);
    memset(&few.args, 0, sizeof(few.args));
    few.args.ops = (uint64_t)w->ops;
    few.args.table = w->table ? atomic_load(&w->table->mem) : 0;
    few.args.delta = w->table ? 0 : w->delta;
    few.args.word = (uint64_t)j->word;
    few.args.mark = j->mark;
    few.args.write = w->write;
    few.args.seq = seq;
    layout(l, w, inlined, &few.args, &blocks);
    if (inlined)
        inline_ops(j, &few);
    void *params[] = { &few };
    int rc = gg_enter(g, l->dev, fault);
    if (rc)
        return rc;
    j->polls = 0;
    rc = GG_CALL(g, fault, launch, inlined ? l->dev->gather_short : l->dev->gather, blocks, 1, 1, GR_GATHER_THREADS, 1, 1, 0, l->stream,
                 params, NULL);
    gg_leave(g);
    if (rc == 0) {
        atomic_store(&j->seq, seq);
        if (atomic_load(&j->cancelled)) /* came before seq was known */
            gg_cancel(j);
        atomic_fetch_add_explicit(&g->pub.launches, 1, memory_order_relaxed);
    }
    return rc;
}

static int poll_kernel(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->lane->g;
    uint32_t seq = atomic_load_explicit(&j->seq, memory_order_relaxed);
    if (__atomic_load_n(&j->word->done, __ATOMIC_ACQUIRE) != seq) {
        if (++j->polls % ASK_DRIVER)
            return 1;
        cu_result r = g->cu.stream_query(j->lane->stream);
        if (r == CU_NOT_READY || (r != CU_OK && odd(j, r)))
            return 1;
        if (r != CU_OK)
            return gg_result(g, fault, r, gg_name_stream_query);
        if (__atomic_load_n(&j->word->done, __ATOMIC_ACQUIRE) != seq)
            return gg_fail(fault, GR_GPU_LOST, "the kernel has ended without a word");
    }
    return __atomic_load_n(&j->word->stopped, __ATOMIC_RELAXED) == seq ? gg_fail(fault, GR_GPU_CANCELLED, "cancel") : 0;
}

/* ---- both ---- */

static int by_kernel(const gr_gpu_job *j)
{
    const gr_gpu_work *w = &j->work;
    if (!j->lane->dev->gather || w->nops == 0 || w->nops >= 1u << 31 || w->how == GR_GPU_ENGINE)
        return 0;
    if (w->nops > GR_GATHER_FEW && !gg_in_arena(j->lane->g, w->ops, (size_t)w->nops * sizeof(gr_op)))
        return 0;
    uint64_t large = j->lane->peer < 0 ? ENGINE_HOST : ENGINE_VRAM;
    return w->how == GR_GPU_KERNEL || (w->nops > 1 && w->bytes / w->nops < large);
}

int gg_post(gr_gpu_job *j, const gr_gpu_work *work, gr_gpu_fault *fault)
{
    if (j->state != GG_IDLE)
        return gg_fail(fault, GR_GPU_BUSY, "post");
    j->work = *work;
    j->shadow = work->table ? atomic_load(&work->table->shadow) : NULL;
    if (work->table && (!j->shadow || work->table->dev != j->lane->dev))
        return gg_fail(fault, GR_GPU_BAD_SHARE, "table");
    atomic_store(&j->cancelled, 0);
    j->odd = j->unmarked = 0;
    int rc, kernel = by_kernel(j);
    if (kernel)
        rc = launch(j, fault);
    else {
        j->next = j->queued = j->head = j->polls = 0;
        j->at = 0;
        j->broken = 0;
        rc = pump(j, fault);
        if (rc && (j->queued || j->unmarked)) { /* poll tells, once what is queued has ended */
            j->broken = rc;
            j->fault = fault ? *fault : (gr_gpu_fault){ .why = -rc };
            rc = 0;
        }
    }
    if (rc == 0)
        j->state = kernel ? GG_BY_KERNEL : GG_BY_ENGINE;
    return rc;
}

int gg_poll(gr_gpu_job *j, gr_gpu_fault *fault)
{
    int rc = 0;
    if (j->state == GG_IDLE)
        return 0;
    atomic_fetch_add_explicit(&j->lane->g->pub.polls, 1, memory_order_relaxed);
    rc = j->state == GG_BY_KERNEL ? poll_kernel(j, fault) : poll_engine(j, fault);
    if (rc <= 0) {
        atomic_store(&j->seq, 0);
        j->state = GG_IDLE;
    }
    return rc;
}

void gg_cancel(gr_gpu_job *j)
{
    gg *g = j->lane->g;
    atomic_store(&j->cancelled, 1);
    uint32_t seq = atomic_load(&j->seq);
    if (!seq || gg_enter(g, j->lane->dev, NULL))
        return;
    /* Numbers of launches never come again, so that one that lands late stops nothing. */
    j->word->cancel = seq;
    (void)g->cu.copy_in(j->mark + offsetof(gr_gather_mark, cancel), &j->word->cancel, sizeof(j->word->cancel), j->lane->dev->util);
    gg_leave(g);
}
