#pragma once

namespace gorail {

// Call these before and after the constructor of Go's half, while the thread has blocked all signals. Between the two Go installs its
// handlers of SIGBUS, SIGFPE and SIGSEGV.
void faults_before_go() noexcept;
void faults_after_go() noexcept;

} // namespace gorail
