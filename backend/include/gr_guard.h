/* Copies of the application's memory. An application may unmap registered memory, protect it or truncate its file at any time. A load or
 * a store of ours would then end its process. So the kernel makes these copies, and says that memory is not there. The plugin installs no
 * handler of signals for that. backend/provider/internal/clib implements them.
 *
 * One call costs 0.7 us and copies 4 KiB in that time, 64 KiB take 5.2 us; memcpy takes 0.06 and 2.8. Application memory is received and
 * sent in place where that is possible: sockets copy by the kernel anyway. TestGuarded of internal/structure finds other copies.
 *
 * All functions are safe for any thread. They do not change memory in other ways, and memory that a failed copy has reached is undefined. */
#ifndef GORAIL_GUARD_H
#define GORAIL_GUARD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct gr_span {
    void *to;
    const void *from;
    size_t len;
} gr_span;

/* Copies memory of ours to n pieces of the application's, or back. Returns the number of pieces that were copied. If that is less than
 * n, the next piece is memory that is not there. Implements process_vm_readv, process_vm_writev. */
int gr_guard_store(const struct iovec *to, int n, const void *from);
int gr_guard_load(void *to, const struct iovec *from, int n);
/* Copies spans as memmove does; both sides may be the application's. 0, or EFAULT. */
int gr_guard_move(uint32_t n, const gr_span *span);
/* Whether all bytes can be read. Takes as long as a copy of them. */
int gr_guard_readable(const void *at, size_t len);
/* For tests: 1 takes the way of processes that may not call process_vm_readv, 0 undoes it. */
void gr_guard_by_pipe(int on);

#endif
