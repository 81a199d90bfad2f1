/* Descriptors of VMM memory: made by its owner when a peer maps it, and sent over a socket of the rail's own, whose name and token only those
 * know who have the table of shares. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include "local.h"

enum {
    AT_ONCE = 64, /* descriptors of a message; the kernel takes 253 */
    WAIT_S = 5,   /* for the other side */
};

typedef struct request {
    uint8_t token[LC_TOKEN];
    uint64_t key;
    uint32_t first, n;
} request;

typedef struct reply {
    int32_t why; /* a gr_gpu_why */
    uint32_t n;
    uint64_t size[AT_ONCE];
} reply;

union room {
    char bytes[CMSG_SPACE(AT_ONCE * sizeof(int))];
    struct cmsghdr align;
};

static void patience(int sock)
{
    const struct timeval t = { .tv_sec = WAIT_S };
    (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

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

static int answer(lc_rail *rail, int sock, const request *q)
{
    gr_gpu *g = atomic_load(&rail->gpu);
    gr_gpu_mem mem;
    reply r = { 0 };
    int fd[AT_ONCE];
    union room c;
    memset(&c, 0, sizeof(c));
    if (q->n == 0 || q->n > AT_ONCE || memcmp(q->token, rail->shares->token, LC_TOKEN) != 0)
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

static void *serve(void *arg)
{
    lc_rail *rail = arg;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are the application's */
    while (!atomic_load(&rail->feed_stop)) {
        int sock = accept4(rail->feed_sock, NULL, NULL, SOCK_CLOEXEC);
        request q;
        if (sock < 0)
            continue;
        patience(sock);
        while (!atomic_load(&rail->feed_stop) && recv(sock, &q, sizeof(q), 0) == sizeof(q) && answer(rail, sock, &q) == 0)
            ;
        close(sock);
    }
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
    rail->feed_sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
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
        rc = -pthread_create(&rail->feed_thread, NULL, serve, rail);
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
    shutdown(rail->feed_sock, SHUT_RDWR);
    pthread_join(rail->feed_thread, NULL);
    close(rail->feed_sock);
}

/* One message of descriptors; how many, or a negative gr_gpu_why. */
static int take(int sock, int *fd, uint64_t *size, uint32_t want)
{
    reply r;
    union room c;
    struct iovec iov = { &r, sizeof(r) };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof(c.bytes) };
    uint32_t got = 0;
    if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != sizeof(r))
        return -GR_GPU_REFUSED;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && !got) {
            got = (uint32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fd, CMSG_DATA(h), got * sizeof(int));
        }
    int why = r.why < 0 || r.why >= GR_GPU_WHY_COUNT ? GR_GPU_BAD_SHARE : r.why ? r.why : m.msg_flags & MSG_CTRUNC ? GR_GPU_NO_FDS
              : got != want || r.n != want ? GR_GPU_BAD_SHARE : 0;
    for (uint32_t i = 0; why && i < got; i++)
        close(fd[i]);
    memcpy(size, r.size, sizeof(r.size));
    return why ? -why : (int)got;
}

int lc_feed(gr_gpu *g, const lc_import *in, gr_gpu_fault *fault)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int fd[AT_ONCE], rc = 0;
    uint64_t size[AT_ONCE];
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -GR_GPU_NO_FDS;
    patience(sock);
    memcpy(to.sun_path, in->feed_name, in->feed_len);
    if (connect(sock, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + in->feed_len)) != 0)
        rc = -GR_GPU_REFUSED;
    for (uint32_t at = 0, n; !rc && at < in->share.pieces; at += n) {
        request q = { .key = in->key, .first = at };
        n = in->share.pieces - at < AT_ONCE ? in->share.pieces - at : AT_ONCE;
        q.n = n;
        memcpy(q.token, in->feed_token, LC_TOKEN);
        rc = send(sock, &q, sizeof(q), MSG_NOSIGNAL) == sizeof(q) ? take(sock, fd, size, n) : -GR_GPU_REFUSED;
        if (rc > 0)
            rc = g->ops->map_add(g, in->map, n, fd, size, fault);
    }
    close(sock);
    return rc;
}
