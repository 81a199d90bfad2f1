// The end of the host process.
#pragma once

#include <cstdint>

namespace gorail {

// Calls `last` when the process exits, and before SIGTERM ends it. The first call of this counts. A host that handles or ignores
// SIGTERM by then keeps that; so does one that changes it later. Starts a thread that sleeps until the signal.
void call_before_end(int32_t (*last)()) noexcept;

} // namespace gorail
