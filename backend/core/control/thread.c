/* The engine's thread, and progress made by the application's own calls. */
#define _GNU_SOURCE
#include "progress.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    INLINE_BUSY = 8,  /* calls of the application in a millisecond of a nap that make the thread stand back */
    COPYING = 4,      /* calls that one counts for that copied: 1 MiB takes it 50 to 250 us */
    NAP_MS = 1,
    NAPS = 16,        /* in a row: the application goes on polling; each look takes 2 to 26 us of a core that it polls on, maybe */
    LONG_NAP_MS = 4,
    STARVED_MS = 1,   /* how soon a post refused with EAGAIN is tried again when nothing else happens */
    LOOK_MS = 250,    /* how soon a completion is found whose event was lost; costs an idle engine nothing that shows */
};

/* The application has polled, or done what is as good. */
static void polled(gr_core *core, int calls)
{
    atomic_fetch_add_explicit(&core->inline_polls, (uint64_t)calls, memory_order_relaxed);
}

/* Who posts only what completes in its post never checks: 4 KiB to a process of this host took 60 us in one post of a hundred,
 * whose lock the thread had. Such a post is as good as a poll, unless there are links on other rails: those it did not look at. */
void core_posted(gr_core *core)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (rail && !rail->dev->is.completes_inline && atomic_load_explicit(&rail->nlinks, memory_order_relaxed))
            return;
    }
    polled(core, 1);
}

/* One bounded step for the application's checkXfer and getNotifs; never blocks on a lock. */
void core_progress(gr_core *core)
{
    int n = core->nrails, calls = 1, helped;
    for (int i = 0; i < n; i++) {
        rail_st *rail = core->rails[i];
        if (!rail || atomic_load_explicit(&rail->nlinks, memory_order_relaxed) == 0)
            continue;
        if (rail_progress(rail, &helped) >= POLL_MAX)
            core_wake(core); /* more is there, and no further edge will tell the thread */
        else
            rail_unstarve(rail);
        if (helped)
            calls = COPYING;
    }
    polled(core, calls);
}

static void drain_wake(gr_core *core)
{
    uint64_t v;
    ssize_t n = read(core->thread.wake_fd, &v, sizeof v);
    (void)n;
}

static int wait_time(gr_core *core)
{
    int ms = -1;
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (!rail || atomic_load_explicit(&rail->nlinks, memory_order_relaxed) == 0)
            continue;
        int most = rail->dev->wait_fd < 0 || rail->starved ? STARVED_MS : LOOK_MS;
        if (ms < 0 || most < ms)
            ms = most;
    }
    return ms;
}

static int may_block(gr_core *core)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        gr_rail *dev = rail ? rail->dev : NULL;
        if (!dev || dev->wait_fd < 0 || !dev->ops->arm || atomic_load_explicit(&rail->nlinks, memory_order_relaxed) == 0)
            continue;
        gr_rail_lock(dev);
        int again = dev->ops->arm(dev);
        gr_rail_unlock(dev);
        if (again)
            return 0;
    }
    return 1;
}

/* Tells the rails who polls. */
static void attend(gr_core *core, int application)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (!rail)
            continue;
        _Atomic int *polls = &rail->dev->app_polls;
        if (atomic_load_explicit(polls, memory_order_relaxed) != application)
            atomic_store_explicit(polls, application, memory_order_relaxed);
    }
}

/* Polls while there is work and a little longer, then blocks on completion events. While the application polls by
 * itself, the thread stands back and only looks in once a nap: on few cores the two would fight for every completion
 * (4 KiB over loopback, 2 cores: 21 us instead of 48). */
void *core_thread(void *arg)
{
    gr_core *core = arg;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals are the application's */
    pthread_setname_np(pthread_self(), "gorail");
    uint64_t last_work = 0, seen = atomic_load(&core->inline_polls);
    int naps = 0, nap = NAP_MS;
    while (!atomic_load(&core->thread.stop)) {
        int n = 0, helped;
        COUNT(core, GR_C_THREAD_LOOKS, 1);
        for (int i = 0; i < core->nrails; i++) {
            rail_st *rail = core->rails[i];
            int got = rail ? rail_progress(rail, &helped) : 0;
            n += got > 0 ? got : 0;
        }
        uint64_t polls = atomic_load_explicit(&core->inline_polls, memory_order_relaxed);
        if (polls - seen >= (uint64_t)(INLINE_BUSY * nap)) {
            seen = polls;
            atomic_store_explicit(&core->tick, gr_now_ns(), memory_order_relaxed);
            attend(core, 1);
            struct pollfd p = {.fd = core->thread.wake_fd, .events = 0}; /* a nap, not a wait: wakes can wait for it too */
            nap = ++naps < NAPS ? NAP_MS : LONG_NAP_MS;
            poll(&p, 1, nap);
            continue;
        }
        naps = 0;
        nap = NAP_MS;
        uint64_t now = gr_now_ns();
        atomic_store_explicit(&core->tick, 0, memory_order_relaxed);
        attend(core, 0);
        if (n > 0)
            last_work = now;
        if (now - last_work < core->cfg.spin_ns)
            continue;
        seen = polls;
        if (!may_block(core))
            continue;
        struct epoll_event ev[16];
        int got = epoll_wait(core->thread.epoll_fd, ev, 16, wait_time(core));
        for (int i = 0; i < got; i++)
            if (ev[i].data.fd == core->thread.wake_fd)
                drain_wake(core);
        if (got > 0)
            COUNT(core, GR_C_THREAD_WAKES, 1);
    }
    return NULL;
}
