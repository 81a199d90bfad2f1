package transfer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/topo"
	"gorail/backend/wire"
	"gorail/test/drive"
	"gorail/test/fake"
)

// session is a Session without a peer. It records the calls of transfers.
type session struct {
	peer     *Peer
	refuses  error
	wanted   [][]*region.Region
	finished atomic.Int32
	reports  []func(string, []any, [][]any)
	runs     int
	others   []*region.Region
}

func (s *session) Admit(add func() []*region.Region) error {
	if s.refuses != nil {
		return s.refuses
	}
	s.want(append(add(), s.peer.Kick()...))
	return nil
}

// want notes what a transfer wants.
func (s *session) want(list []*region.Region) {
	if len(list) > 0 {
		s.wanted = append(s.wanted, list)
	}
}
func (s *session) Overlapping([]*region.Region) []*region.Region { return slices.Clone(s.others) }
func (s *session) Fence([]Route, string, bool)                   {}
func (s *session) Pair(Sets)                                     {}
func (s *session) FinishRevokes()                                { s.finished.Add(1) }
func (s *session) Report() ([]any, [][]any, string)              { return nil, nil, "" }
func (s *session) PeerReport(f func(string, []any, [][]any))     { s.reports = append(s.reports, f) }

// stage begins a run that never ends.
func (s *session) stage(*Run) (main func()) { s.runs++; return func() {} }

// publish changes the view, and what transfers read of regions.
func (s *session) publish(change func(v *View)) {
	v := s.peer.View()
	s.peer.Pause()
	change(&v)
	s.want(s.peer.Publish(v, false))
}

// fixture is a table of transfers over one rail. Its peer has no link yet. Each side has one region.
type fixture struct {
	*Table
	*session
	local, remote *region.Region
}

func newFixture(t *testing.T) *fixture {
	opt, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := core.New(core.Config{Slots: opt.Slots(), WindowMin: opt.WindowMin, WindowMax: opt.WindowMax,
		SpinForPeers: opt.SpinsForPeers(), NotifQueue: opt.NotifQueue, NotifMemory: opt.NotifMemory})
	require.NoError(t, err)
	fabric := fake.NewFabric(1)
	prov := fabric.Provider(fake.Link{Name: "fake0", Caps: fake.TCPCaps()})
	found, err := prov.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	set := rails.New(opt, log, prov, nil)
	machine := topo.Read(os.DirFS("/sys"))
	set.Plan(found, machine)
	require.NoError(t, set.Open(c, machine))
	w := &fixture{session: &session{}}
	regions := region.NewRegistry(opt, log, c, set, region.GPU{}, func([]*region.Region, time.Time, string) {})
	life := &core.Lifetime{}
	w.Table = New(Config{Options: &opt, Log: log, Life: life, Core: c, Rails: set, Regions: regions})
	w.peer = w.NewPeer("bob", false, nil, w.session)
	w.peer.SetPairs(nil, 1, false)
	mem := drive.Alloc(4096)
	id, err := regions.Register(wire.Range{Addr: drive.Addr(mem), Len: 4096}, option.PeersBoth)
	require.NoError(t, err)
	w.local = regions.Regions.Get(id)
	w.remote = &region.Region{Claim: wire.Claim{Range: wire.Range{Addr: 1 << 20, Len: 4096}}, Peer: w.peer}
	require.NoError(t, regions.Regions.Add(w.remote))
	t.Cleanup(func() {
		require.True(t, life.Quiesce(time.Minute))
		require.Zero(t, w.Len(), "transfers are left")
		require.EqualValues(t, 1, w.local.Pins.Load(), "its registration's")
		require.EqualValues(t, 1, w.remote.Pins.Load())
		c.Stop()
		c.DropRails()
		regions.Close()
		set.Close(func(_ string, closing func()) { closing() })
		c.Free()
		require.NoError(t, fabric.Close())
	})
	return w
}

// prep prepares a WRITE of the whole region.
func (w *fixture) prep(t *testing.T) *Transfer {
	local, remote := Own(1), Own(1)
	local.Set(0, w.local.ID, w.local.Addr, w.local.Len)
	remote.Set(0, w.remote.ID, w.remote.Addr, w.remote.Len)
	x, err := w.Prep(Write, local, remote, w.peer, nil)
	require.NoError(t, err)
	return x
}

// ready publishes a ready session without links.
func (w *fixture) ready() {
	w.publish(func(v *View) { *v = View{State: Ready, Session: 1, Stage: w.stage} })
}

func (t *Transfer) status() errcode.Status { return errcode.Status(t.x.Status()) }

// A peer that takes no posts returns its error. The same transfer may be posted again.
func TestNotAdmitted(t *testing.T) {
	w := newFixture(t)
	x := w.prep(t)
	w.refuses = errcode.PeerGone.Errorf("gone")
	for range 2 {
		_, err := x.Post(false, nil)
		require.Equal(t, errcode.ErrRemoteDisconnect, errcode.StatusOf(err))
	}
	w.refuses = nil
	_, err := x.Post(false, nil)
	require.NoError(t, err)
	_, err = x.Post(false, nil)
	require.Equal(t, errcode.ErrRepostActive, errcode.StatusOf(err))
	require.NoError(t, x.Release())
	require.Equal(t, errcode.ErrNotFound, errcode.StatusOf(w.Table.Release(x.Handle())))
}

// A run of a transfer that fails because the application removes the peer says so, also while the session delivers its notifications.
func TestEnded(t *testing.T) {
	w := newFixture(t)
	for _, c := range []struct {
		view View
		code *errcode.Code // nil: the session is ready
	}{
		{View{State: Ready}, nil}, {View{State: Ready, Leaving: true}, errcode.Disconnected}, {View{State: Closed, Code: errcode.PeerGone}, errcode.Disconnected},
		{View{State: Suspended, Leaving: true, Code: errcode.SessionLost}, errcode.SessionLost}, {View{State: Lost, Code: errcode.PeerGone}, errcode.PeerGone},
	} {
		w.publish(func(v *View) { *v = c.view })
		code, over := w.peer.Ended()
		require.Equal(t, c.code != nil, over, "%+v", c.view)
		require.Same(t, c.code, code, "%+v", c.view)
	}
}

// A transfer that links cannot carry starts again over bounce buffers, unless its peer is removed or the transfer is released meanwhile.
func TestNoRestart(t *testing.T) {
	for name, ends := range map[string]func(w *fixture, x *Transfer){
		"the session only delivers": func(w *fixture, _ *Transfer) { w.publish(func(v *View) { v.Leaving = true }) },
		"removed and loaded again": func(w *fixture, _ *Transfer) {
			w.publish(func(v *View) { v.Leaving = true })
			for _, t := range w.peer.Unfinished() {
				t.Abort(errcode.Disconnected.Errorf("disconnected by the application"))
			}
			w.ready()
		},
		"released": func(_ *fixture, x *Transfer) { require.NoError(t, x.Release()) },
	} {
		w := newFixture(t)
		w.ready()
		x := w.prep(t)
		w.publish(func(*View) { w.remote.Keyed = true })
		x.begin(false)
		x.restart = slowToMap
		x.x.Hold()
		ends(w, x)
		x.ended(int32(errcode.ErrBackend))
		require.Zero(t, w.runs, name)
		if name != "released" {
			require.Equal(t, errcode.ErrBackend, x.status(), name)
			require.NoError(t, x.Release())
		}
	}
}

// A transfer waits for the session, then requests keys and waits for them. It fails if no link has the keys.
func TestWaitsForKeys(t *testing.T) {
	w := newFixture(t)
	x := w.prep(t)
	rc, err := x.Post(true, []byte("n"))
	require.NoError(t, err)
	require.EqualValues(t, errcode.InProg, rc)
	require.Empty(t, w.wanted, "no session to ask")
	w.ready()
	w.want(w.peer.Kick())
	require.Equal(t, [][]*region.Region{{w.remote}}, w.wanted)
	require.True(t, x.x.Running())
	w.publish(func(*View) { w.remote.Keyed, w.remote.Access = true, option.PeersWrite })
	w.want(w.peer.Kick())
	require.Equal(t, errcode.ErrBackend, x.status())
	require.ErrorContains(t, x.why, "no rail in use")
	require.NoError(t, x.Release())
}

// However many transfers wait for a key, it is wanted once, and not while a request for it is in flight.
func TestWaitForOneKey(t *testing.T) {
	w := newFixture(t)
	var list []*Transfer
	for range 3 {
		x := w.prep(t)
		_, err := x.Post(false, nil)
		require.NoError(t, err)
		list = append(list, x)
	}
	w.ready()
	require.Equal(t, []*region.Region{w.remote}, w.peer.Kick())
	w.publish(func(*View) { w.remote.Asked = true })
	require.Empty(t, w.peer.Kick())
	w.peer.EndWaiting(errcode.SessionLost)
	for _, x := range list {
		require.NoError(t, x.Release())
	}
}

// A transfer that the peer's memory does not allow is refused before it is posted: a waiting one when the keys come, others at once.
func TestDenied(t *testing.T) {
	w := newFixture(t)
	w.ready()
	waiting, later := w.prep(t), w.prep(t)
	_, err := waiting.Post(false, nil)
	require.NoError(t, err)
	w.publish(func(*View) { w.remote.Keyed, w.remote.Access = true, option.PeersRead })
	w.want(w.peer.Kick())
	require.Equal(t, errcode.ErrNotAllowed, waiting.status())
	why := fmt.Sprintf("WRITE to %#x+%d of agent \"bob\" is not allowed", w.remote.Addr, w.remote.Len)
	require.ErrorContains(t, waiting.why, why)
	for range 2 {
		_, err = later.Post(false, nil)
		require.Equal(t, errcode.ErrNotAllowed, errcode.StatusOf(err))
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "remote_access=read")
		require.False(t, later.x.Running())
	}
	require.NoError(t, waiting.Release())
	require.NoError(t, later.Release())
}

// The error of a region that the peer lacks waits for the peer's goodbye, which replaces the error.
func TestErrorWaitsForGoodbye(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		w := newFixture(t)
		w.ready()
		x := w.prep(t)
		_, err := x.Post(false, nil)
		require.NoError(t, err)
		w.publish(func(*View) { w.remote.Unknown, w.remote.Why = true, GoneThere })
		w.want(w.peer.Kick())
		require.True(t, x.x.NeedsFinalize())
		want := errcode.ErrBackend
		if leaves {
			want = errcode.ErrRemoteDisconnect
			w.publish(func(v *View) { *v = View{State: Lost, Code: errcode.PeerGone} })
			w.peer.FinalizeDeferred()
		}
		require.Eventually(t, func() bool { return !x.x.NeedsFinalize() }, time.Minute, time.Millisecond)
		require.Equal(t, want, x.status())
		require.NoError(t, x.Release())
	}
}

// An error of memory that is gone for long does not wait for a goodbye, and no other error waits once the peer has said that it stays.
func TestErrorWithoutGoodbye(t *testing.T) {
	w := newFixture(t)
	w.ready()
	waits, atOnce := w.prep(t), w.prep(t)
	lacks := func(x *Transfer, stays bool) {
		_, err := x.Post(false, nil)
		require.NoError(t, err)
		w.publish(func(*View) { w.remote.Unknown, w.remote.Why, w.remote.Stays = true, GoneThere, stays })
		w.want(w.peer.Kick())
	}
	lacks(waits, false)
	w.peer.mu.Lock()
	w.peer.until = time.Now().Add(time.Hour) // as on a host that does not run the timer
	w.peer.mu.Unlock()
	lacks(atOnce, true)
	require.False(t, atOnce.x.NeedsFinalize())
	require.Equal(t, errcode.ErrBackend, atOnce.status())
	require.True(t, waits.x.NeedsFinalize())
	w.peer.Stays()
	require.Eventually(t, func() bool { return !waits.x.NeedsFinalize() }, time.Minute, time.Millisecond)
	require.Equal(t, errcode.ErrBackend, waits.status())
	require.NoError(t, waits.Release())
	require.NoError(t, atOnce.Release())
}

// Waiting transfers end with their session or with their release.
func TestEndWaiting(t *testing.T) {
	w := newFixture(t)
	x, y := w.prep(t), w.prep(t)
	for _, q := range []*Transfer{x, y} {
		_, err := q.Post(false, nil)
		require.NoError(t, err)
	}
	require.Equal(t, 2, w.ActiveLen())
	require.NoError(t, y.Release())
	w.peer.EndWaiting(errcode.PeerGone)
	require.Equal(t, errcode.ErrRemoteDisconnect, x.status())
	require.Zero(t, w.ActiveLen())
	_, err := x.Post(false, nil)
	require.NoError(t, err, "it may be posted again")
	w.Table.EndTransfers([]*region.Region{w.local}, time.Now().Add(time.Minute), "deregistered")
	require.Equal(t, errcode.ErrBackend, x.status())
	require.NoError(t, x.Release())
	require.Eventually(t, func() bool { return w.finished.Load() > 0 }, time.Minute, time.Millisecond)
}

// A change of the view drops the cached posts.
func TestChangeDropsCachedPosts(t *testing.T) {
	w := newFixture(t)
	x := w.prep(t)
	_, err := x.Post(false, nil)
	require.NoError(t, err)
	x.x.CachePost()
	epoch := w.peer.epoch
	w.publish(func(*View) {})
	require.False(t, x.x.HasCachedPost())
	require.Equal(t, epoch+1, w.peer.epoch)
	require.NoError(t, x.Release())
}

// A list with one bad descriptor is refused and leaves nothing pinned.
func TestRefusedLists(t *testing.T) {
	w := newFixture(t)
	for why, edit := range map[string]func(l, r List){
		"not inside its region": func(l, r List) { l.Descs[0].Addr++ },
		"bytes here":            func(l, r List) { r.Descs[0].Len-- },
		"not registered":        func(l, r List) { l.Regions[0] += 1 << 32 },
		"not loaded":            func(l, r List) { r.Regions[0] += 1 << 32 },
		"not of agent":          func(l, r List) { r.Regions[0] = w.local.ID },
	} {
		l, r := Own(1), Own(1)
		l.Set(0, w.local.ID, w.local.Addr, w.local.Len)
		r.Set(0, w.remote.ID, w.remote.Addr, w.remote.Len)
		edit(l, r)
		_, err := w.Prep(Write, l, r, w.peer, nil)
		require.ErrorContains(t, err, why)
	}
	_, err := w.Prep(Write, Own(1), Own(2), w.peer, nil)
	require.Equal(t, errcode.ErrInvalidParam, errcode.StatusOf(err))
	_, err = w.Prep(7, Own(1), Own(1), w.peer, nil)
	require.ErrorContains(t, err, "operation 7")
}

// One report of a peer waits for the peer's answer. The next one does not ask.
func TestOneReportWaits(t *testing.T) {
	w := newFixture(t)
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	w.peer.reportPeer(log)
	require.Empty(t, text.String(), "nothing is known yet")
	w.peer.reportPeer(log)
	require.Len(t, w.reports, 1)
	require.Contains(t, text.String(), "timeout report: peer was not asked")
	text.Reset()
	w.reports[0]("peer answered", []any{"session", "serving"}, slices.Repeat([][]any{{"link", 1}}, 10))
	require.Contains(t, text.String(), `msg="timeout report: peer answered" session=serving`)
	require.Equal(t, mostLinks, strings.Count(text.String(), `msg="timeout report: link at the peer" link=1`))
	w.peer.reportPeer(log)
	require.Len(t, w.reports, 2)
}
