// Package worker runs a real NIXL agent in its own process, controlled by a test (see package subprocess).
//
// A program that uses the package calls MaybeRun first (in TestMain or main). Start executes the same binary again, and
// MaybeRun turns that process into the worker. Every call has a deadline. A worker that misses it is killed, and the
// test fails with the worker's output.
//
// Workers on another host work the same way: a keeper runs there (EnvKeep), Dial connects to it, and commands travel
// over TCP.
//
// An agent without a sync mode lives on one locked thread of the worker, as in a single-threaded application. Waiting
// commands (Wait, WaitNotifs) poll in slices, so other commands can run in between. Loop keeps the thread.
package worker
