/* Doorbells wake a sleeping thread. */
#define _GNU_SOURCE
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

static void post_recv(end *e, void *buf)
{
    gr_rail_lock(&e->rail->base);
    CHECK(cma_ops.recv(&e->rail->base, e->ep, buf, CMA_MSG, NULL, &ctx[1]) == 0);
    gr_rail_unlock(&e->rail->base);
}

static void send_msg(end *e)
{
    gr_rail_lock(&e->rail->base);
    CHECK(cma_ops.send(&e->rail->base, e->ep, "news", 5, NULL, 1, &ctx[2]) == 0);
    gr_rail_unlock(&e->rail->base);
}

enum { RINGS = 100 };

/* Sleeps before each message and reports its arrival. Only a doorbell wakes it. */
static void sleeps(pair *p)
{
    char buf[CMA_MSG];
    for (int i = 0; i < RINGS; i++) {
        p->me.done = 0;
        post_recv(&p->me, buf);
        pipe_put(p, 's');
        for (uint64_t stop = limit(); !p->me.done; poll_end(&p->me)) {
            struct pollfd f = {.fd = p->me.rail->base.wait_fd, .events = POLLIN};
            CHECK(cma_now() < stop);
            if (!arm_end(&p->me))
                CHECK(poll(&f, 1, LIMIT_S * 1000) == 1);
        }
        CHECK(p->me.err == 0);
        pipe_put(p, 'g');
    }
}

/* Every doorbell wakes the peer, and every copy succeeds. */
void doorbells(void)
{
    pair p = split(0, sleeps);
    for (int i = 0; i < RINGS; i++) {
        CHECK(pipe_get(&p) == 's');
        CHECK(rma(&p.me, GR_WRITE, &p.peer, 0, 0, 256 << 10) == 0);
        send_msg(&p.me);
        wait_done(&p.me, 2 * (i + 1));
        CHECK(pipe_get(&p) == 'g');
    }
    finish(&p);
}

/* A doorbell rung before the peer has accepted our connection is sent after the accept. */
void early_ring(void)
{
    end a = open_end(0), b = open_end(0);
    int s[2], t[2];
    char buf[CMA_MSG];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, t) == 0);
    connect_end(&a, getpid(), b.fd, (int[2]){s[0], t[1]});
    connect_end(&b, getpid(), a.fd, (int[2]){-1, s[1]});
    atomic_store(&a.ep->shm->sleeping, 1);
    send_msg(&b);
    CHECK(!atomic_load(&a.ep->shm->sleeping) && atomic_load(&b.ep->ring_pending));
    CHECK(recv(a.ep->peer.sock, buf, sizeof(buf), MSG_DONTWAIT | MSG_PEEK) < 0);
    cma_ep_accepted(b.ep, t[0], 0);
    CHECK(recv(a.ep->peer.sock, buf, sizeof(buf), MSG_DONTWAIT | MSG_PEEK) == 1 && !atomic_load(&b.ep->ring_pending));
    close_end(&a);
    close_end(&b);
}
