/* The rail's listening socket. Any process of the network namespace can connect: until one shows the token of an endpoint that waits for its
 * peer it gets a place among few, for a moment, and nothing of it is opened or mapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "local.h"

enum {
    AT_ONCE = 16,
    BACKLOG = 4096,
    SHORT_NS = 1000000000, /* descriptors may be used up for so long before those who wait hear of it */
};

int lc_listener_open(lc_rail *rail, const char **step)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = rail };
    socklen_t len = sizeof(name);
    *step = "socket";
    rail->listen_sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (rail->listen_sock < 0)
        return -errno;
    *step = "bind of a unix socket";
    if (bind(rail->listen_sock, (struct sockaddr *)&name, sizeof(name.sun_family)) != 0 || /* the kernel chooses a name */
        listen(rail->listen_sock, BACKLOG) != 0 || getsockname(rail->listen_sock, (struct sockaddr *)&name, &len) != 0)
        return -errno;
    size_t n = len - offsetof(struct sockaddr_un, sun_path);
    if (n == 0 || n > sizeof(rail->name))
        return -ENAMETOOLONG;
    rail->name_len = (uint8_t)n;
    memcpy(rail->name, name.sun_path, n);
    *step = "epoll_ctl";
    return epoll_ctl(rail->base.wait_fd, EPOLL_CTL_ADD, rail->listen_sock, &ev) ? -errno : 0;
}

static void let_go(lc_rail *rail, uint32_t i)
{
    epoll_ctl(rail->base.wait_fd, EPOLL_CTL_DEL, rail->caller[i].sock, NULL); /* a child of ours may have it, too */
    close(rail->caller[i].sock);
    rail->callers--;
    memmove(&rail->caller[i], &rail->caller[i + 1], (rail->callers - i) * sizeof(rail->caller[0]));
}

static lc_ep *find(lc_rail *rail, const uint8_t *token)
{
    lc_ep *ep = rail->eps;
    while (ep && (ep->met || ep->err || ep->in_sock >= 0 || memcmp(ep->addr.token, token, LC_TOKEN) != 0))
        ep = ep->next;
    return ep;
}

/* 0: it has said nothing yet, -1: it is none of ours, 1: it is an endpoint's now. Descriptors that come with it are dropped by the kernel. */
static int prove(lc_rail *rail, const lc_caller *c, int watched)
{
    struct epoll_event ev = { .events = EPOLLIN };
    lc_hello h;
    ssize_t n = recv(c->sock, &h, sizeof(h), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n != sizeof(h) || h.magic != LC_MAGIC || h.box_size != sizeof(lc_box))
        return -1;
    lc_ep *ep = find(rail, h.token);
    ev.data.ptr = ep;
    if (!ep || epoll_ctl(rail->base.wait_fd, watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->sock, &ev) != 0)
        return -1;
    lc_prove(ep, c->sock, c->ticks);
    return 1;
}

/* Those that wait: what they have said meanwhile. */
static void hear_callers(lc_rail *rail)
{
    for (uint32_t i = 0; i < rail->callers;) {
        lc_caller c = rail->caller[i];
        int did = prove(rail, &c, 1);
        if (did == 1) {
            rail->callers--;
            memmove(&rail->caller[i], &rail->caller[i + 1], (rail->callers - i) * sizeof(c));
        } else if (did < 0 || lc_now() - c.since > (uint64_t)LC_PROVE_MS * 1000000) {
            let_go(rail, i);
        } else {
            i++;
        }
    }
}

static void take_caller(lc_rail *rail, int sock)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = rail };
    lc_caller c = { sock, lc_now(), lc_ticks() };
    pid_t pid;
    int did = rail->strangers && lc_check_user(sock, &pid) == 0 ? prove(rail, &c, 0) : -1; /* mostly its token is there already */
    if (did == 1)
        return;
    if (did < 0 || epoll_ctl(rail->base.wait_fd, EPOLL_CTL_ADD, sock, &ev) != 0) {
        close(sock);
        return;
    }
    if (rail->callers == LC_UNPROVED)
        let_go(rail, 0);
    rail->caller[rail->callers++] = c;
}

/* The greeting of any endpoint that waits may be among those that can't be accepted. */
static void cut_short(lc_rail *rail, int err)
{
    uint64_t now = lc_now();
    struct pollfd p = { .fd = rail->listen_sock, .events = POLLIN };
    if (poll(&p, 1, 0) <= 0)
        rail->short_ns = 0; /* accept says so before it looks whether anybody is there */
    else if (!rail->short_ns)
        rail->short_ns = now;
    if (!rail->short_ns || now - rail->short_ns < SHORT_NS)
        return;
    rail->short_ns = 0;
    for (lc_ep *ep = rail->eps; ep; ep = ep->next)
        if (!ep->met && !ep->err && ep->in_sock < 0)
            lc_give_up(ep, err, "accept of the peer's connection");
}

int lc_accept(lc_rail *rail)
{
    int n = 0;
    hear_callers(rail);
    while (n < AT_ONCE) {
        int sock = accept4(rail->listen_sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), err = errno;
        if (sock >= 0) {
            rail->short_ns = 0;
            take_caller(rail, sock);
            n++;
        } else if (err != EMFILE && err != ENFILE && err != ENOMEM && err != ENOBUFS) {
            rail->short_ns = 0;
            break;
        } else if (rail->callers) {
            let_go(rail, 0);
        } else {
            cut_short(rail, err);
            break;
        }
    }
    while (!rail->strangers && rail->callers)
        let_go(rail, 0);
    return n == AT_ONCE;
}

int lc_admit(lc_rail *rail)
{
    gr_rail_lock(&rail->base);
    int more = lc_accept(rail);
    gr_rail_unlock(&rail->base);
    return more;
}

void lc_listener_close(lc_rail *rail)
{
    while (rail->callers)
        let_go(rail, 0);
    if (rail->listen_sock >= 0)
        close(rail->listen_sock);
}
