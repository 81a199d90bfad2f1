/* Fabrics and rails: opening and closing, scripts, signals. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake.h"

/* splitmix64 */
uint64_t fake_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

fake_fabric *fake_fabric_new(uint64_t seed)
{
    fake_fabric *fabric = calloc(1, sizeof(*fabric));
    if (!fabric)
        return NULL;
    pthread_mutex_init(&fabric->mu, NULL);
    fabric->rng = seed;
    return fabric;
}

int fake_fabric_free(fake_fabric *fabric)
{
    pthread_mutex_lock(&fabric->mu);
    uint32_t rails = fabric->rails;
    pthread_mutex_unlock(&fabric->mu);
    if (rails)
        return -EBUSY;
    while (fabric->head)
        fake_finish(fabric, fabric->head, ECANCELED);
    pthread_mutex_destroy(&fabric->mu);
    free(fabric);
    return 0;
}

fake_rail *fake_rail_open(fake_fabric *fabric, const fake_config *config)
{
    fake_rail *rail = calloc(1, sizeof(*rail));
    if (!rail)
        return NULL;
    gr_rail_init(&rail->base, &fake_ops);
    rail->base.bulk = &fake_bulk_ops;
    rail->fabric = fabric;
    rail->config = *config;
    if (!config->no_wait_fd)
        rail->base.wait_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    rail->base.worker = config->worker;
    rail->base.limit.iov_limit = config->iov_limit;
    rail->base.limit.tx_depth = config->tx_depth;
    rail->base.limit.rx_depth = config->rx_depth;
    rail->base.limit.max_msg = config->max_msg;
    rail->base.limit.msg_size = config->msg_size;
    rail->base.limit.window_min = config->window_min;
    rail->base.is.ordered = config->ordered;
    rail->base.is.chained = config->chained;
    rail->base.is.by_processor = config->by_processor;
    pthread_mutex_lock(&fabric->mu);
    rail->own_key = fake_random(&fabric->rng);
    rail->send_rng = rail->own_key;
    fabric->rails++;
    pthread_mutex_unlock(&fabric->mu);
    if (config->shared) {
        rail->base.shared_ep = rail->shared = fake_ep_open(rail);
        rail->open_eps = 0; /* does not count the rail's own endpoint */
    }
    return rail;
}

int fake_rail_close(fake_rail *rail)
{
    fake_fabric *fabric = rail->fabric;
    pthread_mutex_lock(&fabric->mu);
    if (rail->open_eps || rail->open_mrs || atomic_load(&rail->open_ops)) {
        pthread_mutex_unlock(&fabric->mu);
        return -EBUSY;
    }
    fabric->rails--;
    pthread_mutex_unlock(&fabric->mu);
    fake_shared_close(&rail->base);
    for (fake_comp *c = rail->cq_head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    if (rail->base.wait_fd >= 0)
        close(rail->base.wait_fd);
    pthread_mutex_destroy(&rail->base.mu);
    free(rail);
    return 0;
}

void fake_signal(fake_rail *rail)
{
    const uint64_t one = 1;
    if (rail->base.wait_fd >= 0 && write(rail->base.wait_fd, &one, sizeof(one)) < 0)
        return; /* full: readable anyway */
}

void fake_complete(fake_rail *rail, gr_ctx *ctx, int err, uint64_t len)
{
    fake_comp *c = malloc(sizeof(*c));
    if (!c)
        abort();
    *c = (fake_comp){.c = {.ctx = ctx, .err = err, .prov_err = err, .len = len}};
    if (rail->cq_tail)
        rail->cq_tail->next = c;
    else
        rail->cq_head = c;
    rail->cq_tail = c;
    rail->count.failed += err != 0;
    fake_signal(rail);
}

void fake_rail_script(fake_rail *rail, const fake_script *script)
{
    pthread_mutex_lock(&rail->fabric->mu);
    rail->script = *script;
    rail->rng = script->seed;
    rail->posted = 0;
    fake_signal(rail);
    pthread_mutex_unlock(&rail->fabric->mu);
}

/* Signals both sides of all operations in the fabric. A spurious wake-up is harmless. */
static void signal_peers(fake_rail *rail)
{
    fake_signal(rail);
    for (fake_op *op = rail->fabric->head; op; op = op->next) {
        fake_ep *target = fake_ep_find(rail->fabric, op->target);
        if (op->ep)
            fake_signal(op->ep->rail);
        if (target)
            fake_signal(target->rail);
    }
}

void fake_rail_block(fake_rail *rail, int on) { atomic_store(&rail->blocked, on); }

void fake_rail_stall(fake_rail *rail, int on)
{
    pthread_mutex_lock(&rail->fabric->mu);
    rail->stalled = on != 0;
    signal_peers(rail);
    pthread_mutex_unlock(&rail->fabric->mu);
}

/* Link loss: operations in flight over this rail, from either side, fail, and nothing of them lands. An ordered
 * endpoint stays broken. */
void fake_rail_down(fake_rail *rail, int err)
{
    fake_fabric *fabric = rail->fabric;
    pthread_mutex_lock(&fabric->mu);
    rail->down_errno = err;
    for (fake_op *op = fabric->head, *next; err && op; op = next) {
        fake_ep *target = fake_ep_find(fabric, op->target);
        next = op->next;
        if ((op->ep && op->ep->rail == rail) || (target && target->rail == rail)) {
            fake_lost(op);
            fake_finish(fabric, op, err);
        }
    }
    signal_peers(rail);
    pthread_mutex_unlock(&fabric->mu);
}

void fake_rail_counters(fake_rail *rail, fake_counters *out)
{
    pthread_mutex_lock(&rail->fabric->mu);
    *out = rail->count;
    pthread_mutex_unlock(&rail->fabric->mu);
}
