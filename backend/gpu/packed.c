/* Jobs that pack and unpack (gr_pack.h): several launches on one stream, over the stream's scratch. */
#include <stdlib.h>
#include <string.h>

#include "gpu_int.h"

enum {
    OUT_BLOCKS = 16, /* that bring a packed chunk to host memory: PCIe takes no more */
    MOST = 1 << 30,  /* bytes of a chunk */
};

/* ---- scratch ---- */

/* Loads the kernels. Within the context, with load_mu held. */
static int load(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    cu_function f[3];
    cu_result r = gg_module(g, g->pack_ptx, (const char *const[]){"gr_pack", "gr_pack_out", "gr_unpack"}, f, 3, &d->pack_module);
    if (r == CU_OK) {
        d->pack = f[0], d->pack_out = f[1], d->unpack = f[2];
        return 0;
    }
    int rc = gg_result(g, fault, r, gg_name_module_load);
    if (!gg_cannot_jit(r))
        return rc;
    if (fault)
        fault->why = GR_GPU_NO_PACK;
    return -GR_GPU_NO_PACK;
}

static int load_once(gg *g, gg_dev *d, gr_gpu_fault *fault)
{
    if (!d->gather) /* tried with the stream */
        return gg_fail(fault, GR_GPU_NO_PACK, "gr_gather");
    pthread_mutex_lock(&g->load_mu);
    int rc = d->pack_module ? 0 : gg_enter(g, d, fault);
    if (rc == 0 && !d->pack_module) {
        rc = load(g, d, fault);
        gg_leave(g);
    }
    pthread_mutex_unlock(&g->load_mu);
    return rc;
}

int gg_pack_room(gr_gpu_stream *l, uint64_t bytes, gr_gpu_fault *fault)
{
    gg *g = l->g;
    uint64_t n = gr_pack_blocks(bytes), text = n * GR_PACK_TEXT, blocks = gr_pack_aligned(n * 4) + n * GR_PACK_STRIDE, at;
    if (bytes == 0 || bytes > MOST)
        return gg_fail(fault, GR_GPU_NO_PACK, "size");
    int rc = load_once(g, l->dev, fault);
    if (rc)
        return rc;
    pthread_mutex_lock(&l->pack_mu);
    int enough = l->scratch && l->scratch->bytes >= bytes;
    pthread_mutex_unlock(&l->pack_mu);
    if (enough)
        return 0;
    gg_scratch *s = GR_ALLOC(gpu_scratch, malloc(sizeof(*s)));
    if (!s)
        return gg_fail(fault, GR_GPU_NO_MEMORY, "malloc");
    if ((rc = gg_vram(&g->pub, l->dev->ordinal, text + blocks + n * 4, &at, fault))) {
        free(s);
        return rc;
    }
    *s = (gg_scratch){.text = at, .blocks = at + text, .lens = at + text + blocks, .bytes = text, .room = blocks};
    pthread_mutex_lock(&l->pack_mu);
    if (!l->scratch || l->scratch->bytes < bytes) {
        s->next = l->scratch;
        l->scratch = s;
        s = NULL;
    }
    pthread_mutex_unlock(&l->pack_mu);
    gg_scratch_free(g, l->dev->ordinal, s); /* another thread was first */
    return 0;
}

void gg_scratch_free(gg *g, int device, gg_scratch *s)
{
    for (gg_scratch *next; s; s = next) {
        next = s->next;
        (void)gg_vram_free(&g->pub, device, s->text, NULL); /* fails only if CUDA has ended */
        free(s);
    }
}

/* ---- jobs ---- */

/* Gives each piece its place in the scratch text. */
static int place(gr_gpu_job *j, const gg_scratch *s, gr_gpu_fault *fault)
{
    gr_gpu_work *w = &j->work;
    uint64_t sum = 0;
    if (!s || w->bytes == 0 || w->bytes > s->bytes || w->nops == 0 || (w->slot & (GR_PACK_ALIGN - 1)) ||
        (w->nops > GR_GATHER_FEW && !gg_in_arena(j->stream->g, w->ops, (size_t)w->nops * sizeof(gr_op))))
        return gg_fail(fault, GR_GPU_NO_PACK, "post");
    if (w->pack == GR_GPU_UNPACK && (w->packed == 0 || w->packed > s->room))
        return gg_fail(fault, GR_GPU_BAD_PACK, "length");
    gr_op *ops = (gr_op *)(uintptr_t)w->ops;
    for (uint32_t i = 0; i < w->nops; i++) {
        if (ops[i].len > w->bytes - sum)
            return gg_fail(fault, GR_GPU_NO_PACK, "pieces");
        ops[i].remote = s->text + sum;
        sum += ops[i].len;
    }
    if (sum != w->bytes)
        return gg_fail(fault, GR_GPU_NO_PACK, "pieces");
    w->table = NULL;
    w->delta = 0;
    w->write = w->pack == GR_GPU_PACK;
    j->shadow = NULL;
    return 0;
}

static int run(gr_gpu_job *j, cu_function kernel, uint32_t most, gr_pack_args *a, gr_gpu_fault *fault)
{
    gg *g = j->stream->g;
    uint32_t blocks = gr_pack_blocks(a->bytes);
    void *params[] = {a};
    int rc = GG_CALL(g, fault, launch, kernel, blocks < most ? blocks : most, 1, 1, GR_PACK_THREADS, 1, 1, 0, j->stream->handle, params, NULL);
    atomic_fetch_add_explicit(&g->pub.launches, rc == 0, memory_order_relaxed);
    return rc;
}

/* Each step sets unmarked once something is queued: should a later step fail, the job ends no sooner than that. */

static int pack(gr_gpu_job *j, uint32_t quarter, gr_pack_args *a, gr_gpu_fault *fault)
{
    gg_dev *d = j->stream->dev;
    int rc = gg_gather(j, gg_next_seq(j->stream->g), fault);
    if (rc)
        return rc;
    j->unmarked = 1;
    a->packed = a->bytes;
    if ((rc = run(j, d->pack, quarter, a, fault)) == 0)
        rc = run(j, d->pack_out, OUT_BLOCKS, a, fault);
    return rc;
}

static int unpack(gr_gpu_job *j, uint32_t quarter, gr_pack_args *a, gr_gpu_fault *fault)
{
    gr_gpu_stream *l = j->stream;
    gg *g = l->g;
    /* The copy behind gr_unpack stops late: it must not find what another job has left. */
    int rc = GG_CALL(g, fault, fill, a->text, 0, a->bytes, l->handle);
    if (rc)
        return rc;
    j->unmarked = 1;
    a->packed = j->work.packed;
    if ((rc = GG_CALL(g, fault, copy, a->blocks, a->slot, a->packed, l->handle)) == 0 && (rc = run(j, l->dev->unpack, quarter, a, fault)) == 0)
        rc = gg_gather(j, a->seq, fault);
    return rc;
}

static int launch(gr_gpu_job *j, const gg_scratch *s, gr_gpu_fault *fault)
{
    gr_gpu_stream *l = j->stream;
    uint32_t sms = (uint32_t)l->dev->info.sms;
    gr_pack_args a = {.text = s->text, .blocks = s->blocks, .lens = s->lens, .slot = j->work.slot, .word = (uint64_t)(uintptr_t)j->word,
                      .mark = j->mark, .bytes = (uint32_t)j->work.bytes, .seq = gg_next_seq(l->g)};
    int rc = gg_enter(l->g, l->dev, fault);
    if (rc)
        return rc;
    rc = (j->work.pack == GR_GPU_PACK ? pack : unpack)(j, sms < 4 ? 1 : sms / 4, &a, fault);
    /* An event ends with what is queued so far. Without one the job waits until the stream is idle, and other jobs may keep it busy for long. */
    if (rc && j->unmarked && l->g->cu.event_record(j->event[0], l->handle) == CU_OK) {
        j->unmarked = 0;
        j->queued = 1;
        j->timed[0].ns = 0;
    }
    gg_leave(l->g);
    if (rc == 0) {
        j->unmarked = 0;
        j->late = 0;
        atomic_store(&j->seq, a.seq);
    }
    return rc;
}

int gg_post_packed(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gr_gpu_stream *l = j->stream;
    pthread_mutex_lock(&l->pack_mu);
    int rc = place(j, l->scratch, fault);
    if (rc == 0)
        rc = launch(j, l->scratch, fault);
    pthread_mutex_unlock(&l->pack_mu);
    if (rc == 0 && atomic_load(&j->cancelled)) /* cancelled before seq was known */
        gg_cancel(j);
    return rc;
}

uint32_t gg_packed(const gr_gpu_job *j) { return j->packed; }
