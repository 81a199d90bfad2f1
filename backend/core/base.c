/* Time, and the wake-up of the thread. */
#include "base.h"

#include <time.h>
#include <unistd.h>

uint64_t gr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void core_wake(gr_core *core)
{
    uint64_t one = 1;
    ssize_t n = write(core->thread.wake_fd, &one, sizeof one);
    (void)n; /* full means that a wake is pending already */
}
