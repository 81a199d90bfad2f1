/* Whether memory is mapped and readable. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fab.h"

/* test/cuda's GPU memory is mapped without access: the CPU cannot read it. */
bool fab_readable(uint64_t at)
{
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)at, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

/* Checks the first page, the last page and 63 pages between, because regions may be huge. */
bool fab_mapped(uint64_t base, uint64_t len)
{
    enum { SAMPLES = 64 };
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = base & ~(page - 1), last = (base + len - 1) & ~(page - 1);
    for (uint64_t i = 0; i <= SAMPLES; i++) {
        uint64_t at = i == SAMPLES ? last : first + ((last - first) / SAMPLES * i & ~(page - 1));
        unsigned char in;
        if (mincore((void *)(uintptr_t)at, page, &in))
            return false;
    }
    return true;
}
