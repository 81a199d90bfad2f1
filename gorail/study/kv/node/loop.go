package node

import (
	"errors"
	"fmt"
	"time"

	"gorail/gorail/measure"
	"gorail/nixlapi"
)

// nap is how long a node sleeps when nothing is due: inference engines poll between steps, and less often.
const nap = 100 * time.Microsecond

// loop is a phase in progress. One goroutine uses the agent.
type loop struct {
	*Server
	tasks  []Task
	expect int // layers that come to a decode node
	got    int // of them, in place or failed
	limit  time.Duration
	active time.Duration // the last time that something happened
	flying []flight
	events []Event
	stop   chan struct{}
	done   chan struct{}
}

// flight is a transfer in flight.
type flight struct {
	x               *nixlapi.Xfer
	request, layers int
}

// Start begins a phase: the tasks of a prefill node, or what comes to a decode node.
func (s *Server) Start(in StartArgs, _ *None) error {
	if s.loop != nil {
		return errors.New("a phase is in progress")
	}
	s.loop = &loop{Server: s, tasks: in.Tasks, expect: in.Expect, limit: in.Limit, stop: make(chan struct{}), done: make(chan struct{})}
	go s.loop.run()
	return nil
}

// Stop ends a phase. A prefill node has then ended its tasks, a decode node has all that it expects or nothing comes any more, or they
// have reached the limit.
func (s *Server) Stop(None, out *StopOut) error {
	if s.loop == nil {
		return errors.New("no phase is in progress")
	}
	if s.in.Decode {
		close(s.loop.stop)
	}
	<-s.loop.done
	out.Events, s.loop = s.loop.events, nil
	return nil
}

// still is how long nothing comes to a decode node, after all prefill nodes have ended, until it ends, too.
const still = 2 * time.Second

func (l *loop) run() {
	defer close(l.done)
	stop := l.stop
	for stopping := false; ; {
		busy := l.due() || l.receive()
		busy = l.look() || busy
		now := measure.Now()
		if busy {
			l.active = now
		}
		switch {
		case !l.in.Decode && len(l.tasks) == 0 && len(l.flying) == 0:
			return
		case stopping && (l.got >= l.expect || len(l.flying) == 0 && now-l.active > still):
			return
		case now > l.limit:
			l.abandon("not done in time")
			return
		}
		select {
		case <-stop:
			stopping, stop = true, nil
			l.active = max(l.active, now)
		default:
		}
		if !busy {
			time.Sleep(nap)
		}
	}
}

// note notes the end of layers.
func (l *loop) note(request, layers int, why string) {
	l.events = append(l.events, Event{request, layers, measure.Now(), why})
	l.got += layers
}

// abandon releases the requests in flight.
func (l *loop) abandon(why string) {
	for _, f := range l.flying {
		l.end(f, why)
	}
	for _, t := range l.tasks {
		l.note(t.Request, t.N, why)
	}
	l.flying, l.tasks = nil, nil
}

// due begins the tasks whose time has come.
func (l *loop) due() (any bool) {
	for len(l.tasks) > 0 && measure.Now() >= l.tasks[0].At {
		t := l.tasks[0]
		l.tasks, any = l.tasks[1:], true
		if err := l.begin(t); err != nil {
			l.note(t.Request, t.N, err.Error())
		}
	}
	return any
}

// begin writes the layers of a task, or tells the decode node that they can be read.
func (l *loop) begin(t Task) error {
	p := l.peers[t.Decode]
	if p == nil {
		return fmt.Errorf("no decode node %d", t.Decode)
	}
	n := note{Request: uint32(t.Request), Prefill: uint32(l.in.Number), Slot: uint32(t.Slot), First: uint32(t.First), N: uint32(t.N)}
	if t.Read {
		n.Read = 1
		return l.agent.GenNotif(p.Name, n.bytes(), l.back)
	}
	here, there := l.ids(false, l.in.Number, 0, t.Slot, t.First, t.N), l.ids(true, l.in.Number, t.Decode, t.Slot, t.First, t.N)
	msg := n.bytes()
	return l.post(nixlapi.Write, p, here, there, nixlapi.XferOpts{Backend: l.back, Notif: &msg}, t.Request, t.N)
}

func (l *loop) post(op nixlapi.Op, p *remote, here, there []int32, o nixlapi.XferOpts, request, layers int) error {
	x, err := l.agent.MakeXfer(op, l.local, here, p.list, there, o)
	if err != nil {
		return err
	}
	f := flight{x, request, layers}
	if s := x.Post(); s.Failed() {
		_ = x.Release()
		return s.Err("post_xfer_req")
	}
	l.flying = append(l.flying, f)
	return nil
}

// receive takes notifications in: a decode node reads, or notes that blocks are there.
func (l *loop) receive() (any bool) {
	list, err := l.agent.Notifs()
	if err != nil {
		return false
	}
	for _, m := range list {
		var n note
		if !n.parse(m.Msg) || !l.in.Decode {
			continue
		}
		any = true
		if n.Read == 0 {
			l.note(int(n.Request), int(n.N), "")
			continue
		}
		p := l.peers[int(n.Prefill)]
		if p == nil {
			continue
		}
		here, there := l.ids(true, int(n.Prefill), l.in.Number, int(n.Slot), int(n.First), int(n.N)), l.ids(false, int(n.Prefill), 0, int(n.Slot), int(n.First), int(n.N))
		if err := l.post(nixlapi.Read, p, here, there, nixlapi.XferOpts{Backend: l.back}, int(n.Request), int(n.N)); err != nil {
			l.note(int(n.Request), int(n.N), err.Error())
		}
	}
	return any
}

// look polls the requests in flight.
func (l *loop) look() (any bool) {
	var rest []flight
	for _, f := range l.flying {
		switch s := f.x.Status(); {
		case s == nixlapi.InProgress:
			rest = append(rest, f)
			continue
		case s.Failed():
			l.end(f, s.Err("get_xfer_status").Error())
		case l.in.Decode: // a READ: the blocks are here
			l.end(f, "")
		default: // a WRITE: the decode node notes it
			_ = f.x.Release()
		}
		any = true
	}
	l.flying = rest
	return any
}

// end notes the end of a transfer and releases it.
func (l *loop) end(f flight, why string) {
	l.note(f.request, f.layers, why)
	if f.x.Release() != nil {
		_ = f.x.Release() // the agent may refuse the first release
	}
}
