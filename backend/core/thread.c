/* The engine's progress threads, and progress in the application's own calls. Each thread polls the rails that name it. The
 * application's calls poll those of the first thread only. */
#define _GNU_SOURCE
#include "control.h"
#include "gr_thread.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    SPIN_NS = 20 * 1000, /* how long the thread polls after work before it blocks: a completion that is near is found, an idle engine costs nothing */
    ASSIST_POLLS = 4,   /* a call that assisted counts as so many: copying 1 MiB takes it 50 to 250 us */
    VAIN_NS = 100 * 1000, LOOK_NS = 1000 * 1000, CROWDED_NS = 20 * LOOK_NS,
    STARVED_MS = 1,     /* how soon a post refused with EAGAIN is tried again without other events */
    IDLE_POLL_MS = 250, /* how soon a completion with a lost event is found, and a message without a wake */
    IDLE_DOUBLINGS = 4, /* while nothing happens: 4 s at most. 1,000 idle agents took a quarter of a core with 250 ms */
    SURE_DOUBLINGS = 8, /* 64 s on rails that lose no event. A control frame of a peer, and each post, ends the long sleep */
};

/* Whether the thread with this number polls the rail. */
static int of(const rail_st *rail, uint32_t worker) { return rail && rail->dev->worker == worker; }

/* Counts calls that are progress made by the application. */
static void count_polls(gr_core *core, int calls) { atomic_fetch_add_explicit(&core->inline_polls, (uint64_t)calls, memory_order_relaxed); }

/* Counts a post as a poll if nothing is left in flight. An application whose posts complete inline never polls. Without
 * this, one 4 KiB post of a hundred to a process of this host took 60 us, because the thread held the lock. Links on rails
 * that do not complete inline still need the thread. */
void core_posted(gr_core *core)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (of(rail, 0) && !rail->dev->is.completes_inline && atomic_load_explicit(&rail->nlinks, memory_order_relaxed))
            return;
    }
    count_polls(core, 1);
}

/* Whether large operations are under way, ours or of peers. */
static int bulk(gr_core *core, uint64_t now)
{
    uint64_t bulks = 0, load = 0;
    for (int i = 0; i < core->nrails; i++) {
        const rail_st *rail = core->rails[i];
        if (of(rail, 0)) {
            bulks += atomic_load_explicit(&rail->dev->bulks, memory_order_relaxed);
            load += atomic_load_explicit(&rail->load, memory_order_relaxed);
        }
    }
    if (atomic_exchange_explicit(&core->poll.bulks, bulks, memory_order_relaxed) != bulks || load >= GR_BULK)
        atomic_store_explicit(&core->poll.bulk_until, now + CROWDED_NS, memory_order_relaxed);
    return now < atomic_load_explicit(&core->poll.bulk_until, memory_order_relaxed);
}

/* Whether this thread shall leave its processor: it has polled for a while in vain, the kernel has taken the processor from it lately, and
 * another thread polls, too, or large operations are under way. A thread that polls alone for small ones would wait behind other processes. */
static int leaves(gr_core *core, int found)
{
    static _Thread_local struct {
        uint64_t vain, look, until;
        long taken;
    } t;
    struct rusage use;
    if (found) {
        t.vain = 0;
        return 0;
    }
    uint64_t now = gr_now_ns();
    if (!t.vain)
        t.vain = now;
    if (now - t.vain < VAIN_NS)
        return 0;
    t.vain = now;
    uintptr_t last = atomic_exchange_explicit(&core->poll.last, (uintptr_t)&t, memory_order_relaxed);
    if (last && last != (uintptr_t)&t)
        atomic_store_explicit(&core->poll.several_until, now + CROWDED_NS, memory_order_relaxed);
    if (now >= t.look && getrusage(RUSAGE_THREAD, &use) == 0) {
        if (use.ru_nivcsw != t.taken && t.look)
            t.until = now + CROWDED_NS;
        t.taken = use.ru_nivcsw;
        t.look = now + LOOK_NS;
    }
    int large = bulk(core, now);
    return now < t.until && (large || now < atomic_load_explicit(&core->poll.several_until, memory_order_relaxed));
}

/* One bounded step for the application's checkXfer and getNotifs. It never waits for a lock. Where more threads poll than
 * there are processors, one that finds nothing leaves its processor to those that it waits for. */
void core_progress(gr_core *core)
{
    int n = core->nrails, calls = 1, assisted, found = 0;
    for (int i = 0; i < n; i++) {
        rail_st *rail = core->rails[i];
        if (!of(rail, 0) || atomic_load_explicit(&rail->nlinks, memory_order_relaxed) == 0)
            continue;
        int got = rail_progress(rail, &assisted);
        if (got >= POLL_MAX)
            rail_wake(rail); /* more work is ready, and no further edge will wake the thread */
        else
            rail_wake_starved(rail);
        if (assisted)
            calls = ASSIST_POLLS;
        found |= got > 0 || assisted;
    }
    count_polls(core, calls);
    if (leaves(core, found))
        sched_yield();
}

static void drain_wake(const struct worker *w)
{
    uint64_t v;
    ssize_t n = read(w->wake_fd, &v, sizeof v);
    (void)n;
}

static int wait_time(gr_core *core, uint32_t worker, int idle)
{
    int ms = -1;
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (!of(rail, worker) || atomic_load_explicit(&rail->nlinks, memory_order_relaxed) == 0)
            continue;
        int doublings = idle > IDLE_DOUBLINGS && !rail->dev->is.sure ? IDLE_DOUBLINGS : idle;
        int most = rail->dev->wait_fd < 0 || rail->starved ? STARVED_MS : IDLE_POLL_MS << doublings;
        if (ms < 0 || most < ms)
            ms = most;
    }
    return ms;
}

static int may_block(gr_core *core, uint32_t worker)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        gr_rail *dev = of(rail, worker) ? rail->dev : NULL;
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

/* Sets app_polls on the rails of the first thread. */
static void set_app_polls(gr_core *core, int application)
{
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        if (!of(rail, 0))
            continue;
        _Atomic int *polls = &rail->dev->app_polls;
        if (atomic_load_explicit(polls, memory_order_relaxed) != application)
            atomic_store_explicit(polls, application, memory_order_relaxed);
    }
}

static int backs_off(const struct worker *w, back_off *b, uint64_t now)
{
    gr_core *core = w->core;
    int ms = back_off_ms(b, atomic_load_explicit(&core->inline_polls, memory_order_relaxed), now);
    atomic_store_explicit(&core->tick, ms ? now : 0, memory_order_relaxed);
    set_app_polls(core, ms != 0);
    struct pollfd p = {.fd = w->wake_fd, .events = 0}; /* a short sleep: events = 0, so wake_fd does not end it */
    if (ms)
        poll(&p, 1, ms);
    return ms != 0;
}

static int poll_rails(gr_core *core, uint32_t worker)
{
    int n = 0, assisted;
    COUNT(core, GR_C_THREAD_LOOKS, 1);
    for (int i = 0; i < core->nrails; i++) {
        rail_st *rail = core->rails[i];
        int got = of(rail, worker) ? rail_progress(rail, &assisted) : 0;
        n += got > 0 ? got : 0;
    }
    return n;
}

/* Blocks until a rail of the thread has an event, or somebody wakes the thread. idle: how often it has blocked in vain. Returns the next
 * idle. */
static int block(struct worker *w, uint32_t worker, int idle)
{
    struct epoll_event ev[16];
    int got = epoll_wait(w->epoll_fd, ev, 16, wait_time(w->core, worker, idle));
    atomic_store(&w->deep, 0);
    for (int i = 0; i < got; i++)
        if (ev[i].data.fd == w->wake_fd)
            drain_wake(w);
    if (got > 0)
        COUNT(w->core, GR_C_THREAD_WAKES, 1);
    return got > 0 ? 0 : idle < SURE_DOUBLINGS ? idle + 1 : idle;
}

void gr_core_rouse(gr_core *core)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (atomic_exchange(&core->workers[i].deep, 0))
            worker_wake(&core->workers[i]);
}

/* Whether operations of ours are in flight on the thread's rails. */
static int awaits(gr_core *core, uint32_t worker)
{
    int flying = 0;
    for (int i = 0; i < core->nrails && !flying; i++) {
        rail_st *rail = core->rails[i];
        if (!of(rail, worker))
            continue;
        gr_rail_lock(rail->dev);
        flying = rail->rma_ops != 0;
        gr_rail_unlock(rail->dev);
    }
    return flying;
}

/* A progress thread. It polls while there is work and a little longer, then blocks on completion events. */
void *core_thread(void *arg)
{
    struct worker *w = arg;
    gr_core *core = w->core;
    uint32_t worker = (uint32_t)(w - core->workers);
    gr_signal_stack signals;
    gr_thread_begin(&signals);
    pthread_setname_np(pthread_self(), "gorail");
    back_off app = {0};
    back_off_watch(&app, atomic_load(&core->inline_polls), gr_now_ns());
    uint64_t last_work = 0;
    int idle = 0;
    while (!atomic_load(&core->stop)) {
        int n = poll_rails(core, worker);
        uint64_t now = gr_now_ns();
        if (worker == 0 && backs_off(w, &app, now))
            continue;
        if (n > 0) {
            last_work = now;
            idle = 0;
        }
        if (now - last_work < SPIN_NS)
            continue;
        atomic_store(&w->deep, idle > 0); /* first: what comes after arm, and wakes nobody, is followed by gr_core_rouse */
        if (may_block(core, worker)) {
            idle = block(w, worker, idle && awaits(core, worker) ? 0 : idle);
            back_off_watch(&app, atomic_load_explicit(&core->inline_polls, memory_order_relaxed), gr_now_ns());
        }
    }
    gr_thread_end();
    return NULL;
}

/* ---- Whether the first thread backs off. It does while the application polls: it polls only after each sleep. On few cores the two would
 * compete for every completion (4 KiB over loopback, 2 cores: 21 us instead of 48 us). */

enum {
    BUSY_POLLS = 8, /* application calls in a millisecond that make the thread back off */
    NAP_MS = 1,
    NAPS = 16, /* sleeps in a row before longer ones. Each poll takes 2 to 26 us of a core that the application may poll on */
    LONG_NAP_MS = 4,
};

void back_off_watch(back_off *b, uint64_t polls, uint64_t now)
{
    b->seen = polls;
    b->since = now;
    b->sleeps = 0;
    b->sleep_ms = NAP_MS;
}

int back_off_ms(back_off *b, uint64_t polls, uint64_t now)
{
    if (polls - b->seen >= (uint64_t)(BUSY_POLLS * b->sleep_ms)) {
        b->seen = polls;
        b->since = now;
        b->sleep_ms = ++b->sleeps < NAPS ? NAP_MS : LONG_NAP_MS;
        return b->sleep_ms;
    }
    /* Fewer. A thread that works on without a sleep starts again each millisecond: else polls of a target that polls seldom add up, and
     * the thread sleeps while requests wait. */
    if (b->sleeps || now - b->since >= NAP_MS * 1000000ull)
        back_off_watch(b, polls, now);
    return 0;
}

/* ---- The progress threads: one from the start, and one for each other number that a rail names. */

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
