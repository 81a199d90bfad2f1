/* Endpoints: an id as address, one peer, and posted receives. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

fake_ep *fake_ep_find(fake_fabric *fabric, uint64_t id)
{
    fake_ep *ep = fabric->eps[id % FAKE_BUCKETS];
    while (ep && ep->id != id)
        ep = ep->next;
    return ep;
}

fake_ep *fake_ep_open(fake_rail *rail)
{
    fake_fabric *fabric = rail->fabric;
    fake_ep *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return NULL;
    pthread_mutex_lock(&fabric->mu);
    ep->rail = rail;
    ep->id = ++fabric->last_ep;
    ep->next = fabric->eps[ep->id % FAKE_BUCKETS];
    fabric->eps[ep->id % FAKE_BUCKETS] = ep;
    rail->open_eps++;
    pthread_mutex_unlock(&fabric->mu);
    return ep;
}

/* The address that peers connect to; it never changes. */
uint64_t fake_ep_id(fake_ep *ep) { return ep->rail->shared ? ep->rail->shared->id : ep->id; }

int fake_ep_connect(fake_ep *ep, uint64_t peer, const fake_proof *proof)
{
    int rc = 0;
    pthread_mutex_lock(&ep->rail->fabric->mu);
    if (ep->peer) {
        rc = -EISCONN;
    } else {
        ep->peer = peer;
        ep->proof = proof ? *proof : (fake_proof){0};
        fake_ep *to = fake_ep_find(ep->rail->fabric, peer);
        if (to && ep->rail->config.secured) { /* operations may wait for it */
            fake_signal(ep->rail);
            fake_signal(to->rail);
        }
    }
    pthread_mutex_unlock(&ep->rail->fabric->mu);
    return rc;
}

int fake_ep_proved(const fake_ep *a, const fake_ep *b)
{
    if (!a->peer || !b->peer)
        return 0;
    return a->peer == b->id && b->peer == a->id && a->proof.initiator != b->proof.initiator && a->proof.salt == b->proof.salt &&
                   !memcmp(a->proof.secret, b->proof.secret, sizeof(a->proof.secret))
               ? 1
               : -1;
}

/* Cancels operations of ep, and operations of other endpoints towards ep. With late_landing, writes of ep stay in
 * flight: their initiator gets a cancelled completion, and the bytes land when the target polls. */
static void cancel_ops(fake_ep *ep)
{
    fake_fabric *fabric = ep->rail->fabric;
    const int late = ep->rail->script.late_landing;
    for (fake_op *op = fabric->head, *next; op; op = next) {
        next = op->next;
        if (op->target == ep->id) {
            fake_finish(fabric, op, ECANCELED);
        } else if (op->ep == ep) {
            if (late && op->kind == GR_WRITE && !op->bulk && !op->err && fake_snapshot(op) == 0) {
                if (op->ctx)
                    fake_complete(ep->rail, op->ctx, ECANCELED, 0);
                op->ctx = NULL;
                op->ep = NULL;
            } else {
                fake_finish(fabric, op, ECANCELED);
            }
        }
    }
}

void fake_ep_close(fake_ep *ep)
{
    fake_rail *rail = ep->rail;
    fake_fabric *fabric = rail->fabric;
    gr_rail_lock(&rail->base);
    fake_flushed(rail);
    pthread_mutex_lock(&fabric->mu);
    cancel_ops(ep);
    for (fake_recv *r = ep->rx_head, *next; r; r = next) {
        next = r->next;
        fake_complete(rail, r->ctx, ECANCELED, 0);
        free(r);
    }
    fake_ep **at = &fabric->eps[ep->id % FAKE_BUCKETS];
    while (*at != ep)
        at = &(*at)->next;
    *at = ep->next;
    rail->open_eps--;
    pthread_mutex_unlock(&fabric->mu);
    gr_rail_unlock(&rail->base);
    free(ep);
}

/* Called with the rail locked. Receives end without a completion. */
void fake_shared_close(gr_rail *base)
{
    fake_rail *rail = (fake_rail *)base;
    fake_ep *shared = rail->shared;
    if (!shared)
        return;
    pthread_mutex_lock(&rail->fabric->mu);
    cancel_ops(shared);
    for (fake_recv *r = shared->rx_head, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    fake_ep **at = &rail->fabric->eps[shared->id % FAKE_BUCKETS];
    while (*at != shared)
        at = &(*at)->next;
    *at = shared->next;
    rail->shared = NULL;
    rail->base.shared_ep = NULL;
    pthread_mutex_unlock(&rail->fabric->mu);
    free(shared);
}
