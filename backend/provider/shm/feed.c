/* Descriptors of VMM memory: made by its owner when a peer maps it, and sent over a socket of the rail's own, whose name and token only those
 * know who have the table of shares. Anybody may connect, though: other users' processes are refused, and nobody is waited for. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "local.h"

enum {
    CALLERS = 64,  /* at a time; one more, and the one that was silent longest goes, of those first that have shown no token */
    LOOK_MS = 500, /* how soon one is found that has been silent too long */
};

typedef struct caller {
    int sock;
    uint64_t heard;
    int proved;
} caller;

union room {
    char bytes[CMSG_SPACE(LC_PIECES * sizeof(int))];
    struct cmsghdr align;
};

/* The memory of a region, as long as that is registered. */
static int find(lc_rail *rail, uint64_t key, gr_gpu_mem *mem)
{
    int there = 0;
    uint32_t index = (uint32_t)key;
    pthread_mutex_lock(&rail->table_mu);
    if (index < rail->entries && (key >> 32 & 1) && atomic_load(&rail->table[index].generation) == key >> 32) {
        uint64_t place = atomic_load(&rail->table[index].share);
        there = place != 0;
        if (there)
            *mem = rail->mem[place - 1];
    }
    pthread_mutex_unlock(&rail->table_mu);
    return there;
}

/* A caller that has not taken its last answer gets no other. */
static int answer(lc_rail *rail, int sock, const lc_want *q)
{
    gr_gpu *g = atomic_load(&rail->gpu);
    gr_gpu_mem mem;
    lc_given r = { 0 };
    int fd[LC_PIECES];
    union room c;
    memset(&c, 0, sizeof(c));
    if (q->n == 0 || q->n > LC_PIECES || memcmp(q->token, rail->shares->token, LC_TOKEN) != 0)
        return -1;
    r.why = !find(rail, q->key, &mem) ? GR_GPU_CHANGED : -g->ops->pieces(g, &mem, q->first, q->n, fd, r.size, NULL);
    r.n = r.why ? 0 : q->n;
    struct iovec iov = { &r, sizeof(r) };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (r.n) {
        m.msg_control = c.bytes;
        m.msg_controllen = CMSG_SPACE(r.n * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(r.n * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(h), fd, r.n * sizeof(int));
    }
    ssize_t sent = sendmsg(sock, &m, MSG_NOSIGNAL);
    for (uint32_t i = 0; i < r.n; i++)
        close(fd[i]);
    return sent == sizeof(r) ? 0 : -1;
}

/* Not 0: the caller is to go. */
static int serve(lc_rail *rail, caller *c)
{
    lc_want q;
    ssize_t n = recv(c->sock, &q, sizeof(q), 0);
    if (n < 0)
        return errno != EAGAIN;
    c->heard = lc_now();
    if (n != sizeof(q) || answer(rail, c->sock, &q) != 0)
        return 1;
    c->proved = 1;
    return 0;
}

static void let_go(caller *list, int *n, int i)
{
    close(list[i].sock);
    list[i] = list[--*n];
}

static void let_go_oldest(caller *list, int *n)
{
    int oldest = 0;
    for (int i = 1; i < *n; i++)
        if (list[i].proved != list[oldest].proved ? !list[i].proved : list[i].heard < list[oldest].heard)
            oldest = i;
    let_go(list, n, oldest);
}

static void welcome(lc_rail *rail, caller *list, int *n)
{
    for (int i = 0; i < CALLERS; i++) { /* then the others' turn */
        caller c = { accept4(rail->feed_sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), lc_now(), 0 };
        pid_t pid;
        if (c.sock < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                if (*n)
                    let_go_oldest(list, n);
                nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL); /* it stays readable */
            }
            return;
        }
        if (lc_check_user(c.sock, &pid) != 0 || serve(rail, &c)) { /* what it wants is there already, mostly */
            close(c.sock);
            continue;
        }
        if (*n == CALLERS)
            let_go_oldest(list, n);
        list[(*n)++] = c;
    }
}

static void *run(void *arg)
{
    lc_rail *rail = arg;
    caller list[CALLERS];
    struct pollfd p[CALLERS + 1] = { { .fd = rail->feed_sock, .events = POLLIN } };
    int n = 0;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are the application's */
    while (!atomic_load(&rail->feed_stop)) {
        for (int i = 0; i < n; i++)
            p[i + 1] = (struct pollfd){ .fd = list[i].sock, .events = POLLIN };
        (void)poll(p, (nfds_t)n + 1, n ? LOOK_MS : -1);
        uint64_t now = lc_now();
        for (int i = n; i-- > 0;) /* backwards: the last one takes a place that is free */
            if (list[i].heard + (uint64_t)LC_PATIENCE_S * 1000000000 < now || (p[i + 1].revents && serve(rail, &list[i])))
                let_go(list, &n, i);
        if (p[0].revents)
            welcome(rail, list, &n);
    }
    while (n)
        close(list[--n].sock);
    return NULL;
}

int lc_feed_open(lc_rail *rail, const char **step)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t len = sizeof(name);
    lc_shares *s = rail->shares;
    int rc = 0;
    if (rail->feed_up)
        return 0;
    *step = "socket for descriptors";
    rail->feed_sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (rail->feed_sock < 0)
        return -errno;
    if (bind(rail->feed_sock, (struct sockaddr *)&name, sizeof(name.sun_family)) != 0 || listen(rail->feed_sock, 128) != 0 ||
        getsockname(rail->feed_sock, (struct sockaddr *)&name, &len) != 0 || getrandom(s->token, LC_TOKEN, 0) != LC_TOKEN)
        rc = -errno;
    size_t n = len - offsetof(struct sockaddr_un, sun_path);
    if (!rc && (n == 0 || n > sizeof(s->name)))
        rc = -ENAMETOOLONG;
    if (!rc) {
        s->name_len = (uint8_t)n;
        memcpy(s->name, name.sun_path, n);
        rc = -pthread_create(&rail->feed_thread, NULL, run, rail);
    }
    if (rc)
        close(rail->feed_sock);
    rail->feed_up = rc == 0;
    return rc;
}

void lc_feed_close(lc_rail *rail)
{
    if (!rail->feed_up)
        return;
    atomic_store(&rail->feed_stop, 1);
    shutdown(rail->feed_sock, SHUT_RDWR); /* ends the wait */
    pthread_join(rail->feed_thread, NULL);
    close(rail->feed_sock);
}
