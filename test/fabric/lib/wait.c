/* Blocking. A queue's descriptor becomes readable when there may be work. The descriptor is an epoll of three: the real queue's
 * descriptor (edge-triggered, because that of net 1.17 stays readable), an eventfd for our own work, and a timer for operations that
 * wait for a peer. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "fab.h"

static int watch(fab_cq *cq, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
    return epoll_ctl(cq->fd, EPOLL_CTL_ADD, fd, &ev);
}

int fab_wait_open(fab_cq *cq)
{
    cq->fd = epoll_create1(EPOLL_CLOEXEC);
    cq->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cq->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (cq->fd >= 0 && cq->event >= 0 && cq->timer >= 0 && !watch(cq, cq->event) && !watch(cq, cq->timer) && !watch(cq, cq->dom->real_fd))
        return 0;
    fab_wait_close(cq);
    return -FI_EMFILE;
}

void fab_wait_close(fab_cq *cq)
{
    int *const fds[] = {&cq->fd, &cq->event, &cq->timer};
    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

/* Wakes the threads that block on a queue after fi_trywait returned 0. */
void fab_wake(fab_dom *dom)
{
    const uint64_t one = 1;
    for (fab_cq *cq = dom->cq_list; cq; cq = cq->next) {
        if (cq->armed && write(cq->event, &one, sizeof(one)) == sizeof(one))
            cq->armed = false;
    }
}

static bool real_ready(fab_dom *dom)
{
    struct fid *fid = &dom->real_cq->fid;
    struct epoll_event ev[4];
    int n;
    if (!fab_real_get()->lazy_sockets) /* tcp of 2.x resets its signal, but sockets may hold more data without a new edge */
        return fi_trywait(dom->real_fabric, &fid, 1) != 0 || epoll_wait(dom->real_fd, ev, 4, 0) > 0;
    n = epoll_wait(dom->real_fd, ev, 4, 0);
    for (int i = 0; i < n; i++)
        if (ev[i].data.u64 != dom->signal_tag)
            return true;
    return false;
}

static int try_one(fab_cq *cq)
{
    const struct itimerspec tick = {.it_value.tv_nsec = 1000000};
    struct epoll_event ev[4];
    uint64_t count;
    bool waiting = false;
    if (cq->fd < 0)
        return -FI_EINVAL;
    (void)epoll_wait(cq->fd, ev, 4, 0);
    (void)!read(cq->event, &count, sizeof(count));
    (void)!read(cq->timer, &count, sizeof(count));
    if (cq->n || cq->nerrors || cq->dom->more || fab_must_poll(cq->dom, &waiting) || real_ready(cq->dom))
        return -FI_EAGAIN;
    if (waiting)
        timerfd_settime(cq->timer, 0, &tick, NULL);
    cq->armed = true;
    return 0;
}

int fab_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
    (void)fabric;
    for (int i = 0; i < count; i++) {
        fab_cq *cq = FAB_OF(fab_cq, fids[i]);
        int rc;
        if (fids[i]->fclass != FI_CLASS_CQ)
            return -FI_EINVAL;
        if (fab_is_closed(cq->state, cq->dom->kind, "fi_trywait"))
            return -FI_EBADF;
        fab_lock(cq->dom);
        rc = try_one(cq);
        fab_unlock(cq->dom);
        if (rc)
            return rc;
    }
    return 0;
}

int fab_cq_control(struct fid *fid, int command, void *arg)
{
    fab_cq *cq = FAB_OF(fab_cq, fid);
    if (command != FI_GETWAIT || cq->fd < 0)
        return -FI_ENOSYS;
    *(int *)arg = cq->fd;
    return 0;
}
