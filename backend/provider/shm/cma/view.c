/* The list of an endpoint's views. A thread that copies counts as a user of its view, so the mapping stays until its copy is over. */
#include <stdlib.h>

#include "gr_failpoint.h"
#include "view.h"

static cma_view **view_find(cma_views *vs, uint64_t key)
{
    cma_view **at = vs->list ? &vs->list[(uint32_t)key % CMA_VIEWS] : &vs->none;
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

static int usable(const cma_view *v, int write) { return v && atomic_load(&v->state) == CMA_VIEW_READY && (v->writable || !write); }

void cma_views_open(cma_views *vs) { pthread_mutex_init(&vs->mu, NULL); }
void cma_views_close(cma_views *vs)
{
    free(vs->list);
    vs->list = NULL;
    pthread_mutex_destroy(&vs->mu);
}

int cma_view_usable(cma_views *vs, uint64_t key, int write)
{
    pthread_mutex_lock(&vs->mu);
    int is = usable(*view_find(vs, key), write);
    pthread_mutex_unlock(&vs->mu);
    return is;
}

int cma_view_add(cma_views *vs, cma_view *v)
{
    pthread_mutex_lock(&vs->mu);
    if (!vs->list)
        vs->list = GR_ALLOC(cma_views, calloc(CMA_VIEWS, sizeof(*vs->list)));
    int room = vs->list && vs->n < CMA_VIEWS;
    if (room) {
        cma_view **at = &vs->list[(uint32_t)v->key % CMA_VIEWS];
        v->users = 1;
        v->next = *at;
        *at = v; /* limit:shm_views */
        vs->n++;
    }
    pthread_mutex_unlock(&vs->mu);
    return room;
}

cma_view *cma_view_get(cma_views *vs, uint64_t key, int write, uint64_t addr, uint64_t len)
{
    pthread_mutex_lock(&vs->mu);
    cma_view *v = *view_find(vs, key);
    if (!usable(v, write) || addr < v->base || addr - v->base > v->len || len > v->len - (addr - v->base))
        v = NULL;
    else
        v->users++;
    pthread_mutex_unlock(&vs->mu);
    return v;
}

int cma_view_range(cma_views *vs, uint64_t key, int write, uint64_t addr, uint64_t len, cma_range *out)
{
    pthread_mutex_lock(&vs->mu);
    const cma_view *v = *view_find(vs, key);
    int is = usable(v, write) && addr >= v->base && addr - v->base <= v->len && len <= v->len - (addr - v->base);
    if (is)
        *out = (cma_range){key, addr, len, v->dev, v->inode, v->offset + (addr - v->base)};
    pthread_mutex_unlock(&vs->mu);
    return is;
}

int cma_view_put(cma_views *vs, cma_view *v)
{
    pthread_mutex_lock(&vs->mu);
    int last = --v->users == 0;
    pthread_mutex_unlock(&vs->mu);
    return last;
}

void cma_view_fail(cma_views *vs, uint64_t key)
{
    pthread_mutex_lock(&vs->mu);
    cma_view *v = *view_find(vs, key);
    int ready = CMA_VIEW_READY;
    if (v)
        atomic_compare_exchange_strong(&v->state, &ready, CMA_VIEW_FAILED);
    pthread_mutex_unlock(&vs->mu);
}

/* With mu. */
static cma_view *view_take(cma_views *vs, cma_view **at)
{
    cma_view *v = *at;
    if (v) {
        *at = v->next;
        vs->n--;
    }
    return v;
}

cma_view *cma_view_take(cma_views *vs, uint64_t key)
{
    pthread_mutex_lock(&vs->mu);
    cma_view *v = view_take(vs, view_find(vs, key));
    pthread_mutex_unlock(&vs->mu);
    return v;
}

cma_view *cma_view_take_any(cma_views *vs)
{
    cma_view *v = NULL;
    pthread_mutex_lock(&vs->mu);
    for (uint32_t i = 0; vs->n && !v; i++)
        v = view_take(vs, &vs->list[i]);
    pthread_mutex_unlock(&vs->mu);
    return v;
}

int cma_view_known(cma_views *vs, uint64_t key, uint64_t now, cma_view **due)
{
    pthread_mutex_lock(&vs->mu);
    cma_view **at = view_find(vs, key);
    int known = *at != NULL, again = known && atomic_load(&(*at)->state) == CMA_VIEW_FAILED && (*at)->retry_ns <= now;
    *due = again ? view_take(vs, at) : NULL;
    pthread_mutex_unlock(&vs->mu);
    return known && !again;
}
