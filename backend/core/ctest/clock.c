/* The clock of a run with one thread, and the hash of what that run did. The linker puts __wrap_gr_now_ns in place of the
 * core's clock (-Wl,--wrap), so the product has no hook. Other threads, and runs with threads, read the real clock. */
#include "world.h"

static _Thread_local int given; /* this thread's clock is given */
static uint64_t now, rng, hash = 1469598103934665603u;

uint64_t __real_gr_now_ns(void);
uint64_t __wrap_gr_now_ns(void);

void clock_given(uint64_t seed)
{
    given = 1;
    now = 1000000000;
    rng = ~seed;
}

void trace(uint64_t value)
{
    if (given)
        hash = (hash ^ value) * 1099511628211u;
}

uint64_t traced(void) { return hash; }

/* Time passes with each look: mostly less than 2 us, seldom some ms, as on a host whose processor is wanted elsewhere. */
uint64_t __wrap_gr_now_ns(void)
{
    if (!given)
        return __real_gr_now_ns();
    uint64_t luck = fake_random(&rng);
    uint64_t most = luck % 4096 == 0 ? 300000000 : luck % 64 == 0 ? 200000 : 2000;
    now += 1 + fake_random(&rng) % most;
    trace(now);
    return now;
}
