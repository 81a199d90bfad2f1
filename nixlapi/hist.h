// A histogram of times in nanoseconds with 128 buckets per power of two, a resolution of 0.8 %. It allocates nothing. The layout is that of an HDR
// histogram from 1 ns on with two significant figures.
#ifndef GORAIL_NIXLAPI_HIST_H
#define GORAIL_NIXLAPI_HIST_H

#include <stdint.h>
#include <time.h>

enum { GN_HIST_BITS = 7, GN_HIST_SIZE = 40 << GN_HIST_BITS };

typedef struct {
    uint64_t sum; // ns
    uint64_t max;
    uint64_t n[GN_HIST_SIZE];
} gn_hist;

// gn_hist_index returns v below 256. Above, it combines the power of two and the next seven bits. The last bucket has all
// times from 19 hours on.
static inline unsigned gn_hist_index(uint64_t v)
{
    if (v < 2u << GN_HIST_BITS)
        return (unsigned)v;
    unsigned shift = 63 - GN_HIST_BITS - (unsigned)__builtin_clzll(v);
    unsigned i = (shift << GN_HIST_BITS) + (unsigned)(v >> shift);
    return i < GN_HIST_SIZE ? i : GN_HIST_SIZE - 1;
}

static inline void gn_hist_add(gn_hist *h, int64_t ns)
{
    uint64_t v = ns < 0 ? 0 : (uint64_t)ns;
    h->n[gn_hist_index(v)]++;
    h->sum += v;
    if (v > h->max)
        h->max = v;
}

static inline int64_t gn_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#endif
