package peer

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func ranges(n int, from uint64) []wire.Claim {
	r := make([]wire.Claim, n)
	for i := range r {
		r[i].Range = wire.Range{Addr: from + uint64(i), Len: 64}
	}
	return r
}

func TestKeysAskedBeforeReadyAndFromManyGoroutines(t *testing.T) {
	i, s := newInitiator(), newTarget()
	to, from := listen(t, s), listen(t, newTarget())
	out := from.Dial(blob(to), 0, i)
	const askers = 16
	var wg sync.WaitGroup
	for a := range uint64(askers) {
		wg.Go(func() { out.Keys(a, ranges(5000, a<<32)) })
	}
	wg.Wait()
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	seen := make(map[uint64]bool)
	for range askers {
		k := want[evKeys](t, i.events).k
		require.Len(t, k.Entries, 5000)
		require.Equal(t, k.ID<<32, k.Entries[0].Region)
		require.Equal(t, k.ID<<32+4999, k.Entries[4999].Region)
		seen[k.ID] = true
	}
	assert.Len(t, seen, askers)
}

func TestKeysHandlerGivesTooFew(t *testing.T) {
	p := newPair(t)
	p.s.keys = func([]wire.Claim) []wire.KeyEntry { return nil }
	p.out.Keys(1, ranges(2, 0))
	assert.ErrorIs(t, want[evGone](t, p.s.events).err, ErrHandler)
	assert.ErrorContains(t, want[evLost](t, p.i.events).err, "0 entries for 2 ranges")
}

func TestRevoke(t *testing.T) {
	p := newPair(t)
	p.i.out.Store(p.out)
	p.in.Revoke(11, []uint64{1, 2, 3})
	r := want[evRevoke](t, p.i.events)
	assert.Equal(t, evRevoke{11, []uint64{1, 2, 3}}, r)
	assert.Equal(t, evRevoked{p.in, 11, true}, want[evRevoked](t, p.s.events))

	many := make([]uint64, wire.MaxRevoke+10)
	p.in.Revoke(12, many)
	assert.Len(t, want[evRevoke](t, p.i.events).regions, wire.MaxRevoke)
	assert.Len(t, want[evRevoke](t, p.i.events).regions, 10)
	assert.Equal(t, evRevoked{p.in, 12, true}, want[evRevoked](t, p.s.events), "one answer for all frames")

	p.out.Revoked(99, true) // an answer without a revocation
	p.in.Revoke(13, nil)
	want[evRevoke](t, p.i.events)
	assert.Equal(t, uint64(13), want[evRevoked](t, p.s.events).id)
}

func TestRevokeInsideHelloComesAfterReady(t *testing.T) {
	i, s := newInitiator(), newTarget()
	s.hello = func(in *In, _ wire.Hello) (Accept, error) {
		in.Revoke(1, []uint64{4})
		return Accept{}, nil
	}
	to, from := listen(t, s), listen(t, newTarget())
	from.Dial(blob(to), 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	want[evRevoke](t, i.events)
}

func TestStage(t *testing.T) {
	p := newPair(t)
	p.out.Stage(&wire.RingReq{ID: 7, Mem: 1, For: wire.Claim{Range: wire.Range{Dev: 3}}})
	assert.Equal(t, &wire.Ring{ID: 7, Range: wire.Claim{Range: wire.Range{Addr: 1, Len: 4, Mem: 1, Dev: 3}}, Slot: 2}, want[evStaged](t, p.i.events).f)
	p.out.Stage(&wire.Copy{ID: 8, Regions: wire.Claims{{Range: wire.Range{Addr: 4, Len: 4}}}, Pieces: wire.CopyPieces{{Addr: 4, Len: 4}}})
	assert.Equal(t, &wire.Copied{ID: 8}, want[evStaged](t, p.i.events).f)
	p.out.Stage(&wire.Copy{ID: 9})
	assert.ErrorIs(t, want[evGone](t, p.s.events).err, ErrHandler)
	assert.ErrorContains(t, want[evLost](t, p.i.events).err, "nothing to copy")
}

func TestSessionsAtOnce(t *testing.T) {
	n := short(100, 250) // TLS under the race detector takes 15 ms a session. 500 at once failed on two busy cores
	s := newTarget()
	to := listen(t, s)
	from := []*Node{listen(t, newTarget()), listen(t, newTarget())}
	is := make([]*initiator, n)
	outs := make([]*Out, n)
	for k := range n {
		is[k] = newInitiator()
		outs[k] = from[k%2].Dial(blob(to), 0, is[k])
	}
	ids := make(map[string]bool)
	for k := range n {
		want[evOffers](t, is[k].events)
		want[evReady](t, is[k].events)
		in := want[evHello](t, s.events).in
		ids[fmt.Sprint(in.Engine(), in.Session())] = true
		outs[k].Keys(uint64(k), ranges(10, 0))
	}
	assert.Len(t, ids, n)
	for k := range n {
		assert.Equal(t, uint64(k), want[evKeys](t, is[k].events).k.ID)
	}
	assert.Equal(t, uint64(n), to.Stats().In)
	to.Close()
	for k := range n {
		if err := want[evLost](t, is[k].events).err; !errors.Is(err, ErrPeerClosed) { // there was no time left for its Bye
			assert.ErrorIs(t, err, ErrDropped)
		}
		assert.ErrorIs(t, want[evGone](t, s.events).err, ErrClosed)
	}
	eventually(t, func() bool { return to.Stats().In == 0 }, "the sessions are forgotten")
}
