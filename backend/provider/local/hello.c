/* How two endpoints meet: each sends the other's socket a greeting with the descriptors of its box, its table and its shares. The same
 * sockets carry the rings that wake a sleeper. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "local.h"

enum {
    MAGIC = 0x6c6f6332,
    FDS = 3,          /* box, table, shares */
    AT_ONCE = 16,     /* datagrams */
    ALIVE_NS = 4000000, /* how old the knowledge may be that a process lives: its number may be another's soon after. A look is a system call */
};

typedef struct greeting {
    uint32_t magic, box_size;
    uint8_t token[LC_TOKEN]; /* of the endpoint that is greeted */
    lc_addr from;
} greeting;

int lc_meet(lc_ep *ep, const char **step)
{
    const int on = 1;
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t len = sizeof(name);
    *step = "socket";
    ep->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (ep->sock < 0)
        return -errno;
    *step = "bind of a unix socket";
    if (setsockopt(ep->sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ||
        bind(ep->sock, (struct sockaddr *)&name, sizeof(name.sun_family)) != 0 || /* the kernel chooses a name */
        getsockname(ep->sock, (struct sockaddr *)&name, &len) != 0)
        return -errno;
    size_t n = len - offsetof(struct sockaddr_un, sun_path);
    if (n == 0 || n > sizeof(ep->addr.name))
        return -ENAMETOOLONG;
    ep->addr.name_len = (uint8_t)n;
    memcpy(ep->addr.name, name.sun_path, n);
    *step = "getrandom";
    return getrandom(ep->addr.token, LC_TOKEN, 0) == LC_TOKEN ? 0 : -errno;
}

int lc_greet(lc_ep *ep, const lc_addr *peer, const char **step)
{
    greeting g = { .magic = MAGIC, .box_size = sizeof(lc_box), .from = ep->addr };
    union {
        char room[CMSG_SPACE(FDS * sizeof(int))];
        struct cmsghdr align;
    } c;
    memset(&c, 0, sizeof(c));
    memcpy(g.token, peer->token, LC_TOKEN);
    ep->to.sun_family = AF_UNIX;
    memcpy(ep->to.sun_path, peer->name, peer->name_len);
    ep->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + peer->name_len);
    struct iovec iov = { &g, sizeof(g) };
    struct msghdr m = { .msg_name = &ep->to, .msg_namelen = ep->to_len, .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.room,
                        .msg_controllen = sizeof(c.room) };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(FDS * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(h), (int[FDS]){ ep->box_fd, ep->rail->table_fd, ep->rail->shares_fd }, FDS * sizeof(int));
    *step = "greeting the peer's endpoint";
    return sendmsg(ep->sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Whether this process may do to others what its peer of that user may not. */
static int mightier(uid_t user)
{
    struct __user_cap_header_struct who = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct may[_LINUX_CAPABILITY_U32S_3] = { 0 };
    if (user != getuid() || user != geteuid())
        return 1;
    return user != 0 && (syscall(SYS_capget, &who, may) != 0 || (may[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective & CAP_TO_MASK(CAP_SYS_PTRACE)));
}

/* Whether /proc is of our own pid namespace: the numbers in another's are other processes'. */
static int own_proc(void)
{
    char self[16];
    ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
    if (n <= 0)
        return 0;
    self[n] = 0;
    return atoi(self) == getpid();
}

/* We copy for peers that could do it themselves: one that gives its place to a program of more rights would else reach into that by us. And
 * for those whose memory may be read at all. */
static void befriend(lc_ep *ep, uid_t user)
{
    char path[32];
    if (ep->self || mightier(user) || !own_proc())
        return;
    snprintf(path, sizeof(path), "/proc/%d/mem", (int)ep->pid);
    ep->mem = open(path, O_RDONLY | O_CLOEXEC);
    ep->kin = ep->mem >= 0;
}

static int welcome(lc_ep *ep, pid_t pid, uid_t user, const int fd[FDS])
{
    if (pid <= 0)
        return ENOTSUP; /* it lives in a pid namespace that has no name for it here */
    ep->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (ep->pidfd < 0) {
        ep->dead = errno == ESRCH;
        return ep->dead ? ECONNRESET : errno;
    }
    lc_box *out = lc_map(fd[0], sizeof(*out), 0);
    if (!out)
        return errno;
    ep->table = lc_map(fd[1], LC_REGIONS * sizeof(lc_entry), 1);
    if (!ep->table || !(ep->shares = lc_map(fd[2], sizeof(*ep->shares), 1))) { /* a table that is there goes with the endpoint */
        int err = errno;
        munmap(out, sizeof(*out));
        return err;
    }
    ep->pid = pid;
    ep->self = pid == getpid();
    ep->out = out;
    befriend(ep, user);
    return 0;
}

void lc_listen(lc_ep *ep)
{
    for (int i = 0; i < AT_ONCE; i++) {
        greeting g;
        union {
            char room[CMSG_SPACE(FDS * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
            struct cmsghdr align;
        } c;
        int fd[FDS] = { -1, -1, -1 };
        struct ucred who = { 0 };
        struct iovec iov = { &g, sizeof(g) };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof(c.room) };
        ssize_t n = recvmsg(ep->sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
            return;
        for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
            if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_CREDENTIALS)
                memcpy(&who, CMSG_DATA(h), sizeof(who));
            if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
                size_t fds = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                memcpy(fd, CMSG_DATA(h), (fds < FDS ? fds : FDS) * sizeof(int));
                for (size_t k = FDS; k < fds; k++) { /* alignment leaves room for one more, and anybody may send here */
                    int more;
                    memcpy(&more, CMSG_DATA(h) + k * sizeof(int), sizeof(more));
                    close(more);
                }
            }
        }
        if (n == sizeof(g) && g.magic == MAGIC && g.box_size == sizeof(lc_box) && !ep->met && !ep->err &&
            memcmp(g.token, ep->addr.token, LC_TOKEN) == 0) {
            ep->met = 1;
            ep->err = fd[FDS - 1] >= 0 ? welcome(ep, who.pid, who.uid, fd) : m.msg_flags & MSG_CTRUNC ? EMFILE : EPROTO;
            ep->rail->strangers--;
        }
        for (int k = 0; k < FDS; k++)
            if (fd[k] >= 0)
                close(fd[k]);
    }
}

void lc_ring(lc_ep *ep)
{
    if (ep->to_len) /* a queue that is full holds enough to wake anybody */
        (void)!sendto(ep->sock, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&ep->to, ep->to_len);
}

int lc_alive(lc_ep *ep)
{
    uint64_t now = lc_now();
    if (ep->pidfd < 0)
        return !ep->dead;
    if (now - ep->alive_ns < ALIVE_NS)
        return 1;
    struct pollfd p = { .fd = ep->pidfd, .events = POLLIN };
    if (poll(&p, 1, 0) > 0)
        return 0;
    ep->alive_ns = now;
    return 1;
}
