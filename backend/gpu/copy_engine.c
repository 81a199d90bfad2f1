/* Copies by a copy engine: in pieces, with two of them queued. */
#include <time.h>

#include "gpu_int.h"

enum {
    SHORT_JOB = 2 << 20,
    EVENT_POLLS = 4,
};

uint64_t gg_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Adapts the piece size after a large piece that did not wait for other pieces of its job. The piece took at most until now,
 * and longer than until it was last seen pending. busy is 0 if it was never seen pending, because the caller polled late. */
static void adapt_piece(gr_gpu_job *j, uint32_t at)
{
    gr_gpu_stream *l = j->stream;
    uint64_t piece = atomic_load_explicit(&l->piece, memory_order_relaxed), start = j->timed[at].ns, busy = j->timed[at].busy;
    uint64_t room = j->timed[at].bytes * GG_PIECE_NS, fits = room / (gg_now() - start + 1), most = busy ? room / (busy - start + 1) : piece;
    if (fits < piece)
        fits = most >= piece ? piece : piece - (piece - most) / 4; /* other jobs may have used the stream */
    fits = fits < GG_PIECE_LEAST ? GG_PIECE_LEAST : fits > GG_PIECE_MOST ? GG_PIECE_MOST : fits;
    atomic_store_explicit(&l->piece, fits & ~(uint64_t)(GG_PIECE_ALIGN - 1), memory_order_relaxed);
}

/* Queues the next piece. Within the context. *bytes of it are queued, also after an error. */
static int queue(gr_gpu_job *j, uint64_t *bytes, gr_gpu_fault *fault)
{
    gr_gpu_stream *l = j->stream;
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
            int rc = w->write ? GG_CALL(g, fault, copy, remote, local, len, l->handle) : GG_CALL(g, fault, copy, local, remote, len, l->handle);
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

/* Fills the queue. After an error, copies that are queued continue, and polls wait for them. */
int gg_pump(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->stream->g;
    int rc = 0;
    if (j->queued == GG_QUEUED || j->next == j->work.nops)
        return 0;
    if ((rc = gg_enter(g, j->stream->dev, fault)))
        return rc;
    while (rc == 0 && j->queued < GG_QUEUED && j->next < j->work.nops && !atomic_load(&j->cancelled)) {
        uint32_t at = (j->head + j->queued) % GG_QUEUED;
        uint64_t start = j->queued ? 0 : gg_now();
        rc = queue(j, &j->timed[at].bytes, fault);
        j->timed[at].ns = j->timed[at].bytes < GG_PIECE_LEAST ? 0 : start;
        j->timed[at].busy = 0;
        int event = GG_CALL(g, rc ? NULL : fault, event_record, j->event[at], j->stream->handle);
        if (event == 0)
            j->queued++;
        else
            j->unmarked = 1; /* without an event, only the stream tells when these copies have ended */
        rc = rc ? rc : event;
    }
    gg_leave(g);
    atomic_fetch_add_explicit(&g->pub.engine_copies, 1, memory_order_relaxed);
    return rc;
}

/* Returns 1 if the driver must be asked again: its answer was neither done nor pending, so the copy may be in progress. Returns
 * 0 if the context is lost, or after too many such answers. */
int gg_unclear(gr_gpu_job *j, cu_result r) { return !gg_lost(r) && ++j->unclear < GG_UNCLEAR; }

/* Returns 1 while queued copies are in progress. */
static int poll_stream(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->stream->g;
    gg_relax(g);
    cu_result r = g->cu.stream_query(j->stream->handle);
    gg_restore(g);
    if (r == CU_NOT_READY || (r != CU_OK && gg_unclear(j, r)))
        return 1;
    j->unmarked = 0;
    return gg_result(g, fault, r, gg_name_stream_query);
}

/* For a short job, polls the event a few times, except within the post. The driver takes 0.2 us per query; the way back here
 * through NIXL takes longer. */
static cu_result ended(gr_gpu_job *j)
{
    gg *g = j->stream->g;
    cu_result r;
    int left = j->work.bytes <= SHORT_JOB && j->polls++ ? EVENT_POLLS : 1;
    gg_relax(g);
    do
        r = g->cu.event_query(j->event[j->head]);
    while (r == CU_NOT_READY && --left);
    gg_restore(g);
    return r;
}

int gg_poll_engine(gr_gpu_job *j, gr_gpu_fault *fault)
{
    gg *g = j->stream->g;
    int rc;
    while (j->queued) {
        cu_result r = ended(j);
        if (r == CU_NOT_READY && j->timed[j->head].ns)
            j->timed[j->head].busy = gg_now();
        if (r == CU_NOT_READY || (r != CU_OK && gg_unclear(j, r)))
            break;
        if (r != CU_OK) {
            j->queued = 0;
            return gg_result(g, fault, r, gg_name_event_query);
        }
        j->unclear = 0;
        if (j->timed[j->head].ns)
            adapt_piece(j, j->head);
        j->head = (j->head + 1) % GG_QUEUED;
        j->queued--;
    }
    if (!j->broken && (j->broken = gg_pump(j, &j->fault)) == 0 && !j->queued && j->next < j->work.nops)
        j->broken = gg_fail(&j->fault, GR_GPU_CANCELLED, "cancel");
    if (j->queued)
        return 1;
    if (j->unmarked && (rc = poll_stream(j, fault)))
        return rc;
    if (j->broken && fault)
        *fault = j->fault;
    return j->broken;
}
