/* Whether the first thread backs off. It does while the application polls: it polls only after each sleep. On few cores the two would
 * compete for every completion (4 KiB over loopback, 2 cores: 21 us instead of 48 us). */
#include "progress.h"

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
