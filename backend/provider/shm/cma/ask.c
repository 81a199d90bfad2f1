/* An importer asks the owner whether memory is still what it has mapped. The question goes out with the post. A READ copies meanwhile and is
 * done with the answer. A WRITE waits: what was behind the address may be another's memory by now. */
#include <errno.h>

#include "cma.h"

_Static_assert(CMA_ASKS == 32 && CMA_BULKS < CMA_ASKS, "a bit each, and some for files");

cma_question *cma_question_of(cma_ep *ep, uint32_t i) { return &ep->peer.shm->question[i]; }

void cma_ask(cma_ep *ep, uint32_t i, uint32_t n, int write)
{
    cma_question *q = cma_question_of(ep, i);
    if (!++ep->ask.seq)
        ep->ask.seq = 1;
    q->seq = ep->ask.of[i] = ep->ask.seq;
    q->n = n;
    q->write = write != 0;
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
    return atomic_load(&ep->peer.shm->closed) || !cma_alive(ep) ? -ECONNRESET : 0;
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
