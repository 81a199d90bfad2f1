/* An importer asks the owner whether memory is still what it has mapped. The question goes out with the post. A READ copies meanwhile and is
 * done with the answer. A WRITE waits: what was behind the address may be another's memory by now. */
#include <errno.h>

#include "cma.h"

_Static_assert(CMA_ASKS == 32 && CMA_BULKS < CMA_ASKS, "a bit each, and some for files");

cma_question *cma_question_of(cma_ep *ep, uint32_t i) { return &ep->peer.shm->question[i]; }

void cma_ask(cma_ep *ep, uint32_t i, uint32_t n, int write)
{
    cma_question *q = cma_question_of(ep, i);
    q->n = n;
    q->write = write != 0;
    if (!++ep->ask.of[i])
        ep->ask.of[i] = 1;
    /* last: an owner's thread may still read the question before, and answers the one that seq names */
    __atomic_store_n(&q->seq, ep->ask.of[i], __ATOMIC_RELEASE);
    atomic_fetch_or(&ep->peer.shm->asked, UINT32_C(1) << i); /* before cma_ring_asleep */
    cma_ring_asleep(ep);
}

int cma_answer(cma_ep *ep, uint32_t i, uint32_t *place)
{
    uint64_t a = atomic_load(&cma_question_of(ep, i)->answer);
    uint32_t code = (uint32_t)a & 0xffff;
    *place = (uint32_t)a >> 16;
    if (a >> 32 == ep->ask.of[i] && code)
        return code == CMA_SAME ? 1 : -(int)code;
    return cma_reaches(ep) ? 0 : -ECONNRESET;
}

int cma_ask_take(cma_ep *ep)
{
    uint32_t free = ~(ep->ask.busy | ((UINT32_C(1) << CMA_BULKS) - 1));
    if (!free)
        return -1;
    int i = __builtin_ctz(free);
    ep->ask.busy |= UINT32_C(1) << i;
    return i;
}

void cma_ask_give(cma_ep *ep, uint32_t i) { ep->ask.busy &= ~(UINT32_C(1) << i); }

/* ---- copies through mapped files ---- */

static void list(cma_rail *rail, cma_job *job)
{
    job->next = rail->asking;
    rail->asking = job;
}

void cma_asking_copied(cma_rail *rail, cma_job *job)
{
    job->copied = 1;
    list(rail, job);
}

/* Its owner copies, by addresses. */
static void by_ring(cma_rail *rail, cma_job *job)
{
    cma_ask_give(job->ep, (uint32_t)job->ask);
    job->ask = -1;
    cma_ring_add(rail, job, 0);
}

void cma_asking_add(cma_rail *rail, cma_job *job, int inlined)
{
    cma_ep *ep = job->ep;
    uint32_t n = cma_view_ranges(ep, job->write, job->n, job->seg, cma_question_of(ep, (uint32_t)job->ask)->range);
    if (!n) {
        by_ring(rail, job);
        return;
    }
    cma_ask(ep, (uint32_t)job->ask, n, job->write);
    if (job->write) {
        list(rail, job);
    } else if (!inlined) {
        cma_pool_add(rail, job);
    } else {
        int err = cma_copy(ep, 0, 0, job->n, job->seg);
        if (err == EFAULT) /* no longer mapped */
            by_ring(rail, job);
        else if (err)
            cma_job_end(rail, job, err);
        else
            cma_asking_copied(rail, job);
    }
}

/* The peer has other memory there, or none. */
static void stale(cma_rail *rail, cma_job *job, uint32_t place)
{
    if (place < job->n) {
        cma_view *v = cma_view_take(&job->ep->views, job->seg[place].rkey);
        if (v && cma_view_put(&job->ep->views, v))
            cma_mapper_add(rail, &v->end);
    }
    by_ring(rail, job);
}

static void answered(cma_rail *rail, cma_job *job, int rc, uint32_t place)
{
    if (atomic_load(&job->ep->closing)) { /* the pool is being drained */
        cma_job_end(rail, job, ECANCELED);
    } else if (rc == -ECONNRESET) {
        cma_job_end(rail, job, ECONNRESET);
    } else if (rc < 0) {
        stale(rail, job, place);
    } else if (job->copied) {
        cma_job_end(rail, job, 0);
    } else {
        cma_ask_give(job->ep, (uint32_t)job->ask);
        job->ask = -1;
        cma_pool_add(rail, job);
    }
}

void cma_asking_poll(cma_rail *rail)
{
    uint32_t place;
    for (cma_job **at = &rail->asking, *j; (j = *at);) {
        int rc = cma_answer(j->ep, (uint32_t)j->ask, &place);
        if (!rc) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        answered(rail, j, rc, place);
    }
}

int cma_asking_ready(const cma_rail *rail)
{
    uint32_t place;
    for (cma_job *j = rail->asking; j; j = j->next)
        if (cma_answer(j->ep, (uint32_t)j->ask, &place))
            return 1;
    return 0;
}

void cma_asking_cancel(cma_ep *ep)
{
    for (cma_job **at = &ep->rail->asking, *j; (j = *at);) {
        if (j->ep != ep) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        cma_job_end(ep->rail, j, ECANCELED);
    }
}
