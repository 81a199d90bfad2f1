/* Endpoints whose peers do nothing are not polled, and miss nothing. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>

#include "world.h"

enum { PAIRS = 40 };

/* Sends from b to a. sleeping: what the sender takes the receiver's flag for, if not 0. */
static void send_to(end *a, end *b, int wake, uint32_t sleeping)
{
    if (sleeping)
        atomic_store(&a->ep->shm->sleeping, sleeping);
    gr_rail_lock(&b->rail->base);
    CHECK(cma_ops.send(&b->rail->base, b->ep, "news", 5, NULL, wake, &ctx[2]) == 0);
    gr_rail_unlock(&b->rail->base);
    if (sleeping)
        atomic_store(&a->ep->shm->sleeping, CMA_DOZES);
}

static void post_recv(end *e, void *buf)
{
    gr_rail_lock(&e->rail->base);
    CHECK(cma_ops.recv(&e->rail->base, e->ep, buf, CMA_MSG, NULL, &ctx[1]) == 0);
    gr_rail_unlock(&e->rail->base);
}

/* Polls until all endpoints that may doze do. */
static void until_calm(end *a)
{
    for (uint64_t stop = limit(); a->rail->doze.npolled > 16; poll_end(a))
        CHECK(cma_now() < stop);
}

/* A message to a dozing endpoint is found by polls and by a thread that sleeps, with and without a wake, also from a peer that does not know
 * of dozing. A closed socket is found, and endpoints close while they doze. */
void dozes(void)
{
    static end a[PAIRS], b[PAIRS];
    char buf[CMA_MSG];
    a[0] = open_end(0);
    b[0] = open_end(0);
    for (int i = 1; i < PAIRS; i++) {
        a[i] = open_beside(&a[0]);
        b[i] = open_beside(&b[0]);
    }
    for (int i = 0; i < PAIRS; i++)
        join(&a[i], &b[i]);
    for (int app_polls = 0; app_polls < 2; app_polls++) {
        atomic_store(&a[0].rail->base.app_polls, app_polls);
        for (int how = 0; how < 4; how++) { /* with a wake, without, from an older peer, to a thread that sleeps */
            until_calm(&a[0]);
            int i = 0;
            while (!a[i].ep->doze.on)
                i++;
            post_recv(&a[i], buf);
            a[0].done = 0;
            if (how == 3)
                for (uint64_t stop = limit(); arm_end(&a[0]);)
                    CHECK(cma_now() < stop);
            send_to(&a[i], &b[i], how == 0, how == 2 ? CMA_SLEEPS : 0);
            if (how == 3) {
                struct pollfd f = {.fd = a[0].rail->base.wait_fd, .events = POLLIN};
                CHECK(poll(&f, 1, LIMIT_S * 1000) == 1);
                CHECK(arm_end(&a[0]) && !a[i].ep->doze.on);
            }
            wait_done(&a[0], 1);
            CHECK(a[0].err == 0 && !a[i].ep->doze.on && strcmp(buf, "news") == 0);
            poll_end(&b[0]);
        }
    }
    until_calm(&a[0]);
    int i = 0;
    while (!a[i].ep->doze.on)
        i++;
    CHECK(close_ep(&b[i]) == 0);
    for (uint64_t stop = limit(); !atomic_load(&a[i].ep->peer.gone); poll_end(&a[0]))
        CHECK(cma_now() < stop);
    b[i].ep = NULL;
    for (int k = PAIRS - 1; k >= 0; k--) {
        until_calm(&a[0]);
        if (k)
            close_beside(&a[k]);
    }
    for (int k = 1; k < PAIRS; k++)
        if (b[k].ep)
            close_beside(&b[k]);
    CHECK(a[0].rail->doze.npolled + a[0].rail->doze.dozing == 1);
    close_end(&a[0]);
    close_end(&b[0]);
}
