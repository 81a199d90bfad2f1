#pragma once

namespace gorail {

// Call these before and after the constructor of Go's half, while the thread has blocked all signals. Between the two Go installs its
// handlers of SIGBUS, SIGFPE and SIGSEGV.
void faults_before_go() noexcept;
void faults_after_go(bool started) noexcept; // false: Go does not run, and the host gets its actions back

} // namespace gorail
