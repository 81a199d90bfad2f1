/* Two connections become one. */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

/* Sleeps until the other end rings. */
static void rung(end *e, end *by)
{
    struct pollfd f = {.fd = e->rail->base.wait_fd, .events = POLLIN};
    for (uint64_t stop = limit(); arm_end(e); poll_end(e))
        CHECK(cma_now() < stop);
    CHECK(poll(&f, 1, 0) == 0);
    cma_ring_asleep(by->ep);
    CHECK(poll(&f, 1, LIMIT_S * 1000) == 1);
    (void)arm_end(e);
}

/* An end learns that the other one has ended when that one has closed: until then its copies may go on, and nothing else tells that without a
 * pidfd. */
static void ends(end *first, end *last)
{
    close(last->ep->peer.pidfd);
    last->ep->peer.pidfd = -1;
    CHECK(cma_ep_shut(first->ep) == 0);
    (void)arm_end(last);
    CHECK(!atomic_load(&last->ep->peer.gone) && cma_alive(last->ep));
    cma_ep_free(first->ep);
    first->ep = NULL;
    (void)arm_end(last);
    CHECK(atomic_load(&last->ep->peer.gone) && !cma_alive(last->ep));
}

/* The end that moves ends before the other one knows of the move, or before its own connection is accepted. */
static void ends_early(int accepted)
{
    int before = open_descriptors(), s[2], t[2];
    end a = open_end(0), b = open_end(0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, t) == 0);
    connect_end(&a, getpid(), b.fd, (int[2]){-1, t[1]});
    connect_end(&b, getpid(), a.fd, (int[2]){accepted ? t[0] : -1, s[1]});
    cma_ep_accepted(a.ep, s[0], 1);
    ends(&a, &b);
    if (!accepted)
        cma_ep_accepted(b.ep, t[0], 0);
    (void)arm_end(&b);
    CHECK(atomic_load(&b.ep->peer.gone));
    close_end(&a);
    close_end(&b);
    CHECK(open_descriptors() == before);
}

/* Whichever comes first: our connection is accepted, the peer has connected, at either end. closer: which end closes. */
static void one(int early, int late, int closer)
{
    int before = open_descriptors(), s[2], t[2];
    end a = open_end(0), b = open_end(0), *first = closer ? &b : &a, *last = closer ? &a : &b;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, t) == 0);
    int open = open_descriptors();
    if (early)
        cma_ep_accepted(a.ep, s[0], 1);
    connect_end(&a, getpid(), b.fd, (int[2]){-1, t[1]});
    if (!early)
        cma_ep_accepted(a.ep, s[0], 1);
    if (!late)
        cma_ep_accepted(b.ep, t[0], 0);
    int child = dup(s[1]); /* holds it, too */
    connect_end(&b, getpid(), a.fd, (int[2]){-1, s[1]});
    (void)arm_end(&b); /* takes the message */
    if (late)
        cma_ep_accepted(b.ep, t[0], 0);
    (void)arm_end(&a);
    close(child);
    CHECK(open_descriptors() == open + 2); /* the ends' files, which the fixture keeps */
    CHECK(atomic_load(&a.ep->doorbell) == atomic_load(&a.ep->peer.sock) && atomic_load(&b.ep->doorbell) == atomic_load(&b.ep->peer.sock));
    for (int i = 0; i < 3; i++) {
        rung(&a, &b);
        rung(&b, &a);
    }
    CHECK(cma_reaches(a.ep) && cma_reaches(b.ep));
    ends(first, last);
    close_end(&a);
    close_end(&b);
    CHECK(open_descriptors() == before);
}

/* An end that moves while the other one knows nothing of it: both connections stay, and rings arrive. */
static void not_followed(void)
{
    end a = open_end(0), b = open_end(0);
    int s[2], t[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, t) == 0);
    connect_end(&a, getpid(), b.fd, (int[2]){s[0], t[1]});
    connect_end(&b, getpid(), a.fd, (int[2]){t[0], s[1]});
    (void)arm_end(&b);
    rung(&a, &b);
    rung(&b, &a);
    CHECK(atomic_load(&a.ep->doorbell) != atomic_load(&a.ep->peer.sock));
    close_end(&a);
    close_end(&b);
}

void moves(void)
{
    for (int i = 0; i < 8; i++)
        one(i & 1, i & 2, i & 4);
    not_followed();
    ends_early(0);
    ends_early(1);
}
