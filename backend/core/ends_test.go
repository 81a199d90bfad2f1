package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/drive"
	"gorail/test/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(20 * time.Microsecond) {
		require.True(t, time.Now().Before(end), what)
	}
}

const memSize = 4 << 20

// Regions of an end: its own memory, and the other end's memory.
const (
	ownRegion = iota
	farRegion
)

// end is one core with a rail, a buffer, and its half of a session.
type end struct {
	t    testing.TB
	core *core.Core
	rail *fake.Rail
	ep   provider.Endpoint
	mr   provider.MR
	mem  []byte
	sess core.Session
	link core.Link
	ev   *core.Events
	got  chan core.Event
}

func newEnd(t testing.TB, f *fake.Fabric, caps fake.Caps, key uint64, params map[string]string) *end {
	opt, rest, err := option.Parse(params, nil)
	require.NoError(t, err)
	for _, name := range rest { // no options set these
		*map[string]*uint64{"window_min": &opt.WindowMin, "window_max": &opt.WindowMax}[name], err = option.ParseSize(params[name])
		require.NoError(t, err)
	}
	e := &end{t: t, mem: drive.Alloc(memSize), got: make(chan core.Event, 10_000)}
	e.core, err = core.New(core.Config{Slots: opt.Slots(), WindowMin: opt.WindowMin, WindowMax: opt.WindowMax,
		SpinForPeers: opt.SpinsForPeers(), NotifQueue: opt.NotifQueue, NotifMemory: opt.NotifMemory})
	require.NoError(t, err)
	p := f.Provider(fake.Link{Name: "x", Caps: caps})
	devs, err := p.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	r, err := p.Open(devs[0])
	require.NoError(t, err)
	e.rail = r.(*fake.Rail)
	idx, err := e.core.AddRail(r.Core())
	require.NoError(t, err)
	require.Zero(t, idx)
	e.mr, err = r.Register(drive.Addr(e.mem), memSize, key, option.PeersBoth)
	require.NoError(t, err)
	e.region(ownRegion, drive.Addr(e.mem), core.Key{Desc: e.mr.Desc()})
	e.ev, err = e.core.Events(func(ev core.Event) { e.got <- ev })
	require.NoError(t, err)
	return e
}

func (e *end) region(idx uint32, addr uint64, k core.Key) {
	r, err := e.core.Region(idx)
	require.NoError(e.t, err)
	r.Set(addr, memSize, 1)
	r.SetKey(0, k)
	r.SetLive(true)
}

// ends makes two connected cores. a sends to b.
func ends(t testing.TB, caps fake.Caps, params map[string]string) (a, b *end) {
	f := fake.NewFabric(3)
	a, b = newEnd(t, f, caps, 1, params), newEnd(t, f, caps, 2, params)
	a.region(farRegion, drive.Addr(b.mem), core.Key{Key: b.mr.Key(provider.Salt{}), Base: b.mr.Base()})
	for i, e := range []*end{a, b} {
		var err error
		e.sess, err = e.core.NewSession(uint64(i)+70, "peer")
		require.NoError(t, err)
	}
	connect(t, a, b)
	var err error
	b.link, err = b.sess.NewLink(0, 0, b.ep.Core(), 92, 91, core.Target, false)
	require.NoError(t, err)
	a.link, err = a.sess.NewLink(0, 0, a.ep.Core(), 91, 92, core.Initiator, false)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, e := range []*end{a, b} {
			e.rail.Release()
			e.close(t)
		}
		require.NoError(t, f.Close())
	})
	return a, b
}

func connect(t testing.TB, a, b *end) {
	for _, e := range []*end{a, b} {
		var err error
		e.ep, err = e.rail.OpenEndpoint()
		require.NoError(t, err)
	}
	require.NoError(t, a.ep.Connect(b.ep.Addr()))
	require.NoError(t, b.ep.Connect(a.ep.Addr()))
}

func (e *end) quiesce() {
	e.link.Stop()
	require.NoError(e.t, e.ep.Close())
	e.link.Reap()
}

// fence gives both ends new endpoints.
func fence(t *testing.T, a, b *end) {
	a.quiesce()
	b.quiesce()
	connect(t, a, b)
	next, _ := b.sess.NextSeq()
	require.NoError(t, b.link.Rebind(b.ep.Core(), 1, core.Proof{}, false))
	require.NoError(t, a.link.Rebind(a.ep.Core(), 1, core.Proof{Next: next}, false))
}

// xfer makes a transfer of n operations of size bytes.
func (e *end) xfer(peer *end, op, n, size int) core.Xfer {
	x, err := e.core.NewXfer(uint64(n)<<32|uint64(size), op, uint64(n), core.Heap)
	require.NoError(e.t, err)
	x.SetPlan(n, uint64(n*size))
	for i := range x.Ops() {
		at := uint64(i * size)
		x.Ops()[i] = core.Op{Local: drive.Addr(e.mem) + at, Remote: drive.Addr(peer.mem) + at, Len: uint64(size), LRegion: ownRegion, RRegion: farRegion}
	}
	return x
}

func (e *end) post(x core.Xfer, notif ...string) {
	x.Start()
	var msg []byte
	if len(notif) > 0 {
		msg = []byte(notif[0])
	}
	e.core.Post(x, []core.Link{e.link}, 0, len(notif) > 0, msg)
}

func (e *end) done(x core.Xfer, n, size int) bool {
	return e.core.Check(x.Pointer(), uint64(n)<<32|uint64(size)) == 0
}

// event returns the next event, except events that report a working link.
func (e *end) event() core.Event {
	e.t.Helper()
	for late := time.After(10 * time.Second); ; {
		select {
		case ev := <-e.got:
			if ev.Kind != core.EvLink || ev.Code != 0 {
				return ev
			}
		case <-late:
			e.t.Fatal("no event")
		}
	}
}

func (e *end) notes() (all []string) {
	for _, n := range e.core.TakeNotifs() {
		all = append(all, n.From+":"+string(n.Msg))
	}
	return all
}

func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>8) ^ byte(i) ^ seed
	}
}

// close frees the link, the session, the core and the rail.
func (e *end) close(t require.TestingT) {
	e.quiesce()
	e.link.Fail(-3)
	e.link.Free()
	e.sess.Free()
	e.ev.Close()
	e.core.Stop()
	e.core.DropRails()
	require.NoError(t, e.mr.Close())
	require.NoError(t, e.rail.Close(), "endpoints or regions are left")
	e.core.Free()
}
