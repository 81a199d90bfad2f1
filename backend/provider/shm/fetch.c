/* Brings descriptors of a peer's VMM memory. Nothing here waits: the peer may be stopped, or one that never answers. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "local.h"

union room {
    char bytes[CMSG_SPACE(LC_PIECES * sizeof(int))];
    struct cmsghdr align;
};

/* 1: later. Who listens must be the process whose memory it is: another's descriptors would be mapped under its name. */
static int meet(lc_import *in)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    pid_t pid = 0;
    memcpy(to.sun_path, in->feed_name, in->feed_len);
    if (connect(in->sock, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + in->feed_len)) != 0)
        return errno == EAGAIN ? 1 : -GR_GPU_SILENT;
    if (lc_check_user(in->sock, &pid) != 0 || (uint32_t)pid != in->share.pad)
        return -GR_GPU_BAD_SHARE;
    in->met = 1;
    return 0;
}

static int ask(lc_import *in)
{
    lc_want q = { .key = in->key, .first = in->fed };
    q.n = in->share.pieces - in->fed < LC_PIECES ? in->share.pieces - in->fed : LC_PIECES;
    memcpy(q.token, in->feed_token, LC_TOKEN);
    if (send(in->sock, &q, sizeof(q), MSG_NOSIGNAL) != sizeof(q))
        return errno == EAGAIN ? 1 : -GR_GPU_SILENT;
    in->want = q.n;
    return 0;
}

/* One message of descriptors, or 1: it has not come. Whatever else it is, nothing that came with it stays open. */
static int take(lc_import *in, int *fd, uint64_t *size)
{
    lc_given r = { 0 };
    union room c;
    struct iovec iov = { &r, sizeof(r) };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.bytes, .msg_controllen = sizeof(c.bytes) };
    uint32_t got = 0;
    ssize_t n = recvmsg(in->sock, &m, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN ? 1 : -GR_GPU_SILENT;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && !got) {
            got = (uint32_t)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fd, CMSG_DATA(h), got * sizeof(int));
        }
    int why = n == 0 ? GR_GPU_SILENT : n != sizeof(r) || r.why < 0 || r.why >= GR_GPU_WHY_COUNT ? GR_GPU_BAD_SHARE : r.why ? r.why
              : m.msg_flags & MSG_CTRUNC ? GR_GPU_NO_FDS : got != in->want || r.n != in->want ? GR_GPU_BAD_SHARE : 0;
    for (uint32_t i = 0; why && i < got; i++)
        close(fd[i]);
    memcpy(size, r.size, sizeof(r.size));
    return -why;
}

int lc_fetch(gr_gpu *g, lc_import *in, gr_gpu_fault *fault)
{
    int fd[LC_PIECES], rc = 0;
    uint64_t size[LC_PIECES];
    if (in->sock < 0 && (in->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0)
        return -GR_GPU_NO_FDS;
    if (lc_now() > in->until)
        return -GR_GPU_SILENT;
    if ((!in->met && (rc = meet(in))) || (!in->want && (rc = ask(in))) || (rc = take(in, fd, size)))
        return rc;
    if ((rc = g->ops->map_add(g, in->map, in->want, fd, size, fault)))
        return rc;
    in->fed += in->want;
    in->want = 0;
    in->until = lc_now() + (uint64_t)LC_PATIENCE_S * 1000000000;
    return in->fed < in->share.pieces ? (rc = ask(in)) < 0 ? rc : 1 : 0;
}

void lc_fetch_end(lc_import *in)
{
    if (in->sock >= 0)
        close(in->sock);
    in->sock = -1;
    in->met = 0;
    in->fed = in->want = 0;
}
