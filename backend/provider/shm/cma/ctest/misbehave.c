/* Misbehaving peers, within one process. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

static void post_recv(end *e, void *buf, size_t len)
{
    gr_rail_lock(&e->rail->base);
    CHECK(cma_ops.recv(&e->rail->base, e->ep, buf, len, NULL, &ctx[1]) == 0);
    gr_rail_unlock(&e->rail->base);
}

static void send_text(end *e, char *text)
{
    gr_rail_lock(&e->rail->base);
    CHECK(cma_ops.send(&e->rail->base, e->ep, text, strlen(text) + 1, NULL, 1, &ctx[2]) == 0);
    gr_rail_unlock(&e->rail->base);
}

/* A ring that claims more messages than it has slots, and a message longer than a slot: the receives fail, and
 * nothing is read beyond the segment. */
void hostile_ring(void)
{
    char buf[CMA_MSG];
    for (int i = 0; i < 2; i++) {
        end a = open_end(0), b = open_end(0);
        join(&a, &b);
        post_recv(&b, buf, sizeof(buf));
        if (i == 0) {
            atomic_store(&a.ep->peer.shm->put, CMA_SLOTS + 1);
        } else {
            a.ep->peer.shm->slot[0].len = UINT32_MAX;
            atomic_store(&a.ep->peer.shm->put, 1);
        }
        poll_end(&b);
        CHECK(b.done == 1 && b.err == EPROTO);
        gr_rail_lock(&b.rail->base);
        CHECK(cma_ops.recv(&b.rail->base, b.ep, buf, sizeof(buf), NULL, &ctx[1]) == -EPROTO);
        gr_rail_unlock(&b.rail->base);
        atomic_store(&b.ep->shm->taken, CMA_SLOTS + 5); /* more than was ever put in */
        gr_rail_lock(&a.rail->base);
        for (int k = 0; k < CMA_SLOTS; k++)
            CHECK(cma_ops.send(&a.rail->base, a.ep, buf, 1, NULL, 1, &ctx[2]) == 0);
        CHECK(cma_ops.send(&a.rail->base, a.ep, buf, 1, NULL, 1, &ctx[2]) == -EPROTO);
        gr_rail_unlock(&a.rail->base);
        close_end(&a);
        close_end(&b);
    }
}

/* A message whose sender has a completion is received, also if nobody polls before the endpoint closes. */
void closed_ring(void)
{
    end a = open_end(0), b = open_end(0);
    char buf[2][CMA_MSG] = {{0}};
    join(&a, &b);
    post_recv(&b, buf[0], sizeof(buf[0]));
    post_recv(&b, buf[1], sizeof(buf[1]));
    send_text(&a, "news");
    poll_end(&a);
    CHECK(a.done == 1 && a.err == 0);
    CHECK(close_ep(&b) == 0);
    b.ep = NULL;
    gr_comp c[4];
    gr_rail_lock(&b.rail->base);
    CHECK(cma_ops.poll(&b.rail->base, c, 4) == 2);
    gr_rail_unlock(&b.rail->base);
    CHECK(c[0].err == 0 && c[0].len == 5 && strcmp(buf[0], "news") == 0);
    CHECK(c[1].err == ECANCELED);
    send_text(&a, "late");
    poll_end(&a);
    CHECK(a.done == 2 && a.err == ECONNRESET);
    close_end(&a);
    close_end(&b);
}

/* A handshake that fails while nobody polls: arm reports it once, the receive fails, and then the rail can be armed. */
void failed_handshake(void)
{
    end a = open_end(0);
    char buf[CMA_MSG];
    post_recv(&a, buf, sizeof(buf));
    cma_ep_fail(a.ep, EPROTO, 0);
    gr_rail_lock(&a.rail->base);
    CHECK(cma_ops.arm(&a.rail->base) == 1);
    gr_rail_unlock(&a.rail->base);
    poll_end(&a);
    CHECK(a.done == 1 && a.err == EPROTO);
    gr_rail_lock(&a.rail->base);
    CHECK(cma_ops.arm(&a.rail->base) == 0);
    gr_rail_unlock(&a.rail->base);
    close_end(&a);
}

/* A peer that is connected already has completions of its messages when our side of the handshake fails. The messages are
 * received. Later ones fail at the sender. */
void failed_with_messages(void)
{
    end a = open_end(0), b = open_end(0);
    char buf[3][CMA_MSG] = {{0}};
    gr_comp c[4];
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    for (int i = 0; i < 3; i++)
        post_recv(&b, buf[i], sizeof(buf[i]));
    connect_end(&a, getpid(), b.fd, (int[2]){-1, s[1]});
    for (int i = 0; i < 2; i++)
        send_text(&a, i ? "two" : "one");
    poll_end(&a);
    CHECK(a.done == 2 && a.err == 0);
    cma_ep_fail(b.ep, ENOMEM, 0);
    send_text(&a, "late");
    poll_end(&a);
    CHECK(a.done == 3 && a.err == ECONNRESET);
    gr_rail_lock(&b.rail->base);
    CHECK(cma_ops.poll(&b.rail->base, c, 4) == 3);
    gr_rail_unlock(&b.rail->base);
    CHECK(c[0].err == 0 && strcmp(buf[0], "one") == 0);
    CHECK(c[1].err == 0 && strcmp(buf[1], "two") == 0);
    CHECK(c[2].err == ENOMEM);
    close(s[0]);
    close_end(&a);
    close_end(&b);
}
