/* What a target that polls copies for its peers: pieces of their WRITEs, into regions of ours, by process_vm_readv. */
#include <errno.h>

#include "local.h"

void lc_favour_look(lc_rail *rail, lc_ep *ep)
{
    int helps = atomic_load_explicit(&rail->base.attended, memory_order_relaxed);
    if (ep->helps != helps)
        atomic_store_explicit(&ep->box->helps, (uint32_t)(ep->helps = helps), memory_order_relaxed);
    if (helps && atomic_load_explicit(&ep->box->offered, memory_order_relaxed) && ep->out && !ep->self && !atomic_load(&ep->closing))
        atomic_store(&rail->pool.favour, ep);
}

/* The peer's word, read once: what it changes meanwhile changes nothing. */
static int read_offer(const volatile lc_offer *o, uint64_t *key, struct iovec *here, struct iovec *there, uint32_t *n)
{
    uint64_t bytes = 0;
    *n = o->n;
    if (*n == 0 || *n > GR_MAX_IOV)
        return EPROTO;
    for (uint32_t i = 0; i < *n; i++) {
        uint64_t len = o->piece[i].len;
        if (len > LC_ALONE || (bytes += len) > LC_ALONE)
            return EMSGSIZE;
        key[i] = o->piece[i].key;
        here[i] = (struct iovec){ (void *)(uintptr_t)o->piece[i].to, len };
        there[i] = (struct iovec){ (void *)(uintptr_t)o->piece[i].from, len };
    }
    return 0;
}

static int copy(lc_ep *ep, uint32_t lane, const lc_offer *o)
{
    struct iovec here[GR_MAX_IOV], there[GR_MAX_IOV];
    uint64_t key[GR_MAX_IOV];
    uint32_t n;
    _Atomic uint64_t *turn = &ep->rail->pool.turn[lane];
    int err = read_offer(o, key, here, there, &n);
    if (err)
        return err;
    atomic_fetch_add(turn, 1); /* before the looks that follow, as whoever lets go of a region looks at it after what it changes */
    if (!lc_alive(ep))
        err = ESRCH;
    for (uint32_t i = 0; !err && i < n; i++)
        err = lc_allowed(ep->rail->table, key[i], (uint64_t)(uintptr_t)here[i].iov_base, here[i].iov_len);
    if (!err)
        err = lc_move(ep, 0, n, here, there);
    atomic_fetch_add(turn, 1);
    return err;
}

static int serve(lc_ep *ep, uint32_t lane)
{
    lc_box *box = ep->box;
    uint32_t offered = atomic_load(&box->offered) & ((1u << LC_OFFERS) - 1), bit = offered & -offered;
    if (!bit || !(atomic_fetch_and(&box->offered, ~bit) & bit)) /* taken back */
        return 0;
    lc_offer *o = &box->offer[__builtin_ctz(bit)];
    int err = copy(ep, lane, o);
    atomic_store(&o->ended, err ? -err : LC_COPIED); /* before the look at whether it sleeps */
    if (atomic_load(&ep->out->sleeping) && atomic_exchange(&ep->out->sleeping, 0))
        lc_ring(ep);
    return 1;
}

int lc_favour(lc_rail *rail)
{
    lc_pool *pool = &rail->pool;
    uint32_t lane;
    int did = 0;
    if (!atomic_load_explicit(&pool->favour, memory_order_relaxed) || !lc_lane_take(pool, &lane))
        return 0;
    pthread_mutex_lock(&pool->mu);
    lc_ep *ep = atomic_exchange(&pool->favour, NULL);
    if (ep)
        ep->jobs++;
    pthread_mutex_unlock(&pool->mu);
    if (ep) {
        did = serve(ep, lane);
        pthread_mutex_lock(&pool->mu);
        lc_pool_left(pool, ep, 1);
        pthread_mutex_unlock(&pool->mu);
    }
    lc_lane_give(pool, lane);
    return did;
}
