#pragma once

namespace gorail {

// Gives the host's SIGPIPE and SIGURG dispositions back, once. Call after Go's runtime is up: after any export returned.
void restore_host_signals();

} // namespace gorail
