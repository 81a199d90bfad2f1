//go:build failpoints

/* The counts of all points, and the pass that fails. */
#include "failpoint.h"

#include <errno.h>
#include <stdatomic.h>

static _Atomic uint64_t passes[GR_FAILPOINT_COUNT];
static _Atomic uint64_t first_fails[GR_FAILPOINT_COUNT]; /* the number of the first pass that fails; 0: none */
static _Atomic uint64_t last_fails;
static _Atomic int with;

int gr_failpoint(int point)
{
    uint64_t pass = atomic_fetch_add(&passes[point], 1) + 1, first = atomic_load(&first_fails[point]);
    if (!first || pass < first || pass > atomic_load(&last_fails))
        return 0;
    errno = atomic_load(&with);
    return 1;
}

const char *failpoint_name(int point)
{
#define NAME(name) #name,
    static const char *const names[] = {GR_FAILPOINTS(NAME)};
    return names[point];
}

void failpoint_arm(int point, uint64_t first, uint64_t last, int err)
{
    for (int i = 0; i < GR_FAILPOINT_COUNT; i++) {
        atomic_store(&first_fails[i], 0);
        atomic_store(&passes[i], 0);
    }
    atomic_store(&with, err);
    atomic_store(&last_fails, last);
    atomic_store(&first_fails[point], first);
}

uint64_t failpoint_passes(int point) { return atomic_load(&passes[point]); }
