/* Who a peer is: what it writes about itself is not believed, in this pid namespace and in others. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

static void skip(const char *why)
{
    fprintf(stderr, "%s: %s\n", why, strerror(errno));
    exit(SKIP);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        skip(path);
    close(fd);
}

/* Becomes root of a user namespace, in which its user is the only one, and of others in that. */
static void go_into_users(int flags)
{
    char users[32], groups[32];
    snprintf(users, sizeof(users), "0 %d 1", (int)geteuid());
    snprintf(groups, sizeof(groups), "0 %d 1", (int)getegid());
    if (unshare(CLONE_NEWUSER | flags) != 0)
        skip("no user namespace here");
    put("/proc/self/uid_map", users);
    put("/proc/self/setgroups", "deny");
    put("/proc/self/gid_map", groups);
}

/* The child goes on as init of the pid namespace that was made. Its parent waits for that and ends as it does. */
static void go_into_pids(void)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(6 * LIMIT_S);
        return;
    }
    CHECK(waitpid(child, &status, 0) == child);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

enum { TOO_LATE = 78 };

/* SKIP where the child could not be what it was to be. */
static void ended_well(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIP)
        exit(SKIP);
    CHECK(WEXITSTATUS(status) == 0);
}

/* As an endpoint greets, but for the credentials that the sender likes. fds: NULL for none. */
static void send_as(int s, pid_t pid, const void *what, size_t len, const int *fds)
{
    union {
        char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } u = { 0 };
    struct iovec iov = { (void *)what, len };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = sizeof(u.room) };
    struct ucred who = { .pid = pid, .uid = geteuid(), .gid = getegid() };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(who)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_CREDENTIALS };
    memcpy(CMSG_DATA(h), &who, sizeof(who));
    h = CMSG_NXTHDR(&m, h);
    if (fds) {
        *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(3 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(h), fds, 3 * sizeof(int));
    } else {
        m.msg_controllen = CMSG_SPACE(sizeof(who));
    }
    CHECK(sendmsg(s, &m, MSG_NOSIGNAL) == (ssize_t)len || errno == EPIPE || errno == ECONNRESET);
}

static void greet_as(int s, const end *mine, const lc_addr *to, pid_t pid)
{
    lc_hello hello = { .magic = LC_MAGIC, .box_size = sizeof(lc_box) };
    uint32_t magic = LC_MAGIC;
    memcpy(hello.token, to->token, LC_TOKEN);
    send_as(s, pid, &hello, sizeof(hello), NULL);
    send_as(s, pid, &magic, sizeof(magic), (int[3]){ mine->ep->box_fd, mine->rail->table_fd, mine->rail->shares_fd });
}

static int call_name(const lc_addr *a)
{
    int s = -1;
    CHECK(lc_connect(a->name, a->name_len, &s, &step) == 0);
    return s;
}

/* Which process a descriptor is of, in our numbers. */
static pid_t pid_of(int pidfd)
{
    char path[64], line[128];
    int pid = 0;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (fgets(line, sizeof(line), f) && sscanf(line, "Pid: %d", &pid) != 1)
        ;
    fclose(f);
    return pid;
}

static pid_t sleeper(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    while (child == 0)
        pause();
    return child;
}

/* The peer's card; who: the process that sends it, as the kernel has it where nobody says otherwise. */
static card hear_card(int s, pid_t *who)
{
    const int on = 1;
    card c;
    struct ucred u;
    union {
        char room[CMSG_SPACE(sizeof(u))];
        struct cmsghdr align;
    } m_room;
    struct iovec iov = { &c, sizeof(c) };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = m_room.room, .msg_controllen = sizeof(m_room.room) };
    CHECK(setsockopt(s, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
    if (recvmsg(s, &m, 0) != sizeof(c)) /* it has ended, and says why */
        return (card){ 0 };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    CHECK(h && h->cmsg_type == SCM_CREDENTIALS);
    memcpy(&u, CMSG_DATA(h), sizeof(u));
    *who = u.pid;
    return c;
}

/* Root of a user and pid namespace names another process of its own: what is written goes to itself all the same. */
void forged_credentials(void)
{
    int s[2];
    pid_t who = 0;
    char c;
    end a = open_end(0);
    card mine = own_card(&a);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(s[0]);
        go_into_users(CLONE_NEWPID);
        go_into_pids();
        end e = open_end(0);
        card its = own_card(&e);
        pid_t other = sleeper();
        greet_as(call_name(&mine.addr), &e, &mine.addr, other);
        CHECK(write(s[1], &its, sizeof(its)) == sizeof(its) && read(s[1], &c, 1) == 1);
        CHECK(e.mem[0] == 0xab && e.mem[4095] == 0xab);
        _exit(0);
    }
    close(s[1]);
    card its = hear_card(s[0], &who);
    if (who) {
        CHECK(lc_ep_connect(a.ep, &its.addr, &step) == 0);
        CHECK(a.ep->out && a.ep->pid == who && pid_of(a.ep->pidfd) == who);
        memset(a.mem, 0xab, 4096);
        CHECK(rma(&a, GR_WRITE, &its, 0, 0, 4096) == 0);
        CHECK(write(s[0], "q", 1) == 1);
    }
    ended_well(child);
    close_end(&a);
}

/* Another user's process, who knows the token and is root of a namespace where its user is called as ours: nothing of it is taken. */
void another_users_root(void)
{
    enum { USER = 54321 };
    int s[2];
    pid_t who = 0;
    if (geteuid() != 0) {
        fprintf(stderr, "users are changed by root\n");
        exit(SKIP);
    }
    end a = open_end(0);
    card mine = own_card(&a);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(s[0]);
        CHECK(setgid(USER) == 0 && setuid(USER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
        go_into_users(0);
        end e = open_end(0);
        card its = own_card(&e);
        greet_as(call_name(&mine.addr), &e, &mine.addr, getpid());
        CHECK(lc_ep_connect(e.ep, &mine.addr, &step) == -EACCES); /* nor does it tell us anything */
        CHECK(write(s[1], &its, sizeof(its)) == sizeof(its));
        _exit(0);
    }
    close(s[1]);
    card its = hear_card(s[0], &who);
    if (who)
        CHECK(lc_ep_connect(a.ep, &its.addr, &step) != 0); /* refused, or it has ended */
    for (int i = 0; i < 10; i++)
        poll_end(&a);
    CHECK(!a.ep->met && a.ep->in_sock < 0 && a.rail->callers == 0 && a.ep->pidfd < 0);
    ended_well(child);
    close_end(&a);
}

static void lonely(int s)
{
    struct {
        card c;
        lc_proof proof;
    } mine, its;
    pid_t pid = 1;
    if (unshare(CLONE_NEWPID) != 0)
        skip("no pid namespace here");
    go_into_pids();
    end e = open_end(0);
    mine.c = own_card(&e);
    mine.proof = e.rail->proof;
    CHECK(write(s, &mine, sizeof(mine)) == sizeof(mine) && read(s, &its, sizeof(its)) == sizeof(its));
    CHECK(lc_reach(&its.proof, &pid, &step) == -ENOTSUP && pid == 0);
    greet_as(call_name(&its.c.addr), &e, &its.c.addr, getpid());
    CHECK(lc_ep_connect(e.ep, &its.c.addr, &step) == -ENOTSUP);
    CHECK(write(s, "d", 1) == 1 && read(s, &pid, 1) == 1);
    for (int i = 0; i < 10; i++)
        poll_end(&e);
    CHECK(!e.ep->met && e.ep->in_sock < 0);
    CHECK(write(s, "d", 1) == 1 && read(s, &pid, 1) == 1);
    close_end(&e);
    _exit(0);
}

/* Two siblings: each has a number that the other can't know, and both may be process 1. */
void sibling_pids(void)
{
    int s[2];
    pid_t child[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK((child[i] = fork()) >= 0);
        if (child[i] == 0) {
            close(s[!i]);
            lonely(s[i]);
        }
    }
    close(s[0]);
    close(s[1]);
    ended_well(child[0]);
    ended_well(child[1]);
}

/* A process of that number begins, as init of this namespace can have it. */
static void reuse(pid_t pid)
{
    char last[16];
    for (uint64_t stop = limit();;) {
        CHECK(lc_now() < stop);
        snprintf(last, sizeof(last), "%d", (int)pid - 1);
        put("/proc/sys/kernel/ns_last_pid", last);
        pid_t child = sleeper();
        if (child == pid)
            return;
        kill(child, SIGKILL);
        CHECK(waitpid(child, NULL, 0) == child);
    }
}

static void new_numbers(void)
{
    if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
        skip("no namespaces here");
    go_into_pids();
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("proc", "/proc", "proc", 0, NULL) != 0)
        skip("no /proc of a namespace");
}

/* A peer that has greeted and ended, and a process that has its number now. late: its child greets, when its parent has ended. */
static int reused(int late)
{
    pid_t all = fork();
    CHECK(all >= 0);
    if (all == 0) {
        int go[2];
        char c;
        new_numbers();
        end a = open_end(0);
        CHECK(pipe(go) == 0);
        pid_t peer = fork();
        CHECK(peer >= 0);
        if (peer == 0) {
            end e = open_end(0);
            int s = call_name(&a.ep->addr);
            if (late && fork() == 0) {
                CHECK(read(go[0], &c, 1) == 1);
                greet_as(s, &e, &a.ep->addr, getpid());
                pause();
            }
            if (!late)
                greet_as(s, &e, &a.ep->addr, getpid());
            _exit(0);
        }
        CHECK(waitpid(peer, NULL, 0) == peer);
        if (late) {
            poll_end(&a);
            CHECK(a.rail->callers == 1);
            for (uint64_t from = lc_ticks(); lc_ticks() < from + 2;)
                ;
        }
        reuse(peer);
        CHECK(write(go[1], "g", 1) == 1);
        for (uint64_t stop = limit(); !a.ep->met && a.rail->callers + !late; poll_end(&a))
            CHECK(lc_now() < stop);
        if (!a.ep->met)
            _exit(TOO_LATE); /* it had been silent too long by then */
        CHECK(a.ep->err || !lc_alive(a.ep));
        CHECK(!a.ep->kin && a.ep->mem < 0);
        _exit(0); /* the others end with it */
    }
    int status;
    CHECK(waitpid(all, &status, 0) == all && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void until_in_time(int late)
{
    int status = TOO_LATE;
    for (uint64_t stop = lc_now() + 3 * (uint64_t)LIMIT_S * 1000000000; status == TOO_LATE && lc_now() < stop;)
        status = reused(late);
    if (status == SKIP)
        exit(SKIP);
    CHECK(status == 0);
}

void number_reused(void) { until_in_time(0); }
void number_reused_late(void) { until_in_time(1); }
