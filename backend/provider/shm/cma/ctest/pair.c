/* Two processes connected with each other. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

/* Sends our region and the descriptors of our segments. */
static void send_info(int to, const end *e)
{
    region_info mine = own_region(e);
    union {
        char room[CMSG_SPACE(sizeof(e->fd))];
        struct cmsghdr align;
    } c = {0};
    struct iovec iov = {&mine, sizeof(mine)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof(c.room)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(e->fd)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(h), e->fd, sizeof(e->fd));
    CHECK(sendmsg(to, &m, 0) == sizeof(mine));
}

static region_info recv_info(int from, int fd[FDS])
{
    region_info its;
    union {
        char room[CMSG_SPACE(FDS * sizeof(int))];
        struct cmsghdr align;
    } c = {0};
    struct iovec iov = {&its, sizeof(its)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof(c.room)};
    CHECK(recvmsg(from, &m, MSG_CMSG_CLOEXEC) == sizeof(its) && CMSG_FIRSTHDR(&m));
    memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), FDS * sizeof(int));
    return its;
}

static pair open_pair(int fd, uint32_t threads, pid_t child, const int doorbells[2])
{
    pair p = {.me = open_end(threads), .child = child, .pipe = fd};
    int its[FDS];
    send_info(fd, &p.me);
    p.peer = recv_info(fd, its);
    connect_end(&p.me, child ? child : getppid(), its, doorbells);
    for (int i = 0; i < FDS; i++)
        close(its[i]);
    if (files)
        start_mapper(&p.me);
    return p;
}

pair split(uint32_t threads, void (*other)(pair *))
{
    int s[2], to[2], from[2]; /* doorbells, as the parent sees them */
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, to) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, from) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(6 * LIMIT_S);
        close(s[0]);
        close(to[0]);
        close(from[1]);
        pair p = open_pair(s[1], threads, 0, (int[2]){from[0], to[1]});
        other(&p);
        close_end(&p.me);
        _exit(0);
    }
    close(s[1]);
    close(to[1]);
    close(from[0]);
    return open_pair(s[0], threads, child, (int[2]){to[0], from[1]});
}

void pipe_put(const pair *p, char c) { CHECK(write(p->pipe, &c, 1) == 1); }

char pipe_get(const pair *p)
{
    char c = 0;
    CHECK(read(p->pipe, &c, 1) == 1);
    return c;
}

void finish(pair *p)
{
    int status;
    CHECK(waitpid(p->child, &status, 0) == p->child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_end(&p->me);
}

void poll_until(pair *p, char told)
{
    for (char c = 0; c != told;) {
        poll_end(&p->me);
        if (recv(p->pipe, &c, 1, MSG_DONTWAIT) < 0)
            c = 0;
    }
}

void wait_target(pair *p) { poll_until(p, 'q'); }
