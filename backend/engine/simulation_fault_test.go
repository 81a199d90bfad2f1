package engine

import (
	"fmt"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
)

// simRestarts bounds the restarts of a seed, so that most of its notifications have to come.
const simRestarts = 2

// fault is one thing that goes wrong, or is mended.
func (s *simulation) fault() {
	side, rail, kind, yes := []*agent{s.a, s.b}[s.rnd.IntN(2)], s.rnd.IntN(s.rails), s.rnd.IntN(28), s.rnd.IntN(2) == 0
	script, pause := s.script(), s.pause(20*time.Millisecond)
	r := side.railNo(rail)
	where := func(text string) { s.say("%s: %s's rail %d", text, side.name, rail) }
	switch kind {
	case 0, 1:
		where("down")
		r.Down(syscall.EIO)
	case 2, 3:
		where("up")
		r.Up()
	case 4:
		where("stalls")
		r.Stall()
	case 5, 6:
		where("goes on")
		r.Release()
	case 7, 8, 9:
		where(fmt.Sprintf("%+v", script))
		r.Script(script)
	case 10:
		where(fmt.Sprintf("the kernel's news, up %v", yes))
		side.railChanged(r.Device().Name, yes)
	case 11, 12:
		s.say("control connections cut")
		s.gate.cut()
	case 13, 14:
		s.say("control channel silent: %v", !yes)
		s.gate.open(yes)
	case 15, 16:
		s.say("control channel silent towards the target: %v", yes)
		s.gate.openOne(toTarget, !yes)
		s.gate.openOne(toInitiator, yes)
	case 17, 18, 19, 20:
		s.pileUp([]*agent{side, s.b}[rail%2], kind-17, yes, pause)
	default:
		s.event(kind-21, yes)
	}
}

// pileUp lets transfers wait on stalled rails, ends them, and lets the rails go on.
func (s *simulation) pileUp(side *agent, how int, silent bool, pause time.Duration) {
	s.say("%s's rails stall; silent: %v", side.name, silent)
	for n := range s.rails {
		side.railNo(n).Stall()
	}
	for i := range s.parts {
		s.post(i)
	}
	s.work(pause)
	s.gate.open(!silent)
	switch how {
	case 0:
		for i := range s.parts {
			s.release(i)
		}
	case 1, 2:
		s.event(0, false)
	case 3:
		s.event(int(pause%6), false)
	}
	s.work(pause)
	s.say("%s's rails go on", side.name)
	for n := range s.rails {
		side.railNo(n).Release()
	}
	s.work(pause)
	s.gate.open(true)
}

// script is what a rail does to its operations from now on.
func (s *simulation) script() fake.Script {
	script := fake.Script{Delay: s.rnd.IntN(3), LateLanding: s.late}
	fails, at, every := s.rnd.IntN(2) == 0, 1+s.rnd.Uint64N(20), s.rnd.IntN(3)*(2+s.rnd.IntN(5))
	if fails {
		script.FailAt, script.FailErrno, script.FailBreaks = at, syscall.EIO, s.caps.Ordered
	}
	script.EagainEvery = every
	return script
}

// calm ends the scripts of all rails.
func (s *simulation) calm() {
	for _, side := range []*agent{s.a, s.b} {
		for n := range s.rails {
			side.railNo(n).Script(fake.Script{LateLanding: s.late})
		}
	}
}

// event is what an engine, or its application, does.
func (s *simulation) event(kind int, yes bool) {
	ini := s.a.remote("bob")
	switch kind {
	case 0:
		s.say("the initiator gives the session up")
		ini.fail("the simulation")
	case 1:
		s.say("the target ends the session")
		if t := s.b.targets.Latest(); t != nil {
			t.Close("the simulation")
		}
	case 2:
		s.say("all links are fenced")
		ini.fenceAll("the simulation")
	case 3:
		s.deregister("the initiator", s.mine, true)
	case 4:
		s.deregister("the target", s.there, !s.shared) // a stalled shared endpoint cannot be closed
	case 5:
		s.say("the peer is removed and loaded again")
		require.NoError(s, s.a.Disconnect("bob"))
		s.meet()
	case 6:
		if s.restarts++; s.restarts > simRestarts {
			return
		}
		if yes && !s.late {
			s.restartInitiator()
			return
		}
		s.restartTarget()
	}
}

// deregister deregisters an engine's memory, and registers it again. Metadata that peers hold stays good.
func (s *simulation) deregister(who string, m *memory, quiet bool) {
	s.say("%s deregisters its memory", who)
	require.NoError(s, m.owner.Deregister(m.md.region))
	was := string(m.b)
	for end := time.Now().Add(200 * time.Microsecond); quiet && time.Now().Before(end); s.look() {
		require.True(s, was == string(m.b), "memory has changed after its deregistration")
	}
	m.register()
}

// restartInitiator closes the initiator, in the middle of its transfers, and makes another of its name.
func (s *simulation) restartInitiator() {
	s.say("the initiator is started again")
	s.look()
	require.NoError(s, s.a.Close())
	s.notes.restarted()
	s.a = s.agent("ann")
	s.calm()
	for i := range s.parts {
		p := &s.parts[i]
		if p.busy() {
			p.x, p.draining, p.was = nil, 0, string(s.dest(i))
		}
	}
	s.mine.owner = s.a
	s.mine.register()
	s.meet()
}

// restartTarget closes the target and makes another of its name.
func (s *simulation) restartTarget() {
	s.say("the target is started again")
	s.look()
	require.NoError(s, s.b.Close())
	s.notes.restarted()
	for i := range s.parts {
		s.parts[i].notifies = false // the notification may have died with the target, also if the transfer succeeds
	}
	s.b = s.agent("bob")
	s.calm()
	s.gate.leadTo(s.harness, s.b)
	s.there.owner = s.b
	s.there.register()
	s.meet()
}
