/* How two endpoints meet: each connects to the socket that the other's rail listens on, shows the token of the endpoint that it wants, and then
 * sends the descriptors of its box, its table and its shares. The connections stay: their doorbells wake a sleeper, and nobody else can
 * send there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "local.h"

enum {
    FDS = 3,            /* box, table, shares */
    AT_ONCE = 16,       /* messages */
    ALIVE_NS = 4000000, /* how old the knowledge may be that a process lives: its number may be another's soon after. A look is a system call */
    REDIAL_NS = 1000000,
    REDIAL_MAX_NS = 64000000,
};

int lc_meet(lc_ep *ep, const char **step)
{
    ep->addr.name_len = ep->rail->name_len;
    memcpy(ep->addr.name, ep->rail->name, sizeof(ep->addr.name));
    *step = "getrandom";
    return getrandom(ep->addr.token, LC_TOKEN, 0) == LC_TOKEN ? 0 : -errno;
}

/* ---- our connection to the peer ---- */

/* 0, 1: the peer lets it go or has no room for it now, or a negative errno. */
static int say(const lc_ep *ep, int sock)
{
    lc_hello hello = { .magic = LC_MAGIC, .box_size = sizeof(lc_box) };
    uint32_t magic = LC_MAGIC;
    union {
        char room[CMSG_SPACE(FDS * sizeof(int))];
        struct cmsghdr align;
    } c;
    memset(&c, 0, sizeof(c));
    memcpy(hello.token, ep->peer.token, LC_TOKEN);
    struct iovec iov = { &magic, sizeof(magic) };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof(c.room) };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(FDS * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(h), (int[FDS]){ ep->box_fd, ep->rail->table_fd, ep->rail->shares_fd }, FDS * sizeof(int));
    if (send(sock, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(hello) &&
        sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(magic))
        return 0;
    return errno == EAGAIN || errno == EPIPE || errno == ECONNRESET ? 1 : -errno;
}

static void forget(const lc_rail *rail, int *sock)
{
    if (*sock < 0)
        return;
    epoll_ctl(rail->base.wait_fd, EPOLL_CTL_DEL, *sock, NULL); /* a child of ours may have it, too */
    close(*sock);
    *sock = -1;
}

/* As say(). Who listens may be another by now: it is looked at before it is told anything. */
static int dial(lc_ep *ep, const char **step)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = ep };
    pid_t pid;
    ep->redial_ns = lc_now() + ep->redial_wait; /* not before */
    if (ep->redial_wait < REDIAL_MAX_NS)
        ep->redial_wait *= 2;
    int sock, rc = lc_connect(ep->peer.name, ep->peer.name_len, &sock, step);
    if (rc)
        return rc == -EAGAIN ? 1 : rc;
    *step = "checking the peer's user and process";
    if ((rc = lc_check_user(sock, &pid)) == 0) {
        *step = "greeting the peer's endpoint";
        rc = say(ep, sock);
    }
    if (!rc) {
        *step = "epoll_ctl";
        rc = epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_ADD, sock, &ev) ? -errno : 0;
    }
    if (rc)
        close(sock);
    else
        ep->out_sock = sock;
    return rc;
}

static void dialed(lc_ep *ep)
{
    ep->rail->dialing -= (uint32_t)ep->dialing;
    ep->dialing = 0;
}

int lc_greet(lc_ep *ep, const lc_addr *peer, const char **step)
{
    ep->peer = *peer;
    ep->named = 1;
    ep->redial_wait = REDIAL_NS;
    int rc = dial(ep, step);
    if (rc < 0)
        return rc;
    ep->dialing = 1;
    ep->rail->dialing++;
    return 0;
}

void lc_give_up(lc_ep *ep, int err, const char *step)
{
    if (!ep->err) {
        ep->err = err;
        ep->err_step = step;
    }
    ep->rail->strangers -= !ep->met;
    ep->met = 1;
    dialed(ep);
    if (atomic_load(&ep->bell) < 0)
        forget(ep->rail, &ep->out_sock);
}

static void ring(int sock) { (void)!send(sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* a queue that is full holds enough to wake anybody */ }

/* The peer has our box: from now on the socket is a doorbell, and not touched before the endpoint is freed. */
static void accepted(lc_ep *ep)
{
    epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_DEL, ep->out_sock, NULL);
    close(ep->box_fd);
    ep->box_fd = -1;
    dialed(ep);
    atomic_store(&ep->bell, ep->out_sock);
    if (atomic_exchange(&ep->rung, 0))
        ring(ep->out_sock);
}

/* A peer that is pressed for room lets go of connections whose token it has not seen: then we connect again. */
static void look_dialed(lc_ep *ep)
{
    char c;
    const char *step;
    if (ep->out_sock >= 0) {
        ssize_t n = recv(ep->out_sock, &c, 1, MSG_DONTWAIT);
        if (n > 0)
            accepted(ep);
        if (n > 0 || (n < 0 && errno == EAGAIN))
            return;
        forget(ep->rail, &ep->out_sock);
        if (!ep->refused_ns)
            ep->refused_ns = lc_now();
    }
    uint64_t now = lc_now();
    if (now < ep->redial_ns)
        return;
    if (ep->refused_ns && now - ep->refused_ns > (uint64_t)LC_PATIENCE_S * 1000000000) {
        lc_give_up(ep, ECONNREFUSED, "greeting the peer's endpoint, which closes our connections");
        return;
    }
    int rc = dial(ep, &step);
    if (rc < 0)
        lc_give_up(ep, -rc, step);
}

void lc_ring(lc_ep *ep)
{
    int sock = atomic_load(&ep->bell);
    if (sock < 0) { /* rung when the peer has accepted */
        atomic_store(&ep->rung, 1);
        if ((sock = atomic_load(&ep->bell)) < 0 || !atomic_exchange(&ep->rung, 0))
            return;
    }
    ring(sock);
}

/* ---- the peer's connection to us ---- */

/* Whether this process may do to others what its peer of that user may not. */
static int mightier(void)
{
    struct __user_cap_header_struct who = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct may[_LINUX_CAPABILITY_U32S_3] = { 0 };
    if (getuid() != geteuid())
        return 1;
    return geteuid() != 0 && (syscall(SYS_capget, &who, may) != 0 || (may[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE)));
}

/* We copy for peers that could do it themselves: one that gives its place to a program of more rights would else reach into that by us. And
 * for those whose memory may be read at all. The peer is of our user: nobody else gets so far. */
static void befriend(lc_ep *ep)
{
    char path[32];
    if (ep->self || mightier() || !lc_own_proc())
        return;
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)ep->pid);
    ep->mem = open(path, O_RDONLY | O_CLOEXEC);
    if (ep->mem >= 0 && lc_ended(ep->pidfd)) { /* another's, maybe */
        close(ep->mem);
        ep->mem = -1;
    }
    ep->kin = ep->mem >= 0;
}

static int welcome(lc_ep *ep, const int fd[FDS])
{
    lc_box *out = lc_map(fd[0], sizeof(*out), 0);
    if (!out)
        return errno;
    ep->table = lc_map(fd[1], LC_REGIONS * sizeof(lc_entry), 1);
    if (!ep->table || !(ep->shares = lc_map(fd[2], sizeof(*ep->shares), 1))) { /* a table that is there goes with the endpoint */
        int err = errno;
        munmap(out, sizeof(*out));
        return err;
    }
    ep->self = ep->pid == getpid();
    ep->out = out;
    befriend(ep);
    return 0;
}

/* The message with the descriptors. What recvmsg says. */
static ssize_t take_greeting(lc_ep *ep)
{
    uint32_t magic = 0;
    union {
        char room[CMSG_SPACE(FDS * sizeof(int))];
        struct cmsghdr align;
    } c;
    int fd[FDS] = { -1, -1, -1 }, more;
    size_t fds = 0;
    struct iovec iov = { &magic, sizeof(magic) };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof(c.room) };
    ssize_t n = recvmsg(ep->in_sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
            fds = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(fd, CMSG_DATA(h), (fds < FDS ? fds : FDS) * sizeof(int));
            for (size_t k = FDS; k < fds; k++) { /* alignment leaves room for one more */
                memcpy(&more, CMSG_DATA(h) + k * sizeof(int), sizeof(more));
                close(more);
            }
        }
    int err = n == sizeof(magic) && magic == LC_MAGIC && fds == FDS ? welcome(ep, fd) : m.msg_flags & MSG_CTRUNC && fds < FDS ? EMFILE : EPROTO;
    for (int k = 0; k < FDS; k++)
        if (fd[k] >= 0)
            close(fd[k]);
    if (err) {
        lc_give_up(ep, err, "mapping what the peer shares");
    } else {
        ep->met = 1;
        ep->rail->strangers--;
    }
    return n;
}

void lc_hear(lc_ep *ep)
{
    char c;
    if (ep->dialing && !ep->err)
        look_dialed(ep);
    for (int i = 0; i < AT_ONCE && ep->in_sock >= 0; i++) {
        ssize_t n = ep->met ? recv(ep->in_sock, &c, 1, MSG_DONTWAIT) : take_greeting(ep);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) { /* its end is told otherwise; a closed socket would be readable for ever */
            forget(ep->rail, &ep->in_sock);
            if (!ep->met)
                lc_give_up(ep, ECONNRESET, "waiting for the peer's descriptors");
        }
    }
}

void lc_prove(lc_ep *ep, int sock, uint64_t since)
{
    ep->in_sock = sock;
    int rc = lc_identify(sock, since, &ep->pid, &ep->pidfd);
    if (rc) {
        ep->dead = rc == -ESRCH;
        lc_give_up(ep, ep->dead ? ECONNRESET : -rc, "checking the peer's user and process");
        return;
    }
    ring(sock); /* the answer that the peer waits for */
    lc_hear(ep);
}

void lc_listen(lc_ep *ep)
{
    if (!ep->met && !ep->err)
        (void)lc_accept(ep->rail);
    lc_hear(ep);
}

void lc_hang_up(lc_ep *ep)
{
    ep->rail->strangers -= !ep->met;
    ep->met = 1;
    dialed(ep);
    forget(ep->rail, &ep->in_sock);
    if (ep->out_sock >= 0)
        epoll_ctl(ep->rail->base.wait_fd, EPOLL_CTL_DEL, ep->out_sock, NULL); /* it may still be rung by who copies: closed with the endpoint */
}

int lc_alive(lc_ep *ep)
{
    uint64_t now = lc_now();
    if (ep->pidfd < 0)
        return !ep->dead;
    if (now - ep->alive_ns < ALIVE_NS)
        return 1;
    if (lc_ended(ep->pidfd))
        return 0;
    ep->alive_ns = now;
    return 1;
}
