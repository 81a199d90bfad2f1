#pragma once

namespace gorail {

// Restores the host's SIGPIPE and SIGURG dispositions, once. Call it when Go's runtime is up: after any export has
// returned.
void restore_host_signals();

} // namespace gorail
