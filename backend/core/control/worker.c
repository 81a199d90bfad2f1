/* The progress threads: one from the start, and one for each other number that a rail names. */
#include "progress.h"

#include "gr_thread.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void worker_close(struct worker *w)
{
    if (w->wake_fd >= 0)
        close(w->wake_fd);
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
}

static int start(gr_core *core, struct worker *w)
{
    w->core = core;
    w->wake_fd = GR_CALL(core_wake_fd, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    w->epoll_fd = GR_CALL(core_epoll_fd, epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = w->wake_fd};
    int rc = 0;
    if (w->wake_fd < 0 || w->epoll_fd < 0 || epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->wake_fd, &ev) != 0)
        rc = errno;
    if (rc == 0)
        rc = GR_FAIL(core_thread) ? errno : gr_thread_create(&w->id, core_thread, w);
    if (rc != 0)
        worker_close(w);
    else
        atomic_store(&w->up, 1);
    return -rc;
}

int worker_start(gr_core *core, uint32_t index)
{
    if (index >= MAX_WORKERS)
        return -EINVAL;
    struct worker *w = &core->workers[index];
    int rc = 0;
    pthread_mutex_lock(&core->slots.mu); /* two rails may join late at the same time */
    if (!atomic_load(&w->up))
        rc = start(core, w);
    pthread_mutex_unlock(&core->slots.mu);
    return rc;
}

void workers_join(gr_core *core)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (atomic_load(&core->workers[i].up) && !core->workers[i].joined) {
            pthread_join(core->workers[i].id, NULL);
            core->workers[i].joined = 1;
        }
}

void workers_free(gr_core *core)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (atomic_load(&core->workers[i].up))
            worker_close(&core->workers[i]);
}
