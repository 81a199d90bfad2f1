package fake

import "syscall"

// Script sets how a rail misbehaves from now on; the zero value behaves. It applies to operations that this rail posts.
type Script struct {
	Delay       int    // polls of either side before an operation is executed
	PerPoll     int    // operations executed in one poll of this rail, 0 = all
	ReorderSeed uint64 // not 0: operations are executed and completed in random order
	// FailAt makes the n-th operation posted from now on complete with FailErrno, 0 = none. Nothing of it lands.
	FailAt    uint64
	FailErrno syscall.Errno
	// FailBreaks makes that failure break the endpoint, as on every ordered fabric. Operations behind it and later ones
	// complete with ECANCELED.
	FailBreaks bool
	// FailSends makes one message in this many complete with FailErrno, at random, 0 = none. With FailLands, half of
	// those still arrive.
	FailSends int
	FailLands bool
	// EagainEvery refuses every n-th post with EAGAIN, 0 = none.
	EagainEvery int
	// RecvErrno refuses the next receive, 0 = none.
	RecvErrno syscall.Errno
	// LateLanding lets writes land that are in flight when their initiator closes its endpoint, as with libfabric's
	// tcp. Only a close of the target's endpoint stops them.
	LateLanding bool
	// BadKeyCancels makes a wrong key also cancel the operations behind it on that endpoint, as libfabric's tcp does.
	BadKeyCancels bool
}

// Counters of a rail as initiator, except Recvs.
type Counters struct {
	Posts   uint64 // RMA work requests accepted
	Sends   uint64 // messages accepted
	Recvs   uint64 // receives posted
	Bytes   uint64 // completed without error
	Polls   uint64
	EAGAIN  uint64 // posts refused
	Assists uint64 // calls of gr_rail_ops.assist
	Failed  uint64 // completions with an error
}
