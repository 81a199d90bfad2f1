/* Completions that a provider has and poll has not handed out yet: a ring that never runs over, since nothing is posted while
 * as many operations as it has room for wait for their completion to be handed out. Guarded by the rail's lock; all zero is an
 * empty one.
 */
#ifndef GORAIL_READY_H
#define GORAIL_READY_H

#include <errno.h>
#include <stdlib.h>

#include "gr_provider.h"

enum { GR_READY_LEAST = 1024 };

typedef struct gr_ready {
    gr_comp *comp;
    uint32_t head, tail, size; /* numbers that wrap; size is 0 or a power of two */
    uint32_t owed;             /* operations posted whose completion was not handed out, <= size */
} gr_ready;

/* Room for at least so many operations. 0, or -ENOMEM: it is as it was. */
static inline int gr_ready_room(gr_ready *r, uint32_t want)
{
    uint32_t size = r->size ? r->size : GR_READY_LEAST, n = 0;
    while (size < want)
        size *= 2;
    if (size == r->size)
        return 0;
    gr_comp *comp = calloc(size, sizeof(*comp));
    if (!comp)
        return -ENOMEM;
    while (r->head != r->tail)
        comp[n++] = r->comp[r->head++ % r->size];
    free(r->comp);
    *r = (gr_ready){ .comp = comp, .tail = n, .size = size, .owed = r->owed };
    return 0;
}

/* Nothing more may be posted before some is handed out. */
static inline int gr_ready_full(const gr_ready *r) { return r->owed >= r->size; }
static inline int gr_ready_empty(const gr_ready *r) { return r->head == r->tail; }

/* An operation was posted: a completion of it will come. */
static inline void gr_ready_owe(gr_ready *r) { r->owed++; }
static inline void gr_ready_put(gr_ready *r, gr_comp c) { r->comp[r->tail++ % r->size] = c; }

/* Hands out up to max; how many. */
static inline int gr_ready_take(gr_ready *r, gr_comp *out, int max)
{
    int n = 0;
    while (n < max && r->head != r->tail)
        out[n++] = r->comp[r->head++ % r->size];
    r->owed -= (uint32_t)n;
    return n;
}

static inline void gr_ready_free(gr_ready *r)
{
    free(r->comp);
    *r = (gr_ready){ 0 };
}

#endif
