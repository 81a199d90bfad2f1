/* Endpoints whose peers do nothing doze: they are not polled one by one. Their peers ring for each message and request, and all dozing endpoints
 * are looked at once in a while, which needs no ring. A poll of 1,000 idle endpoints took 150 us, and each post polls. */
#define _GNU_SOURCE
#include <sys/epoll.h>

#include "cma.h"

enum {
    POLLED = 16,       /* so many endpoints are polled in any case: 1 us */
    RINGS = 16,
    RUNG_NS = 150000,    /* between looks for rings, a system call of 0.3 us: fewer than one of 100 posts of 1.2 us has it */
    ALL_NS = 20000000,   /* between looks at all endpoints: 50 to 150 us for 1,000 */
    CALM_NS = 200000000, /* without anything to do, before an endpoint dozes. A thread that sleeps looks each 250 ms at first */
};

void cma_doze_open(cma_ep *ep)
{
    LIST_INSERT_HEAD(&ep->rail->doze.polled, ep, doze.entry);
    ep->rail->doze.npolled++;
    ep->doze.active = 1;
}

void cma_doze_close(cma_ep *ep)
{
    cma_rouse(ep);
    LIST_REMOVE(ep, doze.entry);
    ep->rail->doze.npolled--;
}

void cma_rouse(cma_ep *ep)
{
    if (!ep->doze.on)
        return;
    ep->doze.on = 0;
    ep->rail->doze.dozing--;
    cma_doze_open(ep);
}

/* Whether there is something to do. */
static int has_work(const cma_ep *ep)
{
    return ep->err || ep->left >= 0 || atomic_load(&ep->shm->put) != ep->in.taken || (atomic_load(&ep->shm->offered) & ((1u << CMA_OFFERS) - 1)) || cma_requested(ep) ||
           atomic_load(&ep->looked.open);
}

static void doze(cma_ep *ep)
{
    atomic_store(&ep->shm->assists, (uint32_t)(ep->assists = 0));
    atomic_store(&ep->shm->sleeping, CMA_DOZES); /* before the look */
    if (has_work(ep))
        return;
    LIST_REMOVE(ep, doze.entry);
    ep->doze.on = 1;
    ep->rail->doze.npolled--;
    ep->rail->doze.dozing++;
}

static void look_at_all(cma_rail *rail, uint64_t now)
{
    for (cma_ep *ep = rail->eps; ep; ep = ep->next) {
        if (ep->doze.on) {
            if (has_work(ep))
                cma_rouse(ep);
            continue;
        }
        cma_ep_settle(ep, 0);
        if (ep->doze.active || !ep->peer.shm || ep->posted || ep->doze.taken != ep->in.taken || has_work(ep)) {
            ep->doze.active = 0;
            ep->doze.seen = now;
            ep->doze.taken = ep->in.taken;
        } else if (now - ep->doze.seen >= CALM_NS && rail->doze.npolled > POLLED) {
            doze(ep);
        }
    }
}

/* The thread that sleeps on the rail needs the rings, too. None does while the application polls. */
static void look_for_rings(cma_rail *rail)
{
    struct epoll_event ev[RINGS];
    int n = epoll_wait(rail->base.wait_fd, ev, RINGS, 0), take = atomic_load(&rail->base.app_polls);
    for (int i = 0; i < n; i++) {
        if (!ev[i].data.ptr)
            continue;
        cma_rouse(ev[i].data.ptr);
        if (take)
            cma_drain_doorbell(ev[i].data.ptr);
    }
}

void cma_doze_poll(cma_rail *rail)
{
    if (rail->open_eps <= POLLED && !rail->doze.dozing)
        return;
    uint64_t now = cma_now();
    if (rail->doze.dozing && now - rail->doze.rung_ns >= RUNG_NS) {
        rail->doze.rung_ns = now;
        look_for_rings(rail);
    }
    if (now - rail->doze.all_ns >= ALL_NS) {
        rail->doze.all_ns = now;
        look_at_all(rail, now);
    }
}
