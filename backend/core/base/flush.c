/* Flushes device writes to GPU memory. The GPU's work then sees the data before the application learns of the data. Without
 * registered callbacks nothing happens. */
#include "base.h"

#include <errno.h>

int gr_core_flush_by(gr_core *core, void (*call)(void *arg), void *arg)
{
    int rc = 0;
    pthread_mutex_lock(&core->slots.mu);
    uint32_t n = atomic_load(&core->flush.n), i = 0;
    while (i < n && !(core->flush.callbacks[i].call == call && core->flush.callbacks[i].arg == arg))
        i++;
    if (i == MAX_FLUSHES) {
        rc = -ENOSPC;
    } else if (i == n) {
        core->flush.callbacks[n].call = call;
        core->flush.callbacks[n].arg = arg;
        atomic_store_explicit(&core->flush.n, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&core->slots.mu);
    return rc;
}

void core_flush(gr_core *core)
{
    uint32_t n = atomic_load_explicit(&core->flush.n, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++)
        core->flush.callbacks[i].call(core->flush.callbacks[i].arg);
}
