package fake

import "syscall"

// Script is how a rail misbehaves from now on; the zero value behaves. It acts on operations that this rail posts.
type Script struct {
	Delay       int    // polls of either side before an operation is executed
	PerPoll     int    // operations executed in one poll of this rail, 0 = all
	ReorderSeed uint64 // not 0: operations are executed and completed in random order
	// FailAt makes the n-th operation posted from now complete with FailErrno, 0 = none. Nothing of it lands.
	FailAt    uint64
	FailErrno syscall.Errno
	// FailBreaks lets that failure break the endpoint, as on every fabric that promises order: what is posted behind it, and
	// from then on, completes with ECANCELED.
	FailBreaks bool
	// FailSends makes one message in so many complete with FailErrno, by chance, 0 = none; FailLands lets half of those arrive all the same.
	FailSends int
	FailLands bool
	// EagainEvery refuses every n-th post with EAGAIN, 0 = none.
	EagainEvery int
	// LateLanding lets writes that are in flight when their initiator closes its endpoint land all the same, as
	// libfabric's tcp does; only the target's closing its endpoint stops them.
	LateLanding bool
	// BadKeyCancels lets a wrong key also cancel what is posted behind it on that endpoint, as libfabric's tcp does.
	BadKeyCancels bool
}

// Counters of a rail, as an initiator but for Recvs.
type Counters struct {
	Posts  uint64 // RMA work requests taken
	Sends  uint64 // messages taken
	Recvs  uint64 // receives posted
	Bytes  uint64 // completed without error
	Polls  uint64
	EAGAIN uint64 // posts refused
	Helps  uint64 // calls while another had the rail
	Failed uint64 // completions with an error
}
