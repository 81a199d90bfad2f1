/* Posting and polling with the kernel, which is the hot path and takes one launch; and the choice between kernel and copy
 * engine. */
#include <string.h>

#include "gpu_int.h"

enum {
    /* Average size of operations from which a copy engine is as fast as the kernel (docs/gpu.md). A copy engine takes no SMs. */
    ENGINE_VRAM = 8 << 20,
    ENGINE_HOST = 256 << 10,
    PEER_BLOCKS = 32,        /* limit: reaches 310 of NVLink's 353 GB/s, and leaves 100 of 132 SMs to the application */
    ASK_DRIVER = 64,         /* polls between two checks that the context is alive */
    /* Limits of slices per operation in pinned memory. Readers of one descriptor queue up, a microsecond each. READER_BYTES of data
     * take as long. */
    PINNED_SPLIT = 4,
    READER_BYTES = 256 << 10,
    LONG_SLICE = 64 << 10,   /* bytes of a slice that make the read of its descriptor negligible */
    /* A kernel waits for SMs while the application's kernels hold them: 1.6 ms beside products of 8192 x 8192 matrices. A copy engine does not
     * wait, and takes 3 us for each operation. So short lists take it for BUSY_NS once a kernel has waited (docs/gpu.md, "Beside a busy GPU"). */
    LATE_NS = 500 * 1000,
    BUSY_NS = 100 * 1000 * 1000,
    BUSY_OPS = 333,
    BYTES_IN_NS = 125, /* a third of NVLink's rate: a kernel that takes longer has waited */
};

static void layout(const gr_gpu_stream *l, const gr_gpu_work *w, int inlined, gr_gather_args *a, unsigned *blocks)
{
    uint32_t sms = (uint32_t)l->dev->info.sms, quarter = sms < 4 ? 1 : sms / 4, far = quarter < PEER_BLOCKS ? quarter : PEER_BLOCKS;
    uint32_t most = l->peer == l->dev->ordinal ? sms : far, warps = most * (GR_GATHER_THREADS / GR_GATHER_WARP);
    uint64_t each = w->bytes / warps, mean = w->bytes / w->nops;
    if (each > LONG_SLICE)
        each = each / 4 > LONG_SLICE ? each / 4 : LONG_SLICE; /* smaller slices even out the work of the warps */
    if (each < GR_GATHER_ROUND)
        each = GR_GATHER_ROUND;
    uint64_t split = (mean + each - 1) / each;
    if (!inlined && split > PINNED_SPLIT + mean / READER_BYTES)
        split = PINNED_SPLIT + mean / READER_BYTES;
    if (split > 4 * warps) /* at most 128 operations in this case */
        split = 4 * warps;
    a->nops = w->nops;
    a->split = split && w->nops < 1u << 24 ? (uint32_t)split : 1; /* items stay below 1 << 31 */
    uint64_t items = (uint64_t)a->nops * a->split, run = (items + warps - 1) / warps;
    if (mean / a->split >= LONG_SLICE)
        run = 1;
    a->run = run > GR_GATHER_RUN ? GR_GATHER_RUN : (uint32_t)run;
    /* Half the warps of a block, so that few slices spread over many SMs. */
    uint64_t need = (items + a->run * 4 - 1) / (a->run * 4);
    *blocks = need < most ? (unsigned)need : most;
}

static void inline_ops(const gr_gpu_job *j, gr_gather_few *few)
{
    const gr_gpu_work *w = &j->work;
    for (uint32_t i = 0; i < w->nops; i++) {
        const gr_op *op = &w->ops[i];
        uint64_t remote = op->remote + (j->shadow ? j->shadow[op->rregion] : w->delta);
        few->piece[i] = w->write ? (gr_gather_piece){op->local, remote, op->len} : (gr_gather_piece){remote, op->local, op->len};
    }
}

uint32_t gg_next_seq(gg *g)
{
    uint32_t seq;
    do
        seq = atomic_fetch_add(&g->seq, 1) + 1;
    while (seq == 0);
    return seq;
}

int gg_gather(gr_gpu_job *j, uint32_t seq, gr_gpu_fault *fault)
{
    gr_gpu_stream *l = j->stream;
    gg *g = l->g;
    const gr_gpu_work *w = &j->work;
    int inlined = w->nops <= GR_GATHER_FEW;
    gr_gather_few few; /* 3 KiB; only the used part is written */
    unsigned blocks;
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
    void *params[] = {&few};
    int rc =
        GG_CALL(g, fault, launch, inlined ? l->dev->gather_short : l->dev->gather, blocks, 1, 1, GR_GATHER_THREADS, 1, 1, 0, l->handle, params, NULL);
    atomic_fetch_add_explicit(&g->pub.launches, rc == 0, memory_order_relaxed);
    return rc;
}

static int launch(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gr_gpu_stream *l = j->stream;
    gg *g = l->g;
    int rc = gg_enter(g, l->dev, fault);
    if (rc)
        return rc;
    uint32_t seq = gg_next_seq(g);
    j->late = atomic_load(&l->posted) == 0 ? gg_now() + LATE_NS + j->work.bytes / BYTES_IN_NS : 0;
    rc = gg_gather(j, seq, fault);
    gg_leave(g);
    if (rc == 0) {
        atomic_store(&j->seq, seq);
        if (atomic_load(&j->cancelled)) /* cancelled before seq was known */
            gg_cancel(j);
    }
    return rc;
}

static int poll_kernel(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->stream->g;
    uint32_t seq = atomic_load_explicit(&j->seq, memory_order_relaxed);
    if (__atomic_load_n(&j->word->done, __ATOMIC_ACQUIRE) != seq) {
        if (++j->polls % ASK_DRIVER)
            return 1;
        uint64_t now = gg_now();
        if (j->late && now > j->late)
            atomic_store(&j->stream->busy_until, now + BUSY_NS);
        gg_relax(g);
        cu_result r = g->cu.stream_query(j->stream->handle);
        gg_restore(g);
        if (r == CU_NOT_READY || (r != CU_OK && gg_unclear(j, r)))
            return 1;
        if (r != CU_OK)
            return gg_result(g, fault, r, gg_name_stream_query);
        if (__atomic_load_n(&j->word->done, __ATOMIC_ACQUIRE) != seq)
            return gg_fail(fault, GR_GPU_LOST, "the kernel ended without reporting completion");
    }
    j->packed = j->work.pack == GR_GPU_PACK ? __atomic_load_n(&j->word->packed, __ATOMIC_RELAXED) : 0;
    if (j->work.pack == GR_GPU_UNPACK && __atomic_load_n(&j->word->bad, __ATOMIC_RELAXED) == seq)
        return gg_fail(fault, GR_GPU_BAD_PACK, "gr_unpack");
    return __atomic_load_n(&j->word->stopped, __ATOMIC_RELAXED) == seq ? gg_fail(fault, GR_GPU_CANCELLED, "cancel") : 0;
}

/* ---- both methods ---- */

static int by_kernel(const gr_gpu_job *j)
{
    const gr_gpu_work *w = &j->work;
    if (!j->stream->dev->gather || w->nops == 0 || w->nops >= 1u << 31 || w->how == GR_GPU_ENGINE)
        return 0;
    if (w->nops > GR_GATHER_FEW && !gg_in_arena(j->stream->g, w->ops, (size_t)w->nops * sizeof(gr_op)))
        return 0;
    uint64_t large = j->stream->peer < 0 ? ENGINE_HOST : ENGINE_VRAM;
    if (w->how == GR_GPU_KERNEL)
        return 1;
    if (w->nops <= 1 || w->bytes / w->nops >= large)
        return 0;
    uint64_t until = w->nops <= BUSY_OPS ? atomic_load_explicit(&j->stream->busy_until, memory_order_relaxed) : 0;
    return !until || gg_now() > until;
}

int gg_post(gr_gpu_job *j, const gr_gpu_work *work, gr_gpu_fault *fault)
{
    if (j->state != GG_IDLE)
        return gg_fail(fault, GR_GPU_BUSY, "post");
    j->work = *work;
    j->shadow = work->table ? atomic_load(&work->table->shadow) : NULL;
    if (work->table && (!j->shadow || work->table->dev != j->stream->dev))
        return gg_fail(fault, GR_GPU_BAD_SHARE, "table");
    atomic_store(&j->cancelled, 0);
    j->next = j->queued = j->head = j->polls = j->packed = 0;
    j->unclear = j->unmarked = j->broken = 0;
    j->at = 0;
    int kernel = work->pack || by_kernel(j);
    int rc = work->pack ? gg_post_packed(j, fault) : kernel ? launch(j, fault) : gg_pump(j, fault);
    if (rc && (j->queued || j->unmarked)) { /* poll reports the error once what is queued has ended */
        j->broken = rc;
        j->fault = fault ? *fault : (gr_gpu_fault){.why = -rc};
        rc = kernel = 0;
    }
    if (rc == 0) {
        j->state = kernel ? GG_BY_KERNEL : GG_BY_ENGINE;
        atomic_fetch_add(&j->stream->posted, 1);
    }
    return rc;
}

int gg_poll(gr_gpu_job *j, gr_gpu_fault *fault)
{
    int rc = 0;
    if (j->state == GG_IDLE)
        return 0;
    atomic_fetch_add_explicit(&j->stream->g->pub.polls, 1, memory_order_relaxed);
    rc = j->state == GG_BY_KERNEL ? poll_kernel(j, fault) : gg_poll_engine(j, fault);
    if (rc <= 0) {
        atomic_fetch_sub(&j->stream->posted, 1);
        atomic_store(&j->seq, 0);
        j->state = GG_IDLE;
    }
    return rc;
}

void gg_cancel(gr_gpu_job *j)
{
    gg *g = j->stream->g;
    atomic_store(&j->cancelled, 1);
    uint32_t seq = atomic_load(&j->seq);
    if (!seq || gg_enter(g, j->stream->dev, NULL))
        return;
    /* Launch numbers are unique until they wrap at 2^32, so a late cancel stops no other launch. */
    j->word->cancel = seq;
    (void)g->cu.copy_in(j->mark + offsetof(gr_gather_mark, cancel), &j->word->cancel, sizeof(j->word->cancel), j->stream->dev->util);
    gg_leave(g);
}
