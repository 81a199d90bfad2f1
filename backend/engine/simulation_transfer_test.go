package engine

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"gorail/backend/status"
	"gorail/backend/transfer"
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
		s.alive(status.Of(err))
		p.was = string(s.dest(i))
		x.release()
		return
	}
	if p.x = x; notifies {
		s.notes.may["ann:"+p.text] = true
	}
}

// alive requires that a status does not say that the peer is dead. It may be dead for a moment when it is started again.
func (s *simulation) alive(code status.Code) {
	if s.restarts == 0 {
		require.NotEqual(s, status.ErrRemoteDisconnect.String(), code.String(), "the peer lives")
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
		require.Equal(s, status.ErrRepostActive, status.Of(err))
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
		s.say("  %s: %v", p.text, status.Code(st))
		s.alive(status.Code(st))
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
		s.alive(status.Of(err))
		return
	}
	s.notes.accept(from.name + ":" + text)
}
