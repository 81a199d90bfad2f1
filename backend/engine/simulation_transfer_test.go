package engine

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// simTransfer is the last transfer of a part.
type simTransfer struct {
	x        *request // not released; nil: none
	draining uint64   // the handle after a release, while the engine has it; 0: none
	op, n    int
	notifies bool
	text     string
	rest     string // what is behind the transfer's bytes in its destination
	was      string // the destination, which nothing may change now; "": anything
}

func (p *simTransfer) busy() bool { return p.x != nil || p.draining != 0 }

// dest returns the part's bytes where its transfer writes.
func (s *simulation) dest(i int) []byte {
	m := s.theirs
	if s.parts[i].op == transfer.Read {
		m = s.mine
	}
	return m.b[i*simPart:][:simPart]
}

// post posts a transfer of a part that is idle.
func (s *simulation) post(i int) {
	p := &s.parts[i]
	op, n, notifies := s.rnd.IntN(2), 1+s.rnd.IntN(simPart), s.rnd.IntN(4) > 0
	var local, remote []Desc
	for at, left := i*simPart, n; left > 0; { // blocks
		n := min(left, 1+s.rnd.IntN(40<<10))
		local, remote = append(local, s.mine.desc(at, n)), append(remote, s.theirs.desc(at, n))
		at, left = at+n, left-n
	}
	if p.busy() {
		return
	}
	*p = simTransfer{op: op, n: n, notifies: notifies, text: fmt.Sprint("post ", s.steps, ".", i)}
	s.say("%s: part %d, %s of %d bytes", p.text, i, []string{transfer.Read: "READ", transfer.Write: "WRITE"}[op], n)
	for side, m := range []*memory{s.mine, s.theirs} {
		(&memory{b: m.b[i*simPart:][:simPart]}).fill(uint64(s.steps*simParts+i)*2 + uint64(side))
	}
	p.rest = string(s.dest(i)[n:])
	h, slot, err := s.a.Prep(op, local, remote, "bob")
	if err != nil {
		s.say("  prep: %v", err)
		return
	}
	x := &request{s.a, h, slot}
	s.posts++
	var notif []string
	if notifies {
		notif = []string{p.text}
	}
	_, err = x.Post(notif...)
	if err != nil {
		s.say("  post: %v", err)
		s.alive(errcode.StatusOf(err))
		p.was = string(s.dest(i))
		x.release()
		return
	}
	if p.x = x; notifies {
		s.notes.may["ann:"+p.text] = true
	}
}

// alive requires that a status does not say that the peer is dead. It may be dead for a moment when it is started again.
func (s *simulation) alive(code errcode.Status) {
	if s.restarts == 0 {
		require.NotEqual(s, errcode.ErrRemoteDisconnect.String(), code.String(), "the peer lives")
	}
}

// release releases a part's transfer in flight. A READ changes nothing from then on.
func (s *simulation) release(i int) {
	p := &s.parts[i]
	if p.x == nil {
		return
	}
	s.say("release of %q", p.text)
	if err := s.a.Release(p.x.handle); err != nil {
		require.Equal(s, errcode.ErrRepostActive, errcode.StatusOf(err))
		require.True(s, s.shared && p.op == transfer.Read, "the release is refused: %v", err)
		return
	}
	p.x, p.draining = nil, p.x.handle
	if p.op == transfer.Read && !s.shared {
		p.was = string(s.dest(i))
	}
}

// lookAt checks a part.
func (s *simulation) lookAt(i int) {
	p := &s.parts[i]
	if p.was != "" && p.was != string(s.dest(i)) {
		s.Fatalf("part %d has changed after the end of %q", i, p.text)
	}
	switch {
	case p.x != nil:
		s.check(i)
	case p.draining != 0:
		if _, err := s.a.transfers.Get(p.draining); err != nil {
			p.draining, p.was = 0, string(s.dest(i))
		}
	}
}

// check looks at a transfer in flight.
func (s *simulation) check(i int) {
	p := &s.parts[i]
	st := p.x.check()
	if st == inProg {
		return
	}
	if st == done {
		if string(s.mine.b[i*simPart:][:p.n]) != string(s.theirs.b[i*simPart:][:p.n]) {
			s.Fatalf("%q succeeded, and its bytes differ", p.text)
		}
		if s.good++; p.notifies {
			s.notes.accept("ann:" + p.text)
		}
	} else {
		s.say("  %s: %v", p.text, errcode.Status(st))
		s.alive(errcode.Status(st))
	}
	if p.rest != string(s.dest(i)[p.n:]) {
		s.Fatalf("%q has changed bytes behind its own", p.text)
	}
	p.was = string(s.dest(i))
	p.x.release()
	p.x = nil
}

// simNotes are notifications, by sender and text.
type simNotes struct {
	must, may map[string]bool // that have to come, and that may come; each once
	seen      map[string]bool
}

func newSimNotes() simNotes {
	return simNotes{must: map[string]bool{}, may: map[string]bool{}, seen: map[string]bool{}}
}

// accept: the notification has to come.
func (n *simNotes) accept(text string) {
	if delete(n.may, text); !n.seen[text] {
		n.must[text] = true
	}
}

// restarted: an engine was started again. What it has sent or would have received may be lost.
func (n *simNotes) restarted() {
	for text := range n.must {
		n.may[text] = true
	}
	clear(n.must)
}

// take takes what has come to an engine.
func (n *simNotes) take(s *simulation, a *agent) {
	for _, text := range a.take() {
		short := text[:min(len(text), 40)]
		require.False(s, n.seen[text], "%q came twice", short)
		require.True(s, n.must[text] || n.may[text], "%q was not accepted", short)
		n.seen[text] = true
		delete(n.must, text)
		delete(n.may, text)
	}
	a.got = nil
}

// notify sends a notification, a long one at times.
func (s *simulation) notify() {
	from, to := s.a, s.b
	if s.rnd.IntN(3) == 0 {
		from, to = s.b, s.a
	}
	text := fmt.Sprint("note ", s.steps)
	s.say("%s from %s", text, from.name)
	if s.rnd.IntN(4) == 0 {
		text += strings.Repeat(".", s.rnd.IntN(9000))
	}
	if err := from.Notify(to.name, []byte(text)); err != nil {
		s.say("  %v", err)
		s.alive(errcode.StatusOf(err))
		return
	}
	s.notes.accept(from.name + ":" + text)
}

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
