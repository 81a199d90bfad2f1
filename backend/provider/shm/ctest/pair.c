/* Two processes that meet. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

static pair meet(int fd, uint32_t threads, pid_t child)
{
    pair p = { .me = open_end(threads), .child = child, .pipe = fd };
    card mine = own_card(&p.me);
    CHECK(write(fd, &mine, sizeof(mine)) == sizeof(mine));
    CHECK(read(fd, &p.peer, sizeof(p.peer)) == sizeof(p.peer));
    CHECK(lc_ep_connect(p.me.ep, &p.peer.addr, &step) == 0);
    return p;
}

pair split(uint32_t threads, void (*other)(pair *))
{
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(6 * LIMIT_S);
        close(s[0]);
        pair p = meet(s[1], threads, 0);
        other(&p);
        close_end(&p.me);
        _exit(0);
    }
    close(s[1]);
    return meet(s[0], threads, child);
}

void tell(const pair *p, char c) { CHECK(write(p->pipe, &c, 1) == 1); }

char hear(const pair *p)
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
