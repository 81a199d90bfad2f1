// Package worker runs a real NIXL agent in a process of its own that obeys a
// test (see package subprocess).
//
// A program that uses it calls MaybeRun first thing (in TestMain or main):
// Start executes the same binary again, and MaybeRun turns that copy into the
// worker. Every call has a deadline; a worker that misses it is killed and the
// test fails with what the worker printed.
//
// Workers on another host are the same: a keeper runs there (EnvKeep), Dial
// reaches it, and commands travel over TCP.
//
// An agent without a sync mode lives on one locked thread of the worker, as in
// a single-threaded application. Commands that wait (Wait, WaitNotifs) poll in
// slices, so other commands get their turn; Loop keeps the thread.
package worker
