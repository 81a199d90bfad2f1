package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
	"gorail/test/seeds"
)

// Two nodes with TLS, on a network and a clock of their own. The network cuts, delays, stalls, refuses, flips bits and drops connections,
// and the applications send, suspect paths and close sessions, all by a schedule that follows from the seed. Over every change of connection
// each numbered frame comes once and in order. A session ends only for a reason that the schedule contains. Every end is told once. When the
// faults are over, all works, and at the end nothing is left. A seed does the same when it runs again, but for one in twenty: the runtime
// chooses at random among timers and channels that are ready at one instant, and each write of a session starts a goroutine.
func TestSimulation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // goroutines that can run at one instant run in one order
	a, b := config("ann"), config("bob")
	var total simTotal
	n := seeds.Count(t, 8, 1000)
	var others []uint64
	for seed := uint64(1); seed <= n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, seed)
			first := strings.Join(simulate(t, seed, a, b, &total), "\n")
			if t.Failed() || withRace() {
				return
			}
			cryptotest.SetGlobalRandom(t, seed)
			if again := strings.Join(simulate(t, seed, a, b, &total), "\n"); again != first {
				others = append(others, seed)
			}
		})
	}
	t.Logf("%+v, did not replay: %v", total, others)
	require.LessOrEqual(t, uint64(len(others)), 1+n/20, "seeds do not replay")
}

// withRace reports whether the race detector is built in. Then the runtime chooses at random which goroutine runs first.
func withRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// simTotal counts over all seeds what the simulation reached.
type simTotal struct {
	Sessions, Ready, Lost, Resumed, Resent, Frames, Spoiled uint64
}

// simulate runs a seed and returns its trace.
func simulate(t *testing.T, seed uint64, a, b Config, total *simTotal) (trace []string) {
	synctest.Test(t, func(t *testing.T) {
		s := &simApp{plan: newPlan(seed), begun: time.Now()}
		a.PeerTimeout, b.PeerTimeout, a.ConnectTimeout, b.ConnectTimeout = s.timeout, s.timeout, 5*time.Second, 5*time.Second
		a.acks, b.acks = noAcks, noAcks
		s.from, s.to = newNode(a, newTarget()), newNode(b, s)
		s.from.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return s.paths[to.Addr().As4()[3]].dial(ctx)
		}
		for _, p := range s.paths {
			s.to.listeners = append(s.to.listeners, p)
			s.to.spawn(func() { s.to.accept(p) })
		}
		s.run()
		s.settle(t)
		stats := s.from.Stats()
		total.Resumed += stats.Resumed
		total.Resent += stats.Resent
		total.Frames += stats.FramesReceived
		s.closes(s.from, s.to)
		synctest.Wait()
		s.check(total)
		if len(s.wrong) > 0 {
			t.Errorf("seed %d:\n%s\n%v\n%s", seed, strings.Join(s.wrong, "\n"), s.plan, strings.Join(s.trace(), "\n"))
		}
		trace = s.trace()
	})
	return trace
}

// run follows both schedules.
func (a *simApp) run() {
	a.session()
	faults, actions := a.faults, a.actions
	for len(faults)+len(actions) > 0 {
		if len(actions) == 0 || len(faults) > 0 && faults[0].from < actions[0].at {
			time.Sleep(time.Until(a.begun.Add(faults[0].from)))
			a.paths[faults[0].path].strike(faults[0])
			faults = faults[1:]
			continue
		}
		time.Sleep(time.Until(a.begun.Add(actions[0].at)))
		a.act(actions[0])
		actions = actions[1:]
	}
	time.Sleep(time.Until(a.begun.Add(simLength)))
}

// settle waits until the faults can have no further effect. Then everything that was sent must have arrived.
func (a *simApp) settle(t *testing.T) {
	time.Sleep(a.timeout + 10*time.Second)
	a.session()
	time.Sleep(time.Second)
	a.act(action{deed: fences, count: 3})
	a.act(action{deed: revokes, count: 3})
	a.act(action{deed: drains, count: 3})
	time.Sleep(2 * time.Second)
	o, i := a.session()
	require.NotNil(t, i)
	a.mu.Lock()
	defer a.mu.Unlock()
	for what, n := range map[string][2]uint64{"fences": {o.fences, i.fences}, "answers to fences": {o.fences, o.fenced}, "keys": {o.keys, o.gotKeys},
		"drains": {o.drains, i.drains}, "answers to drains": {o.drains, o.drained}, "questions": {o.asked, i.views}, "snapshots": {o.asked, o.viewed}, "revocations": {i.revokes, o.revoked},
		"answers to revocations": {i.revokes, i.acked}, "wishes for fences": {i.wanted, o.wanted}} {
		if n[0] != n[1] {
			a.breaks("the network works, and of %d %s %d arrived", n[0], what, n[1])
		}
	}
	all := 0
	for _, p := range a.paths {
		n, spoiled := p.open()
		if all += n; spoiled > 0 {
			a.breaks("a connection that had a flipped bit is in use")
		}
	}
	if all != 2 {
		a.breaks("%d ends of connections are open, want 2", all)
	}
}

// closes closes the nodes. The initiator's sessions end here, if they have not ended before.
func (a *simApp) closes(nodes ...*Node) {
	a.mu.Lock()
	for _, o := range a.outs {
		if o.end.at.IsZero() {
			o.end.closed, o.end.at = true, time.Now()
		}
	}
	a.mu.Unlock()
	for _, n := range nodes {
		n.Close()
	}
}

// check looks at the ends of all sessions.
func (a *simApp) check(total *simTotal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.outs {
		total.Sessions++
		if o.ready {
			total.Ready++
		}
		if o.end.count > 0 {
			total.Lost++
			if why := a.unjustified(o, a.other(o)); o.ready && why != "" {
				a.breaks("initiator's session %d ended at %v, %s: %v", o.out.Session(), o.end.at.Sub(a.begun), why, o.end.err)
			}
		} else if !o.out.State().Over() || o.out.State() == Lost {
			a.breaks("session %d has no end", o.out.Session())
		}
	}
	for _, i := range a.ins {
		if i.end.count != 1 {
			a.breaks("%d ends of session %d were told to the target", i.end.count, i.in.Session())
		}
		if why := a.unjustifiedAtTarget(i); why != "" {
			a.breaks("target's session %d ended at %v, %s: %v", i.in.Session(), i.end.at.Sub(a.begun), why, i.end.err)
		}
	}
	for _, p := range a.paths {
		for _, ends := range p.conns {
			for _, end := range ends {
				if end.in.spoiled {
					total.Spoiled++
				}
			}
		}
	}
}

// enough is for how long a path must be calm until a session has moved to it: the silence is noticed after a third of the beat, an attempt
// that began before takes up to half of it, and one address after the other may try to resume, for a third.
func (a *simApp) enough() time.Duration {
	beat := min(a.timeout, maxHeartbeat)
	return min(a.timeout, beat*3/2) - time.Millisecond
}

// silent returns why a session should not have ended by peer_timeout. A path whose direction to the target alone is silent may end one: the
// initiator, which looks for other paths, hears the target's pings.
func (a *simApp) silent(at time.Time) string {
	for _, f := range a.faults {
		if f.kind == stall && !f.dirs[toInitiator] && a.begun.Add(f.from).Before(at) && a.begun.Add(f.to).After(at.Add(-a.timeout)) {
			return ""
		}
	}
	if calm := a.calm(at.Add(-a.timeout), at); calm >= a.enough() {
		return fmt.Sprintf("although a path was calm for %v", calm)
	}
	return ""
}

// unjustified returns why an initiator's session should not have ended as it did.
func (a *simApp) unjustified(o *simOut, other *simIn) string {
	at, err := o.end.at, o.end.err
	var r *RejectError
	switch {
	case errors.Is(err, ErrPeerClosed), errors.As(err, &r) && r.Proved && r.Code == wire.CodeSession:
		if other == nil || other.end.count == 0 || other.end.at.After(at.Add(linger)) { // the Bye comes before the call of Gone
			return "although the target's side has not ended"
		}
		return ""
	case errors.Is(err, ErrDead):
		for _, p := range a.paths {
			if since := at.Add(-refusalPeriod + maxBackoff); slices.Contains(o.out.proved, p.addr) && p.during(refuse, since) == nil {
				return "although an address did not refuse"
			}
		}
		return ""
	case errors.Is(err, ErrSilent), strings.Contains(err.Error(), "no other path"):
		return a.silent(at)
	}
	return "for no reason that counts"
}

func (a *simApp) unjustifiedAtTarget(i *simIn) string {
	at, err := i.end.at, i.end.err
	over := true // nobody at the other side has the session
	for _, o := range a.outs {
		if o.out.Session() == i.in.Session() && o.ready {
			over = !o.end.at.IsZero() && !o.end.at.After(at)
		}
	}
	switch {
	case errors.Is(err, ErrClosed):
		return ""
	case errors.Is(err, ErrPeerClosed):
		if !over {
			return "although the initiator's side has not ended"
		}
		return ""
	case over && errors.Is(err, ErrDropped), over && errors.Is(err, ErrSilent):
		return ""
	case strings.Contains(err.Error(), "the peer's process ended"):
		if calm := a.calm(at.Add(-1200*time.Millisecond), at); calm > 1150*time.Millisecond {
			return fmt.Sprintf("although a path was calm for %v", calm)
		}
		return ""
	case errors.Is(err, ErrSilent), strings.Contains(err.Error(), "no other path"):
		return a.silent(at)
	}
	return "for no reason that counts"
}

// String is the schedule, for a person.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "peer_timeout %v\n", p.timeout)
	for i, path := range p.paths {
		fmt.Fprintf(&b, "path %d: %v\n", i, path.base)
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "%v to %v: path %d: %s %v %v %d\n", f.from, f.to, f.path, faultNames[f.kind], f.dirs, f.delay, f.bytes)
	}
	for _, d := range p.actions {
		if d.deed >= suspects {
			fmt.Fprintf(&b, "%v: %s (%d)\n", d.at, deedNames[d.deed], d.count)
		}
	}
	return b.String()
}
