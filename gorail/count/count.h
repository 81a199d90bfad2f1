// Counts what this process does that a hot path should not do: allocations of C, and locks that another thread holds.
#ifndef GORAIL_COUNT_H
#define GORAIL_COUNT_H

#include <stdint.h>

// The values of gr_count_look, in this order. They only grow.
enum {
    GR_ALLOCS,    // calls of malloc, calloc and the like, of every library of the process
    GR_CONTENDED, // pthread locks (mutex, rwlock, spin) that another thread held when they were asked for
    GR_SWITCHES,  // voluntary context switches: a thread slept
    GR_PREEMPTED, // involuntary ones: another thread got the core
    GR_FAULTS,    // page faults, without those that read from a disk
    GR_COUNTS
};

// gr_count_look reads all counts of the process.
void gr_count_look(uint64_t out[GR_COUNTS]);

#endif
