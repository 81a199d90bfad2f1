// Finds out which library allocates.
#ifndef GORAIL_CALLERS_H
#define GORAIL_CALLERS_H

#include <stdint.h>

// The number of libraries of a process that are told apart, and bytes of a name.
enum { GR_LIBRARIES = 128, GR_NAME = 64 };

// gr_callers_start notes the caller of each allocation from now on, of all threads. That is slow: some microseconds for each. Not safe
// for concurrent use.
void gr_callers_start(void);

// gr_callers_stop ends that, and returns the number of libraries.
int gr_callers_stop(void);

// gr_callers_of returns the i-th library's file name and its allocations. The C library and that of C++ are left out: what they allocate
// counts for the library that called them.
uint64_t gr_callers_of(int i, char name[GR_NAME]);

// gr_callers_note notes an allocation of the caller's caller, if tracing.
void gr_callers_note(void);

#endif
