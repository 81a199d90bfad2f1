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
//	Fresh      a transfer that was posted after its owner had changed what is behind the addresses has nothing to do with what was there
//	Alive      transfers with a living peer, whose memory has not changed, succeed; all transfers do, where each fault leaves a rail
//	GivenBack  peers give back memory that its owner has unmapped or deregistered, and memory of the dead
//
// Rows of the table Exceptions excuse what GORAIL does not promise. Everything else is a violation.
//
// The package does no I/O but on the files. Package actor plays a process, package mover one whose memory changes, and
// package play lets several live through faults. The tests that make histories are test/e2e TestHistory*, TestFailover, and TestFailover
// of test/rdma/inside.
package history
