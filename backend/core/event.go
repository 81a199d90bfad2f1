package core

// #include "gr_policy.h"
// #include <stdlib.h>
import "C"

import (
	"os"
	"syscall"

	"gorail/backend/failpoint"
)

// Event kinds.
const (
	EvXfer    = C.GR_EV_XFER // ID: handle; Code: status
	EvLink    = C.GR_EV_LINK // ID: link; Code: errno
	EvMessage = C.GR_EV_MSG  // ID: session; the rest is the fragment
)

// Event is one event that the core passes to Go.
type Event struct {
	Kind          int32
	Code          int32
	ID            uint64
	Seq           uint64
	Subs          uint16 // 0: a SKIP, the sender gave this number up
	Total, Offset uint32
	Data          []byte
}

// Events delivers events to a function, one at a time, until Close. Its one goroutine blocks in Go's poller and occupies no
// thread.
type Events struct {
	core *Core
	file *os.File
	done chan struct{}
}

// Events starts the delivery to f.
func (k *Core) Events(f func(Event)) (*Events, error) {
	if err := failpoint.Fail("engine_events_fd"); err != nil {
		return nil, err
	}
	fd, err := syscall.Dup(int(C.gr_event_fd(k.c)))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	e := &Events{core: k, file: os.NewFile(uintptr(fd), "gorail-events"), done: make(chan struct{})}
	go e.run(f)
	return e, nil
}

func (e *Events) run(f func(Event)) {
	defer close(e.done)
	var count [8]byte
	for {
		if _, err := e.file.Read(count[:]); err != nil {
			return
		}
		e.drain(f)
	}
}

// drain delivers all queued events, for run.
func (e *Events) drain(f func(Event)) {
	var ev [64]C.gr_event
	for {
		n := int(C.gr_events_take(e.core.c, &ev[0], C.int(len(ev))))
		if n == 0 {
			return
		}
		for _, c := range ev[:n] {
			g := Event{Kind: int32(c.kind), Code: int32(c.code), ID: uint64(c.id), Seq: uint64(c.seq), Subs: uint16(c.subs),
				Total: uint32(c.total), Offset: uint32(c.offset)}
			if c.data != nil {
				g.Data = C.GoBytes(c.data, C.int(c.len))
				C.free(c.data)
			}
			f(g)
		}
	}
}

// Close ends the delivery: once, before Core.Free, and never from f, which it waits for. f does not run after the return.
func (e *Events) Close() {
	e.file.Close()
	<-e.done
}
