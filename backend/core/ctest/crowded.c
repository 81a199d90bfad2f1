/* Threads that poll in vain and share one processor leave it to each other. A thread that polls alone keeps it, unless large operations are
 * under way. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/resource.h>

#include "scenario.h"

enum { THREADS = 4, ENOUGH = 20 };

void core_progress(gr_core *core); /* control/progress.h */

static gr_core *core;
static _Atomic int over, left;

int __real_sched_yield(void);
int __wrap_sched_yield(void);

int __wrap_sched_yield(void)
{
    atomic_fetch_add(&left, 1);
    return __real_sched_yield();
}

static void *polls(void *unused)
{
    (void)unused;
    while (!atomic_load(&over))
        core_progress(core);
    return NULL;
}

static void *spins(void *unused)
{
    (void)unused;
    while (!atomic_load(&over))
        ;
    return NULL;
}

static long taken(void)
{
    struct rusage use;
    CHECK(!getrusage(RUSAGE_THREAD, &use), "getrusage");
    return use.ru_nivcsw;
}

void crowded(void)
{
    pthread_t others[THREADS];
    cpu_set_t all, one;
    CHECK(!sched_getaffinity(0, sizeof all, &all), "sched_getaffinity");
    CPU_ZERO(&one);
    for (int i = 0; !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one), "sched_setaffinity"); /* threads inherit it */
    scene(1, 1, 1);
    core = w.a.core;

    uint64_t until = gr_now_ns() + 60000000000u;
    pthread_create(&others[0], NULL, spins, NULL);
    for (long begin = taken(); taken() < begin + ENOUGH;) { /* the kernel takes the processor from it so often */
        CHECK(gr_now_ns() < until, "a minute has passed");
        core_progress(core);
    }
    CHECK(!atomic_load(&left), "a thread that polls alone has left its processor");
    while (atomic_load(&left) < ENOUGH) {
        CHECK(gr_now_ns() < until, "a minute has passed, and a thread that waits for large operations has left its processor %d times", atomic_load(&left));
        atomic_fetch_add(&((gr_rail *)w.a.rail[0])->bulks, 1);
        core_progress(core);
    }
    for (uint64_t calm = gr_now_ns() + 1000000000u; gr_now_ns() < calm;) /* they are over */
        core_progress(core);
    atomic_store(&left, 0);
    atomic_store(&over, 1);
    pthread_join(others[0], NULL);
    atomic_store(&over, 0);

    for (int i = 0; i < THREADS; i++)
        pthread_create(&others[i], NULL, polls, NULL);
    while (atomic_load(&left) < ENOUGH) {
        CHECK(gr_now_ns() < until, "a minute has passed, and %d times one of %d threads has left its processor", atomic_load(&left), THREADS);
        core_progress(core);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(others[i], NULL);
    world_close(&w);
}
