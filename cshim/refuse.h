// Errors of the shim itself.
#pragma once

#include "backend_calls.h"
#include "nixl_engine_abi.h"

namespace gorail {

// Logs why a call is refused (GR_REFUSED_*), as errors of the Go half are logged, and returns its status. Where Go does not run it is
// refuse_without_go.
nixl_status_t refuse(const char *call, int why) noexcept;

// Whether Go can be called: not in a child of fork, nor where it was not started for want of room.
bool go_runs() noexcept;

// The refusal where Go does not run. Go's log does not work there: the first refusal of each process writes one line to standard error.
// Nothing is written that would have to wait for a reader.
nixl_status_t refuse_without_go(const char *call) noexcept;

} // namespace gorail
