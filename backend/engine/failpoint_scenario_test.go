//go:build failpoints

package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/stats"
	"gorail/backend/transfer"
	"gorail/test/drive"
)

// scenario is a small application on two engines. It takes errors as an application does: it tries again. One failure is injected in all.
type scenario struct {
	*harness
	a, b     *agent
	gpus     *gpus // nil: memory of the host alone
	errors   int
	accepted map[string]bool // notifications that must arrive unless the peer was reported lost
	posted   map[string]bool // notifications of transfers that failed: they may arrive
	far      *memory         // bob's
	renewed  bool
}

func newScenario(h *harness) *scenario {
	return &scenario{harness: h, accepted: map[string]bool{}, posted: map[string]bool{}}
}

// attempt does something until it works: the second time, or the third if the failure met something in the background.
func (s *scenario) attempt(what string, f func() error) {
	s.Helper()
	for try := 1; ; try++ {
		err := f()
		if err == nil {
			return
		}
		s.failed(what, err)
		require.Less(s, try, 3, "%s fails again: %v", what, err)
	}
}

// failed notes an error, which must name more than an errno.
func (s *scenario) failed(what string, err error) {
	s.Helper()
	s.errors++
	s.Logf("%s: %v", what, err)
	require.Contains(s, err.Error(), ":", "the error names nothing")
}

func (s *scenario) run() {
	s.attempt("create ann", func() (err error) { s.a, err = s.open("ann"); return err })
	s.Cleanup(func() { require.NoError(s, s.a.Close()) })
	s.attempt("create bob", func() (err error) { s.b, err = s.open("bob"); return err })
	s.Cleanup(func() { require.NoError(s, s.b.Close()) })
	s.attempt("load bob", func() error { return s.a.LoadConn("bob", s.b.Conn()) })
	s.attempt("load ann", func() error { return s.b.LoadConn("ann", s.a.Conn()) })
	mine, theirs := s.register(s.a), s.register(s.b)
	s.far = theirs
	seen := s.load(theirs)
	s.moves(mine, seen)
	s.notifies()
	if s.gpus != nil {
		s.moveVRAM()
	}
	s.disturbs(mine, seen)
	s.attempt("trace", s.a.startTrace)
	s.moves(mine, seen)
	var noted stats.Trace
	s.a.stopTrace(&noted, 0)
	require.NotEmpty(s, noted.Transfers)
	s.delivered()
	if err := s.a.UnloadRemote(seen.md.region); err != nil {
		s.failed("unload", err)
	}
	for _, m := range []*memory{mine, theirs} {
		if err := m.owner.Deregister(m.md.region); err != nil {
			s.failed("deregister", err)
		}
	}
	if err := s.a.Disconnect("bob"); err != nil {
		s.failed("disconnect", err)
	}
	s.attempt("load bob again", func() error { return s.a.LoadConn("bob", s.b.Conn()) })
	mine, s.far = s.register(s.a), s.register(s.b)
	s.move(transfer.Write, mine, s.load(s.far), "last")
	s.delivered()
}

const scenarioBytes = 1 << 20

func (s *scenario) register(a *agent) *memory {
	s.Helper()
	m := &memory{owner: a, b: pooled(scenarioBytes)}
	s.enter(m)
	return m
}

func (s *scenario) enter(m *memory) {
	s.Helper()
	a := m.owner
	s.attempt("register", func() error {
		id, err := a.Register(m.addr(), scenarioBytes, 0, 0, nil)
		if err != nil {
			return err
		}
		if m.blob, err = a.RegionBlob(id); err != nil {
			require.NoError(s, a.Deregister(id))
			return err
		}
		m.md = &metaObject{region: id}
		return nil
	})
}

// renew registers memory that its only rail refused, as the log says.
func (s *scenario) renew(mine, theirs *memory) {
	s.Helper()
	if s.renewed || !s.log.has("memory not registered on a rail") {
		return
	}
	s.renewed = true
	for _, m := range []*memory{mine, s.far} {
		require.NoError(s, m.owner.Deregister(m.md.region))
		s.enter(m)
	}
	require.NoError(s, s.a.UnloadRemote(theirs.md.region))
	*theirs = *s.load(s.far)
}

// pooled is memory that is never given back.
func pooled(n int) []byte {
	pool.Lock()
	defer pool.Unlock()
	if pool.walk == nil {
		pool.walk = drive.Alloc(8 * n)
	}
	pool.used = (pool.used + 1) % 8
	return pool.walk[pool.used*n:][:n:n]
}

func (s *scenario) load(m *memory) *memory {
	s.Helper()
	seen := &memory{owner: m.owner, b: m.b, blob: m.blob}
	s.attempt("load metadata", func() error {
		id, err := s.a.LoadRemote("bob", m.addr(), scenarioBytes, 0, 0, m.blob)
		seen.md = &metaObject{region: id}
		return err
	})
	return seen
}

func (s *scenario) moves(mine, theirs *memory) {
	s.Helper()
	s.move(transfer.Write, mine, theirs, "written")
	s.move(transfer.Read, mine, theirs, "")
	s.move(transfer.Write, mine, theirs, "long "+strings.Repeat("x", 9000))
}

// move moves all bytes until a transfer succeeds. What fails may have moved some.
func (s *scenario) move(op int, mine, theirs *memory, notif string) {
	s.Helper()
	for try, begun := 1, time.Now(); ; try++ {
		require.Less(s, time.Since(begun), patience, "transfers keep failing")
		mine.fill(uint64(try))
		theirs.fill(uint64(try + 100))
		text := ""
		if notif != "" {
			text = fmt.Sprint(len(s.accepted)+len(s.posted), " ", notif)
		}
		if s.moveOnce(op, mine, theirs, text) {
			require.True(s, string(mine.b) == string(theirs.b), "success, and the bytes differ")
			return
		}
		s.renew(mine, theirs)
	}
}

func (s *scenario) moveOnce(op int, mine, theirs *memory, text string) bool {
	s.Helper()
	x, ok := s.post(op, mine, theirs, text)
	if !ok {
		return false
	}
	code := x.wait()
	s.ended(x, code, text)
	return code == done
}

// post prepares and posts. False: it failed at once.
func (s *scenario) post(op int, mine, theirs *memory, text string) (x *request, ok bool) {
	s.Helper()
	handle, slot, err := s.a.Prep(op, []Desc{mine.desc(0, scenarioBytes)}, []Desc{theirs.desc(0, scenarioBytes)}, "bob")
	if err != nil {
		s.failed("prepare", err)
		return nil, false
	}
	x = &request{s.a, handle, slot}
	var msg []string
	if text != "" {
		msg = []string{text}
		s.posted[text] = true
	}
	if _, err := x.Post(msg...); err != nil {
		s.failed("post", err)
		s.release(x)
		return nil, false
	}
	return x, true
}

func (s *scenario) ended(x *request, code int, text string) {
	s.Helper()
	if code != done {
		s.errors++
		s.Logf("transfer: %v", errcode.Status(code))
	} else if text != "" {
		delete(s.posted, text)
		s.accepted[text] = true
	}
	s.release(x)
}

func (s *scenario) release(x *request) {
	s.Helper()
	if err := x.a.Release(x.handle); err != nil {
		s.failed("release", err)
		until(s.harness, "the request cannot be released", func() bool { return x.a.Release(x.handle) == nil })
	}
}

func (s *scenario) notify(from *agent, to, text string) {
	s.Helper()
	s.attempt("notify", func() error {
		err := error(nil)
		until(s.harness, "the queue stays full", func() bool {
			err = from.Notify(to, []byte(text))
			return err == nil || errcode.StatusOf(err) != errcode.InProg && !strings.Contains(err.Error(), "full")
		})
		return err
	})
	if to == "bob" {
		s.accepted[text] = true
	}
}

func (s *scenario) notifies() {
	for i := range 40 { // more than the peer's credits
		s.notify(s.a, "bob", fmt.Sprint("alone ", i))
	}
	s.notify(s.a, "bob", strings.Repeat("long", 2000))
	s.notify(s.b, "ann", "back")
}

// disturbs fences the links and ends the session, with work on them.
func (s *scenario) disturbs(mine, theirs *memory) {
	for i, disturb := range []func(r *remote){
		func(r *remote) { r.fenceAll("for once") },
		func(r *remote) { r.fail("out of something, for once") },
	} {
		mine.fill(uint64(i))
		text := fmt.Sprint("disturbed ", i)
		x, ok := s.post(transfer.Write, mine, theirs, text)
		s.notify(s.a, "bob", fmt.Sprint("beside ", i))
		y, released := s.post(transfer.Write, mine, theirs, fmt.Sprint("released ", i))
		if r := s.a.remote("bob"); r.Initiator != nil {
			disturb(r)
		}
		if released {
			s.release(y)
		}
		if ok {
			s.ended(x, x.wait(), text)
		}
	}
}

// delivered waits for what was accepted. It comes once. It may be missing only if the log says that the peer was lost.
func (s *scenario) delivered() {
	s.Helper()
	got := map[string]int{}
	missing := func() (list []string) {
		for text := range s.accepted {
			if got[text] == 0 {
				list = append(list, text[:min(40, len(text))])
			}
		}
		return list
	}
	begun, end := time.Now(), patience
	for ; len(missing()) > 0 && time.Since(begun) < end; time.Sleep(20 * time.Microsecond) {
		for _, n := range s.b.core.TakeNotifs() {
			got[string(n.Msg)]++
		}
		if s.lost() {
			end = min(end, time.Second)
		}
	}
	for text, n := range got {
		require.Equal(s, 1, n, "a notification came more than once: %.40s", text)
		require.True(s, s.accepted[text] || s.posted[text], "a notification that nobody sent: %.40s", text)
	}
	if list := missing(); len(list) > 0 {
		require.True(s, s.lost(), "notifications were accepted and are missing: %v", list)
		s.Logf("the peer was reported lost, and %d notifications with it", len(list))
	}
	s.accepted = map[string]bool{}
}

// lost is whether the engine has reported notifications as lost.
func (s *scenario) lost() bool {
	return s.log.has("level=WARN", "notifications lost") || s.log.has("level=WARN", "peer lost")
}
