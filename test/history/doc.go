// Package history judges what agents in several processes did while these were killed, stopped and cut off.
//
// Each process appends its events to a file (Log). Check reads all of them and looks for what GORAIL promises:
//
//	Bytes      success means that the bytes are in place
//	Delivered  an accepted notification arrives exactly once
//	Ordered    and not before one that was accepted before it was sent
//	Untouched  memory of a transfer that has ended, and deregistered memory, does not change
//	Ends       every call and every transfer ends in time
//	TakenBack  deregisterMem succeeds
//
// Rows of the table Exceptions excuse what GORAIL does not promise. Everything else is a violation.
//
// The package does no I/O but on the files. Package actor plays a process. The tests that make histories are
// test/e2e TestHistory*.
package history
