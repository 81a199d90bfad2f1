//go:build gorail_mem

// Stand-in for the C core under the in-memory engine.
#include "mem_core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct gr_core {
    pthread_mutex_t mu;
    gr_notif *head;
    gr_notif **tail;
    uint64_t crossed[GR_CROSS_COUNT];
};

static int forked;
static void in_child(void) { forked = 1; }
__attribute__((constructor)) static void watch_fork(void) { pthread_atfork(NULL, NULL, in_child); }

int gr_forked(void) { return forked; }

gr_core *mem_core_new(void)
{
    gr_core *c = calloc(1, sizeof(*c));
    pthread_mutex_init(&c->mu, NULL);
    c->tail = &c->head;
    return c;
}

void mem_core_free(gr_core *c)
{
    gr_notif_free(c, gr_notif_take(c));
    free(c);
}

void mem_core_push(gr_core *c, const char *name, uint64_t nlen, const char *msg, uint64_t mlen)
{
    gr_notif *n = calloc(1, sizeof(*n) + nlen + mlen + 1);
    char *p = (char *)(n + 1);
    memcpy(p, name, nlen);
    if (mlen)
        memcpy(p + nlen, msg, mlen);
    n->name = p;
    n->name_len = nlen;
    n->msg = p + nlen;
    n->msg_len = mlen;
    pthread_mutex_lock(&c->mu);
    *c->tail = n;
    c->tail = &n->next;
    pthread_mutex_unlock(&c->mu);
}

int gr_check(gr_core *c, gr_xfer *slot, uint64_t handle)
{
    (void)c;
    (void)handle;
    return *(int *)slot;
}

gr_notif *gr_notif_take(gr_core *c)
{
    pthread_mutex_lock(&c->mu);
    gr_notif *n = c->head;
    c->head = NULL;
    c->tail = &c->head;
    pthread_mutex_unlock(&c->mu);
    return n;
}

void gr_notif_free(gr_core *c, gr_notif *n)
{
    (void)c;
    while (n) {
        gr_notif *next = n->next;
        free(n);
        n = next;
    }
}

void gr_crossed(gr_core *c, int which) { __atomic_add_fetch(&c->crossed[which], 1, __ATOMIC_RELAXED); }
