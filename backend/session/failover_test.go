package session

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clocked is a session of n links, two to a rail, that work and are proved. Its clock stands still.
func clocked(n int) (*Failover, *time.Time) {
	now := time.Unix(1_000_000, 0)
	s := &Failover{Timeout: time.Second, Now: func() time.Time { return now }}
	for i := range n {
		l := &LinkState{OwnRail: i / 2, Up: true, Proved: true}
		l.Enter(Working, now)
		s.Links = append(s.Links, l)
	}
	return s, &now
}

func TestWhoElseWorks(t *testing.T) {
	s, now := clocked(4)
	a, b, c, d := s.Links[0], s.Links[1], s.Links[2], s.Links[3]
	require.True(t, s.OthersWork(a) && s.SiblingWorks(a) && s.OtherRailWorks(a) && s.AnyUsable(a))
	b.Enter(BackingOff, *now)
	require.False(t, s.SiblingWorks(a))
	require.True(t, s.SiblingWorks(b), "a is on the same rail")
	c.Enter(Fencing, *now)
	d.Enter(Draining, *now)
	require.False(t, s.OthersWork(a) || s.OtherRailWorks(a))
	require.True(t, s.AnyUsable(a), "they may come back")
	b.Up, c.Up, d.Up = false, false, false
	require.False(t, s.AnyUsable(a))
}

// A fence closes first if another link can have the work. The only link that works asks for another endpoint at once, and so does a link
// without work.
func TestCloseFirst(t *testing.T) {
	s, now := clocked(3)
	a, b, c := s.Links[0], s.Links[1], s.Links[2]
	require.Equal(t, Actions{Fence: true, First: true}, s.Fence(a, false))
	require.Equal(t, Fencing, a.Phase)
	require.Zero(t, s.Fence(a, false), "it is fencing")
	b.Enter(Probing, *now)
	require.Equal(t, Actions{Fence: true, First: true, Open: true, Suspect: true}, s.Fence(b, false), "it has no work")
	require.Equal(t, Actions{Fence: true, First: true, Open: true, Suspect: true}, s.Fence(c, false), "no other works")
	c.Up = false
	require.Zero(t, s.Fence(c, false), "it is not up")
}

// The answer to a fence that has closed hands the link's work over, and another fence opens. If no other link works any more, the link keeps
// its work. Without an address of ours nothing opens.
func TestAnswered(t *testing.T) {
	s, now := clocked(3)
	a, b, c := s.Links[0], s.Links[1], s.Links[2]
	s.Fence(a, false)
	require.Equal(t, Actions{LogDown: true, HandOver: true, Fence: true, Open: true}, s.Answered(a, false))
	require.Equal(t, Fencing, a.Phase)
	require.Equal(t, Actions{HandOver: true, Connect: true}, s.Answered(a, false), "the log says once that the rail is down")
	s.Fence(b, false)
	require.Equal(t, Actions{LogDown: true, HandOver: true}, s.Answered(b, true))
	require.Equal(t, BackingOff, b.Phase)
	s.Fence(c, false)
	require.Equal(t, Actions{Abandon: true, Connect: true}, s.Answered(c, false))
	d := &LinkState{}
	d.Enter(Fencing, *now)
	require.Equal(t, Actions{Connect: true}, s.Answered(d, false), "a link that begins has no work")
}

// A shared endpoint drains, whether others work or not.
func TestDrain(t *testing.T) {
	s, _ := clocked(3)
	for _, l := range s.Links {
		require.Equal(t, Actions{First: true, Drain: true}, s.Fence(l, true))
		require.Equal(t, Draining, l.Phase)
		require.Zero(t, s.Fence(l, true))
	}
}

// If no other link works, a link is fenced at once while bytes go through. Then it is fenced after pauses that double
// up to a bound. If others work, it is fenced at once and backs off for longer.
func TestFailed(t *testing.T) {
	s, _ := clocked(1)
	l, probe := s.Links[0], Count{Completions: 1} // one completion is no progress
	failed := func(n Count, urgent bool) time.Duration {
		l.Enter(Working, s.now())
		a := s.Failed(l, n, urgent, false)
		require.NotEqual(t, a.Pause > 0, a.Fence, "%+v", a)
		return a.Pause
	}
	require.Zero(t, failed(probe, false), "its first endpoint")
	l.Epoch++
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500} {
		probe.Completions, probe.Errors = probe.Completions+1, probe.Errors+1
		require.Equal(t, want*time.Millisecond, failed(probe, false))
	}
	require.Zero(t, failed(probe, true), "urgent")
	require.Zero(t, failed(Count{Completions: 1000}, false), "bytes went through")

	s, _ = clocked(3)
	l = s.Links[0]
	l.Epoch = 1
	for _, want := range []time.Duration{100, 200, 400, 800, 1600, 2000, 2000} {
		require.Zero(t, failed(Count{}, false), "others do its work")
		require.Equal(t, want*time.Millisecond, l.Pause)
		l.DownLogged = true
		require.Equal(t, Actions{HandBack: true, Retry: true, After: l.Pause}, s.Opened(l, nil, false))
		require.Equal(t, BackingOff, l.Phase)
	}
	l.UnprovedLogged = true
	l.GrowBackoff()
	l.GrowBackoff()
	l.GrowBackoff()
	require.Equal(t, MostUnproved, l.Pause, "nothing ever came over it")
}

func TestOpened(t *testing.T) {
	s, now := clocked(2)
	a, b, fails := s.Links[0], s.Links[1], errors.New("no endpoint")
	require.Equal(t, Actions{HandBack: true, LogDown: true, Retry: true}, s.Opened(a, nil, false), "after a first failure it is probed at once")
	a.Enter(Fencing, *now)
	require.Equal(t, Actions{HandBack: true, LogDown: true, Retry: true, Refence: true, After: FirstBackoff}, s.Opened(a, fails, false))
	b.Enter(Fencing, *now)
	require.Equal(t, Actions{HandBack: true, LogAlone: true, Retry: true, Refence: true, After: FirstBackoff}, s.Opened(b, fails, false),
		"no other link works: it is retried")
	require.True(t, b.Away())
	require.Equal(t, FirstBackoff, s.CannotProbe(a))

	require.Equal(t, Actions{Rebind: true, HandOver: true}, s.Opened(b, nil, false), "the only link has the work")
	b.Proved = false
	require.Equal(t, Actions{Rebind: true}, s.Opened(b, nil, false), "it has it after its probe")
	a.Up = false
	require.Equal(t, Actions{GiveUp: true}, s.Opened(b, fails, false))
	require.True(t, s.Opened(b, fails, true).Refence, "our address may come back")
}

// A link without proof continues with a probe.
func TestRenewed(t *testing.T) {
	s, now := clocked(1)
	l := s.Links[0]
	s.Renewed(l)
	require.Equal(t, Working, l.Phase)
	l.Proved = false
	*now = now.Add(time.Minute)
	s.Renewed(l)
	require.Equal(t, Probing, l.Phase)
	require.Equal(t, *now, l.Since)
	l.UnprovedLogged = true
	s.ProbeAnswered(l)
	require.Equal(t, Working, l.Phase)
	require.True(t, l.Proved && !l.UnprovedLogged)
}

func TestKnownAndUnproved(t *testing.T) {
	s, now := clocked(2)
	a, b := s.Links[0], s.Links[1]
	require.True(t, s.FirstProbesDone())
	a.Proved, b.Proved = false, false
	require.False(t, s.FirstProbesDone())
	b.Proved = true
	a.Enter(Probing, *now)
	require.False(t, s.FirstProbesDone(), "the first probe is under way")
	a.Epoch = 1
	require.True(t, s.FirstProbesDone())
	require.True(t, s.Fence(a, false).Unproved)
	a.Enter(Working, *now)
	require.False(t, s.Fence(a, false).Unproved, "once")
	require.False(t, s.Fence(b, false).Unproved, "it is proved")
}

// watched returns the links that Watch wants fenced, and fences them.
func watched(s *Failover, counts []Count) (list []int) {
	for _, l := range s.Watch(counts) {
		list = append(list, l.Link)
		s.Links[l.Link].Enter(Fencing, s.now())
	}
	return list
}

// wait lets a little more than the timeout pass, in which Watch finds nothing.
func wait(t *testing.T, s *Failover, now *time.Time, counts []Count) {
	for range 2 {
		*now = now.Add(s.Timeout / 2)
		require.Empty(t, watched(s, counts))
	}
	*now = now.Add(1)
}

// A link is stuck if it makes no progress while another does. If none does, the cause may be the peer.
func TestWatch(t *testing.T) {
	s, now := clocked(3)
	counts := []Count{{Completions: 1, InFlight: 1}, {Completions: 1, InFlight: 1}, {Completions: 1, InFlight: 1}}
	require.Empty(t, watched(s, counts))
	wait(t, s, now, counts)
	require.Empty(t, watched(s, counts), "the peer as a whole")
	counts[1].Completions++
	require.Equal(t, []int{0, 2}, watched(s, counts))
	wait(t, s, now, counts)
	counts[1].InFlight = 0
	require.Empty(t, watched(s, counts), "nothing to do is well")
}

// A link that was idle for long and then posts has rail_timeout from the first look on, not from the last progress.
func TestWatchAfterIdle(t *testing.T) {
	s, now := clocked(3)
	counts := []Count{{}, {}, {}}
	require.Empty(t, watched(s, counts))
	*now = now.Add(time.Hour)
	counts[0].InFlight = 1
	require.Empty(t, watched(s, counts))
	wait(t, s, now, counts)
	require.Equal(t, []int{0, 1}, watched(s, counts), "and the other link of its rail")
}

// Time in which nobody looked does not count: this process was stopped, or starved, and the completions of one link come in before those
// of another.
func TestWatchLate(t *testing.T) {
	s, now := clocked(3)
	counts := []Count{{1, 0, 1}, {1, 0, 1}, {1, 0, 1}}
	require.Empty(t, watched(s, counts))
	*now = now.Add(time.Hour)
	counts[0].Completions++
	require.Empty(t, watched(s, counts))
	counts[1].Completions++
	*now = now.Add(s.Timeout / 2)
	require.Empty(t, watched(s, counts))
	counts[0].Completions++
	*now = now.Add(1)
	require.Equal(t, []int{2}, watched(s, counts))
}

// An idle link over the same rail, or over another shard of its device, does not show that the path works. Links 0 and 1 have one
// rail, link 2 another.
func TestWatchIdle(t *testing.T) {
	for name, c := range map[string]struct {
		idle, moves int // a link; -1: none
		want        []int
	}{
		"none":                      {-1, -1, nil},
		"a sibling is idle":         {1, -1, []int{2}},
		"a sibling makes progress":  {-1, 1, []int{0, 2}},
		"another rail is idle":      {2, -1, []int{0, 1}},
		"another rail has progress": {1, 2, []int{0, 1}},
	} {
		s, now := clocked(3)
		counts := []Count{{1, 0, 1}, {1, 0, 1}, {1, 0, 1}}
		if c.idle >= 0 {
			counts[c.idle].InFlight = 0
		}
		require.Empty(t, watched(s, counts), name)
		wait(t, s, now, counts)
		if c.moves >= 0 {
			counts[c.moves].Completions++
		}
		require.Equal(t, c.want, watched(s, counts), name)
	}
}

// The idle links of a silent rail are stuck too. Those of a rail over which one still completes are not. Links 0 and 1 have
// one rail, 2 and 3 another.
func TestWatchSilentRail(t *testing.T) {
	for name, c := range map[string]struct {
		completes int // a link, half the timeout before the end; -1: none
		want      []int
	}{
		"silent":                   {-1, []int{0, 1}},
		"a sibling completes":      {1, []int{0}},
		"the other rail completes": {2, []int{0, 1}},
	} {
		s, now := clocked(4)
		counts := []Count{{1, 0, 0}, {1, 0, 0}, {1, 0, 0}, {1, 0, 0}}
		require.Empty(t, watched(s, counts), name)
		*now = now.Add(time.Hour)
		counts[0].InFlight = 1
		require.Empty(t, watched(s, counts), name)
		*now = now.Add(s.Timeout / 2)
		require.Empty(t, watched(s, counts), name)
		*now = now.Add(s.Timeout / 2)
		if c.completes >= 0 {
			counts[c.completes].Completions++
		}
		require.Empty(t, watched(s, counts), name)
		*now = now.Add(1)
		require.Equal(t, c.want, watched(s, counts), name)
	}
	s, now := clocked(4)
	counts := []Count{{1, 0, 1}, {1, 0, 0}, {1, 0, 1}, {1, 0, 0}}
	require.Empty(t, watched(s, counts))
	wait(t, s, now, counts)
	require.Equal(t, []int{0, 2}, watched(s, counts), "the peer as a whole may be silent: idle links stay")
}

func TestWatchProbes(t *testing.T) {
	s, now := clocked(2)
	a, counts := s.Links[0], make([]Count, 2)
	probe := func(d time.Duration) []int { // looks for so long, and once more
		a.Enter(Probing, *now)
		for passed := time.Duration(0); passed < d; passed += s.Timeout / 2 { // time in which nobody looks does not count
			if list := watched(s, counts); len(list) > 0 {
				return list
			}
			*now = now.Add(s.Timeout / 2)
		}
		return watched(s, counts)
	}
	require.Empty(t, probe(ProbeTime))
	require.Equal(t, []int{0}, probe(ProbeTime+1))
	require.Equal(t, FirstBackoff, a.Pause)
	require.Empty(t, probe(2*ProbeTime), "a probe in vain doubles the time")
	require.Equal(t, []int{0}, probe(2*ProbeTime+1))
	require.Equal(t, []int{0}, probe(4*ProbeTime+1))
	for range 10 {
		require.Empty(t, probe(8*ProbeTime))
		require.Equal(t, []int{0}, probe(MostProbe+1))
	}
	a.Prove()
	require.Equal(t, []int{0}, probe(ProbeTime+1))

	a.Prove()
	s.Answer = ProbeTime // a peer that starves: a fence would take more of its time
	require.Empty(t, probe(slowAnswer*ProbeTime))
	require.Equal(t, []int{0}, probe(slowAnswer*ProbeTime+1))

	a.Enter(Probing, *now)
	*now = now.Add(time.Minute)
	require.Empty(t, watched(s, counts), "this process has not looked")

	s, now = clocked(1)
	s.Links[0].Proved = false
	s.Links[0].Enter(Probing, *now)
	*now = now.Add(time.Hour)
	require.Empty(t, watched(s, counts), "connect_timeout ends that session")
}

func TestDevice(t *testing.T) {
	s, now := clocked(4)
	a, b, c := s.Links[0], s.Links[1], s.Links[2]
	require.True(t, s.DeviceChanged(a, false), "rail 1 works")
	require.Equal(t, FirstBackoff, a.Pause)
	require.False(t, s.DeviceChanged(a, true), "it works")
	c.Enter(BackingOff, *now)
	s.Links[3].Enter(BackingOff, *now)
	require.False(t, s.DeviceChanged(b, false), "no other rail could do its work")
	c.Pause = time.Second
	require.True(t, s.DeviceChanged(c, true))
	require.Zero(t, c.Pause)
}

// A session without a proved link ends at connect_timeout. Its other pairs are tried before that, also if the peer has answered the Hello slowly.
func TestOtherPairsInTime(t *testing.T) {
	s, _ := clocked(1)
	l, connect := s.Links[0], 30*time.Second
	require.Equal(t, 2*ProbeTime, s.apartAfter(l, false, connect))
	require.Equal(t, 2*ProbeTime, s.apartAfter(l, false, time.Second))
	s.Answer = 4 * time.Second
	require.Less(t, s.apartAfter(l, false, connect), connect/4, "awaitProof")
	require.Equal(t, MostProbe, s.apartAfter(l, true, connect))
}
