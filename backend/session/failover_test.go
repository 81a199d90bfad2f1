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
	require.True(t, s.CloseFirst(a))
	a.Enter(Fencing, *now)
	b.Enter(Probing, *now)
	require.False(t, s.CloseFirst(b), "it has no work")
	require.False(t, s.CloseFirst(c), "no other works")
	a.Enter(BackingOff, *now)
	require.False(t, s.CloseFirst(a), "it is closed")
}

// If no other link works, a link is fenced at once while bytes go through. Then it is fenced after pauses that double
// up to a bound. If others work, it is fenced at once and backs off for longer.
func TestFailed(t *testing.T) {
	s, _ := clocked(1)
	l, probe := s.Links[0], Count{Completions: 1} // one completion is no progress
	require.Zero(t, s.Failed(l, probe, false), "its first endpoint")
	l.Epoch++
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 500} {
		probe.Completions, probe.Errors = probe.Completions+1, probe.Errors+1
		require.Equal(t, want*time.Millisecond, s.Failed(l, probe, false))
	}
	require.Zero(t, s.Failed(l, probe, true), "urgent")
	require.Zero(t, s.Failed(l, Count{Completions: 1000}, false), "bytes went through")

	s, now := clocked(3)
	l = s.Links[0]
	l.Epoch = 1
	for _, want := range []time.Duration{100, 200, 400, 800, 1600, 2000, 2000} {
		require.Zero(t, s.Failed(l, Count{}, false), "others do its work")
		require.Equal(t, want*time.Millisecond, l.Pause)
		l.Enter(Fencing, *now)
		require.Equal(t, Retry{After: l.Pause}, s.BackOff(l, nil))
		require.Equal(t, BackingOff, l.Phase)
	}
	l.UnprovedLogged = true
	l.GrowBackoff()
	l.GrowBackoff()
	l.GrowBackoff()
	require.Equal(t, MostUnproved, l.Pause, "nothing ever came over it")
}

func TestBackOff(t *testing.T) {
	s, _ := clocked(2)
	a, b := s.Links[0], s.Links[1]
	require.Equal(t, Retry{}, s.BackOff(a, nil), "after a first failure it is probed at once")
	a.Enter(Fencing, s.now())
	require.Equal(t, Retry{Fence: true, After: FirstBackoff}, s.BackOff(a, errors.New("no endpoint")))
	b.Enter(Fencing, s.now())
	require.Equal(t, Retry{Fence: true, After: FirstBackoff}, s.BackOff(b, errors.New("no endpoint")), "no other link works: it is retried")
	require.True(t, b.Away())
	require.Equal(t, FirstBackoff, s.CannotProbe(a))
}

// A link without proof continues with a probe.
func TestRenewed(t *testing.T) {
	s, now := clocked(1)
	l := s.Links[0]
	require.False(t, s.Renewed(l))
	require.Equal(t, Working, l.Phase)
	l.Proved = false
	*now = now.Add(time.Minute)
	require.True(t, s.Renewed(l))
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
	require.True(t, s.Known())
	a.Proved, b.Proved = false, false
	require.False(t, s.Known())
	b.Proved = true
	a.Enter(Probing, *now)
	require.False(t, s.Known(), "the first probe is under way")
	a.Epoch = 1
	require.True(t, s.Known())
	require.True(t, s.ReportUnproved(a))
	require.False(t, s.ReportUnproved(a), "once")
	require.False(t, s.ReportUnproved(b), "it is proved")
}

// watched returns the links that Watch has fenced.
func watched(s *Failover, counts []Count) (list []int) {
	s.Watch(func(i int) Count { return counts[i] }, func(i int, why string) {
		list = append(list, i)
		s.Links[i].Enter(Fencing, s.now())
	})
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
	a := s.Links[0]
	a.Enter(Probing, *now)
	counts := make([]Count, 2)
	require.Empty(t, watched(s, counts))
	*now = now.Add(ProbeTime + 1)
	require.Equal(t, []int{0}, watched(s, counts))
	require.Equal(t, FirstBackoff, a.Pause)

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
