/* Small copies between GPU memory and the arena, for proofs. */
#include "gpu_int.h"

int gg_bytes(gr_gpu *gpu, int device, int write, uint64_t addr, void *mem, size_t size, gr_gpu_fault *fault)
{
    gg *g = gg_of(gpu);
    int rc;
    gg_dev *d = gg_device(g, device, fault, &rc);
    if (!d)
        return rc;
    pthread_mutex_lock(&g->mu);
    if ((rc = gg_enter(g, d, fault)) == 0) {
        rc = write ? GG_CALL(g, fault, copy_in, addr, mem, size, d->util)
                   : GG_CALL(g, fault, copy, (cu_ptr)(uintptr_t)mem, addr, size, d->util);
        if (rc == 0)
            rc = GG_CALL(g, fault, stream_sync, d->util);
        gg_leave(g);
    }
    pthread_mutex_unlock(&g->mu);
    return rc;
}
