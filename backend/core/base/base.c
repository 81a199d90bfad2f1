/* Time, waking the progress thread, and the errno of a failed operation. */
#include "base.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

uint64_t gr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void worker_wake(const struct worker *w)
{
    uint64_t one = 1;
    ssize_t n = write(w->wake_fd, &one, sizeof one);
    (void)n; /* the counter is full: a wake-up is pending already */
}

void core_wake(gr_core *core)
{
    for (int i = 0; i < MAX_WORKERS; i++)
        if (atomic_load_explicit(&core->workers[i].up, memory_order_acquire))
            worker_wake(&core->workers[i]);
}

/* Records the errno of a failed operation. ECANCELED only follows another failure, so ECANCELED never replaces a recorded
 * errno. */
void note_wire_err(gr_xfer *x, int err)
{
    if (err != ECANCELED || !atomic_load(&x->wire_err))
        atomic_store(&x->wire_err, err);
}
