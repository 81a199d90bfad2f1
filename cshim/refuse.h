// Errors of the shim itself.
#pragma once

#include "backend_calls.h"
#include "nixl_engine_abi.h"

namespace gorail {

// Logs why a call is refused (GR_REFUSED_*), as errors of the Go half are logged, and returns its status. In a child of fork it is
// refuse_child.
nixl_status_t refuse(const char *call, int why) noexcept;

// The refusal in a child of fork. Go's log does not work there: the first refusal of each child writes one line to standard error.
// Nothing is written that would have to wait for a reader.
nixl_status_t refuse_child(const char *call) noexcept;

} // namespace gorail
