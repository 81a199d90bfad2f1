#pragma once

#include <cstdint>

namespace gorail {

// Restores the host's SIGPIPE and SIGURG dispositions, once. Call it when Go's runtime is up: after any export has
// returned.
void restore_host_signals();

// Call it on each thread before the thread calls Go. The thread's signal mask stays as it is, but for SIGBUS, SIGFPE and SIGSEGV:
// Go turns these into panics, and needs them unblocked.
void bind_thread() noexcept;

// Calls `last` when the process exits, and before SIGTERM ends it. The first call of this counts. A host that handles or ignores
// SIGTERM by then keeps that; so does one that changes it later. Starts a thread that sleeps until the signal.
void call_before_end(int32_t (*last)()) noexcept;

} // namespace gorail
