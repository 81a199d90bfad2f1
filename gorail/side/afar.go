package side

import (
	"errors"
	"fmt"

	"gorail/gorail/bench/layout"
	"gorail/gorail/door"
	"gorail/gorail/measure"
)

// What a driver on another host may ask for. It has the token of --listen, and still neither names files here nor reaches other memory
// than its buffer. What it may choose beside that:
//   - a kind and an amount of memory, which the process alone loses;
//   - a GPU by its number;
//   - an agent's name. Names of files that have it are made by stats.Expand and the folder of sockets, which keep letters, digits and signs.

const (
	mostAgents  = 64
	mostThreads = 1024
	mostDescs   = 1 << 24 // of a place
	mostName    = 128
)

// afar refuses what a driver on another host must not ask for.
func (in *OpenArgs) afar() error {
	if err := errors.Join(door.Env(in.Env), door.Params(in.Params)); err != nil {
		return err
	}
	switch {
	case in.Limit == "process_vm": // it reads and writes any process
		return errors.New("the limit process_vm is refused from another host: it copies on one host only")
	case in.Limit != "" && measure.OnGPU(in.Memory):
		return errors.New("a limit with memory of a GPU is refused from another host: limits copy memory of the host")
	case in.Limit == "":
		if err := door.Backend(in.Backend); err != nil {
			return err
		}
	}
	if in.Agents < 0 || in.Agents > mostAgents || in.Threads < 0 || in.Threads > mostThreads || len(in.Name) > mostName {
		return fmt.Errorf("%d agents and %d threads are refused from another host: it may ask for %d and %d, and for names of %d bytes", in.Agents, in.Threads, mostAgents, mostThreads, mostName)
	}
	return door.Room(in.Room)
}

// errInitiator is the error of commands of an initiator, which is never on the other host: they name addresses and processes.
var errInitiator = errors.New("refused from another host: a process that --listen has started is a target")

// within refuses a place outside a buffer of size bytes.
func within(size uint64, p layout.Place, slots int) error {
	bad := fmt.Errorf("%d slots of %d descriptors of %d bytes do not lie in a buffer of %d bytes", slots, p.N, p.Len, size)
	if slots < 0 || p.N < 0 || p.N > mostDescs || uint64(slots) > size || max(p.Slot, p.Stride, p.Len, p.Gap) > size {
		return bad
	}
	if slots == 0 || p.N == 0 {
		return nil
	}
	if all := float64(slots) * float64(p.N); all > 4*mostDescs || all*float64(p.Len) > 4*float64(size) { // descriptors one over the other
		return bad
	}
	// Neither product overflows: size is that of memory, and both factors are at most mostDescs or size.
	if p.Slot > 0 && uint64(slots-1) > size/p.Slot || p.Stride > 0 && uint64(p.N-1) > size/p.Stride {
		return bad
	}
	if p.At(slots-1, p.N-1)+p.Len > size {
		return bad
	}
	return nil
}
