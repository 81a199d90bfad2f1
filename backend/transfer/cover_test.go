package transfer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// other adds a region of the peer with keys.
func (w *fixture) other(t *testing.T, off int, length uint64, change func(g *region.Region)) *region.Region {
	g := &region.Region{Claim: wire.Claim{Range: wire.Range{Addr: uint64(int(w.remote.Addr) + off), Len: length}}, Peer: w.peer}
	require.NoError(t, w.Regions.Regions.Add(g))
	g.Keyed, g.Access = true, option.PeersBoth
	change(g)
	w.others = append(w.others, g)
	t.Cleanup(func() { require.EqualValues(t, 1, g.Pins.Load(), "a transfer has left its pin") })
	return g
}

// covers runs cover for a prepared WRITE whose region of the peer is gone.
func (w *fixture) covers(x *Transfer) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	w.peer.mu.Lock()
	defer w.peer.mu.Unlock()
	w.remote.Unknown = true
	return x.cover(goneThere)
}

// A transfer takes other registrations only if these have all of its memory, of the same type and device, with keys that allow it.
func TestCover(t *testing.T) {
	for name, c := range map[string]struct {
		off    int
		length uint64
		change func(g *region.Region)
		covers bool
		later  bool // with keys
	}{
		"wider":          {-10, 5000, func(*region.Region) {}, true, true},
		"same":           {0, 4096, func(*region.Region) {}, true, true},
		"begins later":   {1, 5000, func(*region.Region) {}, false, false},
		"ends earlier":   {-10, 4105, func(*region.Region) {}, false, false},
		"other type":     {-10, 5000, func(g *region.Region) { g.Mem = region.VRAM }, false, false},
		"other device":   {-10, 5000, func(g *region.Region) { g.Dev = 1 }, false, false},
		"no keys":        {-10, 5000, func(g *region.Region) { g.Keyed = false }, false, true},
		"asked":          {-10, 5000, func(g *region.Region) { g.Keyed, g.Unknown, g.Asked = false, true, true }, false, true},
		"deregistered":   {-10, 5000, func(g *region.Region) { g.Keyed, g.Unknown = false, true }, false, false},
		"unloaded":       {-10, 5000, func(g *region.Region) { g.Keyed = false; g.Closed.Store(true) }, false, false},
		"read alone":     {-10, 5000, func(g *region.Region) { g.Access = option.PeersRead }, false, false},
		"another region": {5000, 5000, func(*region.Region) {}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			x := w.prep(t)
			g := w.other(t, c.off, c.length, c.change)
			before := x.Ops()[0]
			w.others = append(w.others, w.remote)
			require.Equal(t, c.later, x.willCover())
			require.Equal(t, c.covers, w.covers(x))
			want := before
			if c.covers {
				want.RRegion = region.Index(g.ID)
				require.Equal(t, []*region.Region{g}, x.Remotes())
				require.EqualValues(t, 1, w.remote.Pins.Load())
			}
			require.Equal(t, []core.Op{want}, x.Ops())
			require.NoError(t, x.Release())
		})
	}
}

// Several registrations cover an operation together. It is cut at their ends, and no part is in a region that has not all of it.
func TestCoverTogether(t *testing.T) {
	w := newFixture(t)
	x := w.prep(t)
	w.other(t, 0, 1000, func(*region.Region) {})
	w.other(t, 500, 1500, func(*region.Region) {})
	require.False(t, w.covers(x), "the last bytes have no registration")
	w.other(t, 1999, 2097, func(*region.Region) {})
	require.True(t, w.covers(x))
	at, list := uint64(0), x.Regions()
	for _, o := range x.Ops() {
		require.Equal(t, w.local.Addr+at, o.Local)
		require.Equal(t, w.remote.Addr+at, o.Remote)
		require.True(t, list[o.RRegion].Contains(o.Remote, o.Len))
		at += o.Len
	}
	require.EqualValues(t, 4096, at)
	require.Len(t, x.Ops(), 3)
	require.NoError(t, x.Release())
}

// A deregistration does not end a transfer that has taken another registration before it was its turn.
func TestLeaveAfterCover(t *testing.T) {
	w := newFixture(t)
	x := w.prep(t)
	_, err := x.Post(false, nil)
	require.NoError(t, err)
	require.True(t, x.x.Running())
	uses := false
	left := func() bool { return x.leave(func(*Transfer) bool { return uses }, errcode.LocalGone.Errorf("gone")) }
	require.True(t, left())
	require.True(t, x.x.Running())
	require.NoError(t, x.reason)
	uses = true // and nothing covers the memory
	require.True(t, left())
	require.False(t, x.x.Running())
	require.NoError(t, x.Release())
}

// postStaged posts a transfer that goes through bounce buffers. Its run ends when the test says so.
func (w *fixture) postStaged(t *testing.T) *Transfer {
	w.ready()
	x := w.prep(t)
	w.publish(func(*View) { w.remote.Keyed, w.remote.Access = true, option.PeersWrite })
	x.staged = true
	_, err := x.Post(false, nil)
	require.NoError(t, err)
	require.Equal(t, 1, w.runs)
	return x
}

// A staged run that failed because its peer lacks keys of something else does not start again. One whose memory the peer has revoked does,
// once for each revocation.
func TestStagedRunAgain(t *testing.T) {
	for _, runs := range []int{1, 2} {
		w := newFixture(t)
		x := w.postStaged(t)
		if runs == 2 {
			x.TakeBack(func(*Transfer) bool { return true })
		}
		for range runs {
			x.EndRun(Ran{}, errcode.RemoteGone.Errorf("no keys"))
			w.settle()
		}
		require.Equal(t, errcode.ErrBackend, x.status())
		require.Equal(t, runs, w.runs)
		require.NoError(t, x.Release())
	}
}

// A transfer that the application has given up does not start again, though its memory was taken before.
func TestTakenThenGivenUp(t *testing.T) {
	w := newFixture(t)
	x := w.postStaged(t)
	x.run.Store(nil)
	x.reason, x.taken = errcode.RemoteGone.Errorf("gone"), true
	x.Abort(errcode.Disconnected.Errorf("removed"))
	x.x.Hold()
	x.ended(int32(errcode.ErrBackend))
	w.settle()
	require.Equal(t, errcode.ErrBackend, x.status())
	require.Equal(t, 1, w.runs)
	require.NoError(t, x.Release())
}

// settle waits until the peer's events are handled.
func (w *fixture) settle() {
	done := make(chan struct{})
	w.peer.Events.Do(w.Life, func() { close(done) })
	<-done
}

// A revocation leaves a transfer alone that waits for keys: it has nothing posted.
func TestTakeBackQueued(t *testing.T) {
	w := newFixture(t)
	x := w.prep(t)
	_, err := x.Post(false, nil)
	require.NoError(t, err)
	w.ready()
	x.session = 1
	x.TakeBack(func(*Transfer) bool { return true })
	require.NoError(t, x.reason)
	require.False(t, x.taken)
	require.True(t, x.revoked.IsZero())
	x.Abort(errcode.Released.Errorf("the test ends"))
	require.NoError(t, x.Release())
}

// Measurements replace the guess. Small transfers set the latency, large transfers the rate.
func TestEstimate(t *testing.T) {
	guess := speed{latency: 50e-6, rate: 1e9}
	var r rates
	check := func(bytes uint64, want time.Duration, known bool) {
		t.Helper()
		d, measured := r.estimate(bytes, guess)
		require.InDelta(t, want.Seconds(), d.Seconds(), 1e-9)
		require.Equal(t, known, measured)
	}
	check(0, 50*time.Microsecond, false)
	check(1e9, time.Second+50*time.Microsecond, false)
	r.add(4096, 10*time.Microsecond)
	check(0, 10*time.Microsecond, true)
	check(1e9, time.Second+10*time.Microsecond, false)
	r.add(2e6, time.Millisecond)
	check(1e9, 500*time.Millisecond+10*time.Microsecond, true)
}
