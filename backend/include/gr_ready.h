/* Completions that a provider holds until poll returns them: a ring that never overflows. No operation is posted while as
 * many operations as the ring has room for wait for poll to return their completions. Guarded by the rail's lock. An
 * all-zero struct is an empty ring.
 */
#ifndef GORAIL_READY_H
#define GORAIL_READY_H

#include <errno.h>
#include <stdlib.h>

#include "gr_failpoint.h"
#include "gr_provider.h"

enum { GR_READY_LEAST = 1024 };

typedef struct gr_ready {
    gr_comp *comp;
    uint32_t head, tail, size; /* free-running counters; size is 0 or a power of two */
    uint32_t owed;             /* posted operations whose completion poll has not returned; <= size */
} gr_ready;

/* Makes room for at least `want` operations. 0, or -ENOMEM with the ring unchanged. */
static inline int gr_ready_room(gr_ready *r, uint32_t want)
{
    uint32_t size = r->size ? r->size : GR_READY_LEAST, n = 0;
    while (size < want)
        size *= 2;
    if (size == r->size)
        return 0;
    gr_comp *comp = GR_ALLOC(ready_ring, calloc(size, sizeof(*comp)));
    if (!comp)
        return -ENOMEM;
    while (r->head != r->tail)
        comp[n++] = r->comp[r->head++ % r->size];
    free(r->comp);
    *r = (gr_ready){.comp = comp, .tail = n, .size = size, .owed = r->owed};
    return 0;
}

/* Whether posts must wait until poll has returned completions. */
static inline int gr_ready_full(const gr_ready *r) { return r->owed >= r->size; }
static inline int gr_ready_empty(const gr_ready *r) { return r->head == r->tail; }

/* Counts a posted operation: its completion will come. */
static inline void gr_ready_owe(gr_ready *r) { r->owed++; }
static inline void gr_ready_put(gr_ready *r, gr_comp c) { r->comp[r->tail++ % r->size] = c; }

/* Takes up to max completions. Returns their number. */
static inline int gr_ready_take(gr_ready *r, gr_comp *out, int max)
{
    int n = 0;
    while (n < max && r->head != r->tail)
        out[n++] = r->comp[r->head++ % r->size];
    if (r->head == r->tail) /* so that few completions at a time touch few of its pages: the ring of 1,000 endpoints has 12 MiB */
        r->head = r->tail = 0;
    r->owed -= (uint32_t)n;
    return n;
}

static inline void gr_ready_free(gr_ready *r)
{
    free(r->comp);
    *r = (gr_ready){0};
}

#endif
