/* Operations, from post to completion. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fab.h"

uint64_t fab_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

fab_op *fab_op_new(fab_dom *dom, int kind)
{
    fab_op *op = calloc(1, sizeof(*op));
    if (!op)
        return NULL;
    op->kind = kind;
    op->next = dom->ops;
    if (op->next)
        op->next->prev = op;
    dom->ops = op;
    return op;
}

static fab_op **bucket(fab_dom *dom, const void *ctx) { return &dom->contexts[((uintptr_t)ctx * UINT64_C(0x9e3779b97f4a7c15)) >> 54]; }

static uint64_t scribble(const fab_op *op, uint64_t i) { return ((uintptr_t)op ^ 0x5c5c5c5c5c5c5c5c) + i * UINT64_C(0x0101010101010101); }

/* With the switch context2, takes over the context: overwrites its bytes and enters the operation in dom->contexts. */
bool fab_op_context(fab_dom *dom, fab_op *op, void *ctx)
{
    uint64_t words[8];
    op->ctx = ctx;
    if (!SW(dom->kind, context2))
        return true;
    if (!ctx) {
        fab_breach(dom->kind, "context_null", "an operation without a context");
        return false;
    }
    for (fab_op *o = *bucket(dom, ctx); o; o = o->ctx_next) {
        if (o->ctx == ctx) {
            fab_breach(dom->kind, "context_reused", "context %p belongs to another operation in flight", ctx);
            return false;
        }
    }
    for (uint64_t i = 0; i < 8; i++)
        words[i] = scribble(op, i);
    memcpy(ctx, words, sizeof(words));
    op->owns_ctx = true;
    op->ctx_next = *bucket(dom, ctx);
    *bucket(dom, ctx) = op;
    return true;
}

static void release_context(fab_dom *dom, fab_op *op)
{
    fab_op **at = bucket(dom, op->ctx);
    if (!op->owns_ctx)
        return;
    while (*at != op)
        at = &(*at)->ctx_next;
    *at = op->ctx_next;
    op->owns_ctx = false;
}

static void check_context(fab_dom *dom, fab_op *op)
{
    uint64_t words[8];
    if (!op->owns_ctx)
        return;
    memcpy(words, op->ctx, sizeof(words));
    for (uint64_t i = 0; i < 8; i++) {
        if (words[i] != scribble(op, i)) {
            fab_breach(dom->kind, "context_touched", "word %d of context %p changed in flight", (int)i, op->ctx);
            return;
        }
    }
}

void fab_op_hold(fab_dom *dom, fab_op *op)
{
    op->held = true;
    op->waiting = false;
    op->age = 0;
    op->held_next = NULL;
    op->held_prev = dom->held_last;
    if (dom->held_last)
        dom->held_last->held_next = op;
    else
        dom->held = op;
    dom->held_last = op;
    dom->nheld++;
}

void fab_op_unhold(fab_dom *dom, fab_op *op)
{
    if (!op->held)
        return;
    op->held = false;
    if (op->held_prev)
        op->held_prev->held_next = op->held_next;
    else
        dom->held = op->held_next;
    if (op->held_next)
        op->held_next->held_prev = op->held_prev;
    else
        dom->held_last = op->held_prev;
    dom->nheld--;
}

/* Returns the context and the buffers to the caller. */
static void release(fab_dom *dom, fab_op *op)
{
    release_context(dom, op);
    for (size_t i = 0; i < op->niov; i++) {
        if (op->mr[i])
            op->mr[i]->users--;
        op->mr[i] = NULL;
    }
}

static void detach(fab_dom *dom, fab_op *op)
{
    fab_op_unhold(dom, op);
    release(dom, op);
    if (op->peer) {
        op->peer->users--;
        fab_peer_put(dom, op->peer);
        op->peer = NULL;
    }
}

void fab_op_free(fab_dom *dom, fab_op *op)
{
    detach(dom, op);
    if (op->prev)
        op->prev->next = op->next;
    else
        dom->ops = op->next;
    if (op->next)
        op->next->prev = op->prev;
    free(op->copy);
    free(op);
}

static uint64_t flags_of(const fab_op *op)
{
    static const uint64_t flags[] = {
        [FAB_WRITE] = FI_RMA | FI_WRITE,
        [FAB_READ] = FI_RMA | FI_READ,
        [FAB_SEND] = FI_MSG | FI_SEND,
        [FAB_RECV] = FI_MSG | FI_RECV,
    };
    return flags[op->kind];
}

/* Reports the completion and frees the operation. A WRITE that completes early stays held until its data is written. */
void fab_op_done(fab_dom *dom, fab_op *op, int err, int prov_err, size_t len)
{
    fab_entry e = {.ctx = op->ctx, .flags = flags_of(op), .len = len, .err = err, .prov_err = prov_err};
    if (op->ep && !op->silent) {
        check_context(dom, op);
        if (op->kind == FAB_RECV)
            op->ep->receiving--;
        else
            op->ep->sending--;
        fab_cq_add(op->cq, &e);
    }
    if (op->kind == FAB_WRITE && op->held && !err && op->copy && !op->silent) {
        op->silent = true;
        release(dom, op);
        return;
    }
    fab_op_free(dom, op);
}

void fab_op_fail(fab_dom *dom, fab_op *op, int what)
{
    static const struct {
        int efa, efa_prov, cxi, cxi_prov;
    } say[] = {
        [FAB_BAD_KEY] = {FI_EINVAL, 7, FI_EIO, 11},      [FAB_UNKNOWN] = {FI_ENOTCONN, 14, FI_ENOTCONN, 27},
        [FAB_RNR] = {FI_ENORX, 10, FI_EIO, 21},          [FAB_GONE] = {FI_ECONNABORTED, 13, FI_EHOSTUNREACH, 35},
        [FAB_TRUNCATED] = {FI_ETRUNC, 11, FI_ETRUNC, 0},
    };
    if (dom->kind == FAB_CXI)
        fab_op_done(dom, op, say[what].cxi, say[what].cxi_prov, 0);
    else
        fab_op_done(dom, op, say[what].efa, say[what].efa_prov, 0);
}

/* Operations in the real provider are only detached, because its completions still name them. The others are freed. */
void fab_op_drop(fab_ep *ep)
{
    for (fab_op *op = ep->dom->ops, *next; op; op = next) {
        next = op->next;
        if (op->ep != ep)
            continue;
        if (op->held || op->kind == FAB_RECV) {
            fab_op_free(ep->dom, op);
            continue;
        }
        detach(ep->dom, op);
        op->ep = NULL;
    }
}
