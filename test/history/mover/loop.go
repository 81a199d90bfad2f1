package mover

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gorail/nixlapi"
	"gorail/test/history"
	"gorail/test/worker"
)

// newMover makes the agent. The caller calls run on the same thread.
func newMover(in Begin) (*mover, error) {
	a := &mover{Begin: in, queue: make(chan func()), peers: map[string]*peer{}, gpu: worker.NewGPU()}
	var err error
	if a.Calls.Log, err = history.NewLog(in.Log, in.Engine); err != nil {
		return nil, err
	}
	if a.board, err = OpenBoard(in.Board); err != nil {
		return nil, err
	}
	lib, err := nixlapi.Open(in.Wheel)
	if err != nil {
		return nil, err
	}
	if a.agent, err = lib.NewAgent(in.Engine.Agent, nixlapi.Config{ProgThread: true}); err != nil {
		return nil, err
	}
	if a.backend, err = a.agent.CreateBackend(in.Backend, in.Params); err != nil {
		return nil, err
	}
	if err := a.makePieces(); err != nil {
		return nil, err
	}
	return a, a.makeLocals()
}

// run is the mover's life. It returns when the queue is closed.
func (a *mover) run() {
	for {
		select {
		case f, ok := <-a.queue:
			if !ok {
				return
			}
			f()
		default:
			if a.agent == nil {
				(<-a.queue)()
				continue
			}
			a.turn()
		}
	}
}

// turn does what is due.
func (a *mover) turn() {
	now := time.Now()
	if _, err := a.agent.Notifs(); err != nil {
		a.fail("getNotifs", err.Error())
	}
	a.poll(now)
	a.due(now)
	a.remind(now)
	if a.running && now.After(a.next) {
		a.step(now)
	}
	time.Sleep(50 * time.Microsecond)
}

// fail writes a call that failed where none may.
func (a *mover) fail(what, why string) {
	a.Note(history.Event{Kind: history.Watched, Wrong: 1, Text: fmt.Sprint(what, ": ", why)})
}

// step does the next step of the schedule. What cannot be done now is left out.
func (a *mover) step(now time.Time) {
	rng := rand.New(rand.NewPCG(seed(a.Seed, a.Engine), a.steps))
	a.steps++
	a.next = now.Add(time.Duration(rng.IntN(4000)) * time.Microsecond)
	kind, number, lane := rng.IntN(1000), rng.IntN(len(a.Names)), rng.IntN(2*len(kinds))
	if kind < a.Changes {
		a.change(rng)
		return
	}
	p := a.peers[a.Names[number]]
	if p == nil || now.Before(p.rest) {
		return
	}
	if kind < a.Changes+a.Reloads || !p.known || !a.agent.Knows(p.Engine.Agent) {
		a.reload(p, 1+rng.IntN(4), rng)
		return
	}
	a.post(p, p.lanes[lane], rng)
}

// busy is what is still under way.
func (a *mover) busy() (n int) {
	for _, p := range a.peers {
		for _, l := range p.lanes {
			if l.op != nil {
				n++
			}
			if a.waits(p, l) {
				n++
			}
		}
	}
	for _, p := range a.pieces {
		if p.away && !p.lost {
			n++
		}
	}
	return n + len(a.debts)
}

// allowed are the misuses of the driver that follow from the application's own: memory is freed that peers have mapped, and is unmapped
// while it is staged. The real driver then refuses the copy, as the imitation does.
var allowed = []string{"memory was freed while a peer had it mapped by an IPC handle", "copy or fill: unknown memory"}

// close releases everything and destroys the agent.
func (a *mover) close() error {
	for _, p := range a.peers {
		for _, l := range p.lanes {
			a.drop(p, l)
		}
	}
	agent := a.agent
	a.agent = nil
	if err := a.Call(history.Event{What: history.Close}, agent.Close); err != nil {
		return err
	}
	lost := false
	for _, p := range a.pieces {
		if p.unmapped {
			lost = true // its addresses stay reserved
			continue
		}
		p.close()
	}
	for _, l := range a.local {
		l.close()
	}
	open, wrong := a.gpu.State()
	const whole = 4000 // the driver has room for that many bytes: the line behind them may be cut off
	for line := range strings.Lines(wrong[:min(len(wrong), whole)]) {
		if strings.HasSuffix(line, "\n") && !slices.ContainsFunc(allowed, func(a string) bool { return strings.Contains(line, a) }) {
			a.fail("the driver", line)
		}
	}
	if open != "" && !lost {
		a.fail("open in the driver", open)
	}
	return a.Calls.Log.Close()
}
