/* The region table. Its memory grows, and is not unmapped while the core lives. */
#include "base.h"

#include <stdlib.h>

gr_region *gr_region_at(gr_core *core, uint32_t idx)
{
    uint32_t c = idx / REGION_CHUNK;
    if (c >= REGION_CHUNKS)
        return NULL;
    char *chunk = atomic_load_explicit(&core->regions.chunk[c], memory_order_acquire);
    if (!chunk) {
        pthread_mutex_lock(&core->slots.mu);
        chunk = atomic_load(&core->regions.chunk[c]);
        if (!chunk) {
            chunk = GR_ALLOC(core_region, calloc(REGION_CHUNK, core->regions.size));
            atomic_store(&core->regions.chunk[c], chunk);
        }
        pthread_mutex_unlock(&core->slots.mu);
        if (!chunk)
            return NULL;
    }
    return (gr_region *)(void *)(chunk + (size_t)(idx % REGION_CHUNK) * core->regions.size);
}

void gr_region_live(gr_region *region, int live) { atomic_store(&region->live, (uint32_t)live); }
