package session

import (
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

func noSessions() *Targets {
	o := &option.Options{Deadlines: option.Deadlines{PeerTimeout: time.Minute}, Notifications: option.Notifications{NotifMemory: 1 << 20}}
	return &Targets{TargetConfig: TargetConfig{Options: o, Life: &core.Lifetime{}, Limits: &limits.Counts{},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, progress: map[wire.EngineID]*notifProgress{}}
}

// upTo is the progress of the sessions first .. last: all numbers below next, and those in beyond, which wait.
func upTo(t *testing.T, first, last, next uint64, beyond ...uint64) *notifProgress {
	asm := NewAssembler(Limits{MaxDistance: 1 << 20})
	asm.Advance(next)
	for _, seq := range beyond {
		_, err := asm.Add(Frame{Seq: seq, Subs: 1, Total: 1, Payload: []byte("x")})
		require.NoError(t, err)
	}
	return &notifProgress{first: first, last: last, asm: asm, skip: map[uint64]bool{}}
}

// A session continues the numbers of the session before it, if the initiator names that one.
func TestProgressAfter(t *testing.T) {
	engine, other := wire.EngineID{1}, wire.EngineID{2}
	s := noSessions()
	require.Nil(t, s.progressAfter(engine, 3), "nothing is known")
	s.saveProgress(engine, upTo(t, 3, 5, 100, 102, 105))
	require.Nil(t, s.progressAfter(other, 5))
	for after := uint64(3); after <= 5; after++ {
		got := s.progressAfter(engine, after)
		require.EqualValues(t, 100, got.asm.Next())
		require.Equal(t, []uint16{2, 5}, distances(got.asm))
	}
	s.saveProgress(engine, upTo(t, 3, 4, 90))
	require.EqualValues(t, 100, s.progressAfter(engine, 5).asm.Next(), "an older session that ends later says nothing new")
	require.Nil(t, s.progressAfter(engine, 6), "numbers of another session")
	require.Nil(t, s.progressAfter(engine, 5), "and these are forgotten then")
}

// Messages behind a gap are given up if the initiator cannot have so many in flight.
func TestProgressTooFar(t *testing.T) {
	engine := wire.EngineID{1}
	s := noSessions()
	s.saveProgress(engine, upTo(t, 1, 1, 10, 10+70_000))
	got := s.progressAfter(engine, 1)
	require.EqualValues(t, 10, got.asm.Next())
	require.Zero(t, got.asm.Pending())
}

// Engines that never come back cost at most mostProgress entries. An engine without notifications costs none.
func TestProgressBounded(t *testing.T) {
	s := noSessions()
	s.saveProgress(wire.EngineID{255}, upTo(t, 1, 1, 0))
	require.Empty(t, s.progress)
	for i := range mostProgress + 10 {
		s.saveProgress(wire.EngineID{byte(i), byte(i >> 8), 1}, upTo(t, 1, 1, 1))
	}
	require.Len(t, s.progress, mostProgress)
	require.EqualValues(t, 10, s.Limits.Read()["notif_progress"])
}

// A source with many engine ids forgets its own entries before those of others.
func TestProgressOfSources(t *testing.T) {
	s := noSessions()
	honest := upTo(t, 1, 1, 1)
	honest.owner.Source = netip.MustParseAddr("192.0.2.1")
	s.saveProgress(wire.EngineID{255}, honest)
	for i := range 2 * mostProgress {
		many := upTo(t, 1, 1, 1)
		many.owner.Source = netip.MustParseAddr("192.0.2.2")
		s.saveProgress(wire.EngineID{byte(i), byte(i >> 8), 1}, many)
	}
	require.Len(t, s.progress, mostProgress)
	require.Same(t, honest, s.progress[wire.EngineID{255}])
}

// Messages behind gaps of ended sessions are bounded over all engines.
func TestProgressBytes(t *testing.T) {
	s := noSessions()
	defer s.Life.Quiesce(time.Minute)
	long := func() *notifProgress {
		p := upTo(t, 1, 1, 1)
		_, err := p.asm.Add(Frame{Seq: 3, Subs: 1, Total: 600 << 10, Payload: make([]byte, 600<<10)})
		require.NoError(t, err)
		return p
	}
	s.saveProgress(wire.EngineID{1}, long())
	s.saveProgress(wire.EngineID{2}, long())
	require.Equal(t, 1, s.progress[wire.EngineID{1}].asm.Pending())
	require.Zero(t, s.progress[wire.EngineID{2}].asm.Pending())
	require.EqualValues(t, 1, s.progress[wire.EngineID{2}].asm.Next(), "its number is kept")
	require.EqualValues(t, 1, s.Limits.Read()["notif_progress_bytes"])
}

// Notifications that wait for others are bounded over all peers: the session with the most ends.
func TestPendingIsBounded(t *testing.T) {
	s := noSessions()
	a, b := &Target{s: s, in: &peer.In{}}, &Target{s: s, in: &peer.In{}}
	s.byID = map[uint64]*Target{1: a, 2: b}
	require.True(t, s.Life.Quiesce(time.Minute)) // a refused session is not closed in this test
	hold := func(t *Target, bytes int64) {
		t.order.mu.Lock()
		defer t.order.mu.Unlock()
		t.holdPending(bytes)
	}
	refused := func(t *Target) bool {
		t.order.mu.Lock()
		defer t.order.mu.Unlock()
		return t.order.refused
	}
	hold(a, 600<<10)
	hold(b, 400<<10)
	require.False(t, refused(a) || refused(b))
	require.Zero(t, s.Limits.Read()["reassembly"])
	hold(b, 500<<10)
	require.Eventually(t, func() bool { return refused(a) }, time.Minute, time.Millisecond)
	require.False(t, refused(b))
	hold(b, 700<<10)
	require.True(t, refused(b))
	require.EqualValues(t, 2, s.Limits.Read()["reassembly"])
}

// A Drain for what never comes costs little.
func TestDrainLooksRarely(t *testing.T) {
	require.Equal(t, firstLook, nextLook(0))
	require.Equal(t, 5*time.Millisecond, nextLook(20*time.Millisecond))
	require.Equal(t, lastLook, nextLook(time.Hour))
	looks := 0
	for at := time.Duration(0); at < time.Minute; at += nextLook(at) {
		looks++
	}
	require.Less(t, looks, 1300)
}

// Connects have turns of their own: a session has a share of them, and fences that only close wait for none.
func TestConnectsTakeTurns(t *testing.T) {
	s := NewTargets(noSessions().TargetConfig)
	session := func() *Target { return &Target{s: s, connects: s.newShare()} }
	over := make(chan struct{})
	close(over)
	var ends []func()
	all := func(t *testing.T, a *Target, n int) {
		for range n {
			end, ok := a.turnToConnect(nil)
			require.True(t, ok)
			ends = append(ends, end)
		}
	}
	a, waits := session(), func() uint64 { return s.Limits.Read()["connects"] }
	all(t, a, ownConnectors)
	require.Zero(t, waits())
	_, ok := a.turnToConnect(over)
	require.False(t, ok, "the session has its share")
	require.EqualValues(t, 1, waits())
	for n := ownConnectors; n < connectors; n += ownConnectors {
		all(t, session(), ownConnectors)
	}
	_, ok = s.connecting.Take(over, nil)
	require.False(t, ok, "all are taken")
	endFence, ok := s.fencing.Take(nil, limits.NewPace(0, 1))
	require.True(t, ok)
	endFence()
	require.Zero(t, s.Limits.Read()["fences"], "a fence did not wait")
	for _, end := range ends {
		end()
	}
	all(t, session(), ownConnectors)
	require.EqualValues(t, 2, s.Limits.Read()[limits.List[limits.Connects].Name])
}

// A fence for a session that is over says so. An engine that is being destroyed answers nothing: its goodbye has the reason, and the peer's log
// names that instead.
func TestFenceOfAnEndedSession(t *testing.T) {
	t.Parallel()
	s := &Targets{TargetConfig: TargetConfig{Life: &core.Lifetime{}}}
	require.EqualError(t, s.Fence(&peer.In{}, wire.Fence{}), "the session has ended")
	s.Life.BeginEnd()
	require.NoError(t, s.Fence(&peer.In{}, wire.Fence{}))
}

// Endpoints of peers are counted from the Hello on, and given back once.
func TestRoom(t *testing.T) {
	s := noSessions()
	s.Options = &option.Options{}
	s.Options.MaxEndpoints, s.Options.QPsPerRail = 5, 2
	s.Links = &Set{Rails: &rails.Set{List: []*rails.Rail{new(rails.Rail).SetCan(provider.Caps{Descriptors: 3}), new(rails.Rail).SetCan(provider.Caps{SharedEndpoint: true})}}}
	hello := func(offers ...wire.EndpointOffer) (*Target, error) {
		session := &Target{s: s, in: &peer.In{}}
		return session, session.makeRoom(offers)
	}
	a, err := hello(wire.EndpointOffer{}, wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Rail: 9})
	require.NoError(t, err)
	require.Equal(t, limits.Amount{Endpoints: 3, Descriptors: 9}, a.usage, "none for a rail that we have not")
	_, err = hello(wire.EndpointOffer{}, wire.EndpointOffer{}, wire.EndpointOffer{})
	require.Equal(t, wire.CodeLimit, reject(t, err), "three links on a pair of rails")
	_, err = hello(wire.EndpointOffer{Rail: 1}, wire.EndpointOffer{Rail: 1})
	require.Equal(t, wire.CodeLimit, reject(t, err), "two on a shared endpoint")
	b, err := hello(wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Own: 2})
	require.Equal(t, wire.CodeBusy, reject(t, err))
	require.Zero(t, b.usage)
	a.leaveRoom()
	a.leaveRoom()
	_, err = hello(wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Own: 2})
	require.NoError(t, err)
	_, err = hello(wire.EndpointOffer{}, wire.EndpointOffer{Own: 1}, wire.EndpointOffer{Own: 2})
	require.Equal(t, wire.CodeBusy, reject(t, err), "not given back twice")
}

func reject(t *testing.T, err error) wire.Code {
	var r *peer.RejectError
	require.ErrorAs(t, err, &r)
	return r.Code
}

// A session gets a few snapshots at once, then one a second, and one at a time. All sessions together have a limit, too, which
// one session alone does not reach.
func TestSnapshotsTakePlaces(t *testing.T) {
	s := noSessions()
	s.snapshots = newSnapshots()
	session := func() *Target { return &Target{s: s, asked: newAsked()} }
	now := time.Now()
	ask := func(t *Target) bool {
		if !t.mayAsk(now) {
			return false
		}
		<-t.asked.busy
		return true
	}
	a := session()
	for range 1000 {
		ask(a)
	}
	require.InDelta(t, snapshotsOfPeers-snapshotsAtOnce, s.snapshots.TokensAt(now), 0.01, "a flood takes no more than the session's share")
	now = now.Add(time.Second)
	require.True(t, ask(a))
	require.False(t, ask(a))
	now = now.Add(time.Hour)
	require.True(t, a.mayAsk(now))
	require.False(t, a.mayAsk(now), "the goroutine of the first works")
	<-a.asked.busy
	require.True(t, ask(a))

	now = now.Add(time.Hour)
	got := 0
	for range 100 {
		for b, more := session(), true; more; {
			if more = ask(b); more {
				got++
			}
		}
	}
	require.Equal(t, snapshotsOfPeers, got)
	now = now.Add(time.Second)
	require.True(t, ask(session()))
}
