/* Fault schedules: sets the faults of the fake fabric. */
#include <errno.h>

#include "world.h"

void set_faults(const world *w, side *s, int rail, uint64_t *rng)
{
    fake_script c = {0};
    if (rng) {
        c.delay = (uint32_t)below(rng, 4);
        c.per_poll = (uint32_t)below(rng, 5);
        c.seed = w->ordered ? 0 : below(rng, 3);
        c.eagain_every = below(rng, 3) ? 0 : 2 + (uint32_t)below(rng, 6);
        c.no_bulk_every = below(rng, 4) ? 0 : 2 + (uint32_t)below(rng, 8);
        c.fail_at = below(rng, 3) ? 0 : 1 + below(rng, 40);
        c.fail_errno = EIO;
        c.fail_breaks = (uint8_t)w->ordered;
        c.fail_sends = !w->shared || below(rng, 2) ? 0 : 2 + (uint32_t)below(rng, 8);
        c.fail_lands = (uint8_t)below(rng, 2);
    }
    fake_rail_script(s->rail[rail], &c);
}

void toggle_rail(const world *w, uint64_t *rng)
{
    static int down = -1;
    int rail = down >= 0 ? down : (int)below(rng, (uint64_t)w->rails);
    if (w->rails == 1)
        return;
    down = down >= 0 ? -1 : rail;
    fake_rail_down(w->a.rail[rail], down >= 0 ? ENETDOWN : 0);
}
