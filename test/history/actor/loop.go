package actor

import (
	"fmt"
	"time"

	"gorail/nixlapi"
	"gorail/test/history"
)

// newActor makes the agent. The caller calls run on the same thread.
func newActor(in Begin) (*actor, error) {
	a := &actor{Begin: in, queue: make(chan func()), peers: map[string]*peer{}}
	var err error
	if a.Calls.Log, err = history.NewLog(in.Log, in.Engine); err != nil {
		return nil, err
	}
	if a.mem, err = mapArena(in.Arena, len(in.Names)); err != nil {
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
	return a, a.makeRegions()
}

// run is the actor's life. It returns when the queue is closed.
func (a *actor) run() {
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
func (a *actor) turn() {
	now := time.Now()
	if err := a.hear(); err != nil {
		a.fail("getNotifs", err)
	}
	a.poll(now)
	a.due(now)
	if err := a.late(now); err != nil {
		a.fail("next life of a peer", err)
	}
	if a.running && now.After(a.next) {
		a.step(now)
	}
	time.Sleep(50 * time.Microsecond)
}

// fail writes a call that failed where none may.
func (a *actor) fail(what string, err error) {
	a.Note(history.Event{Kind: history.Watched, Wrong: 1, Text: fmt.Sprint(what, ": ", err)})
}

// busy is what is still under way.
func (a *actor) busy() (n int) {
	for _, p := range a.peers {
		for _, side := range p.sides {
			for _, s := range side.slots {
				if s.op != nil {
					n++
				}
			}
		}
		if p.load != nil {
			n++
		}
	}
	for _, r := range a.regions {
		if r.held && !r.broken {
			n++
		}
	}
	return n
}

// verifyAll looks at all slots for the last time.
func (a *actor) verifyAll() {
	for _, p := range a.peers {
		for _, side := range p.sides {
			for _, s := range side.slots {
				a.verify(p, s)
			}
		}
	}
}

// close releases everything and destroys the agent.
func (a *actor) close() error {
	for _, p := range a.peers {
		for _, side := range p.sides {
			for _, s := range side.slots {
				a.drop(p, s)
			}
		}
	}
	agent := a.agent
	a.agent = nil
	if err := a.Call(history.Event{What: history.Close}, agent.Close); err != nil {
		return err
	}
	return a.Calls.Log.Close()
}
