package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/fake"
)

// claim is what a region's blob entitles to ask for.
func (a *agent) claim(id uint64) wire.Claim {
	blob, err := a.RegionBlob(id)
	require.NoError(a.t, err)
	b, err := wire.DecodeRegion(blob)
	require.NoError(a.t, err)
	return wire.Claim{Range: wire.Range{Addr: b.Addr, Len: b.Len, Dev: b.Dev, Mem: b.Mem}, Cap: b.Cap}
}

// known reports for which claims a peer of bob's gets keys.
func (p *pair) known(claims ...wire.Claim) (known []bool) {
	entries, _ := p.b.targets.KeysWanted(p.b.targets.Latest().In(), claims)
	for _, e := range entries {
		known = append(known, e.Known)
	}
	return known
}

// refused is the counter of claims without their capability.
func (a *agent) refused() uint64 { return a.snapshot().CapsRefused }

func (a *agent) registered(at *memory, off, n int) uint64 {
	id, err := a.Register(at.addr()+uint64(off), uint64(n), 0, 0, nil)
	require.NoError(a.t, err)
	return id
}

// wrong are the claims of a range without its capability, with one that differs in a bit, and with those of others.
func wrong(c wire.Claim, others ...wire.Claim) []wire.Claim {
	flipped := c
	flipped.Cap[15] ^= 1
	list := []wire.Claim{{Range: c.Range}, flipped}
	for _, o := range others {
		list = append(list, wire.Claim{Range: c.Range, Cap: o.Cap})
	}
	return list
}

// The blob of a range opens that range alone: not where the capability is wrong, missing or another engine's, and no range that
// overlaps it, contains it or lies in it.
func TestClaims(t *testing.T) {
	t.Parallel()
	p := onFake(t, fake.TCPCaps()).pair(8192)
	p.a.connected("bob")
	whole, front, middle := p.b.claim(p.theirs.owned()), p.b.claim(p.b.registered(p.theirs, 0, 4096)), p.b.claim(p.b.registered(p.theirs, 2048, 4096))
	require.Equal(t, []bool{true, true, true}, p.known(whole, front, middle))
	require.Zero(t, p.b.refused())
	same := p.a.claim(p.a.registered(p.theirs, 0, 8192)) // the same range of another engine
	require.Equal(t, whole.Range, same.Range)
	var guesses []wire.Claim
	guesses = append(guesses, wrong(whole, same, front, middle)...)
	guesses = append(guesses, wrong(front, same, whole, middle)...)
	guesses = append(guesses, wrong(middle, same, whole, front)...)
	require.Equal(t, make([]bool, len(guesses)), p.known(guesses...))
	require.EqualValues(t, len(guesses), p.b.refused())
	require.Equal(t, []bool{false}, p.known(wire.Claim{Range: wire.Range{Addr: whole.Addr + 1, Len: 9}, Cap: whole.Cap}), "inside, but no registration")
	require.EqualValues(t, len(guesses), p.b.refused(), "nothing is registered there")

	id := p.theirs.owned()
	require.NoError(t, p.b.Deregister(id))
	require.Equal(t, []bool{false, true}, p.known(whole, front))
	p.b.registered(p.theirs, 0, 8192)
	require.Equal(t, []bool{true}, p.known(whole), "the blob is good for the range when it is registered again")
	require.EqualValues(t, len(guesses), p.b.refused())
}

// owned is the owner's own region of the memory.
func (m *memory) owned() uint64 {
	for _, r := range m.owner.regions.All() {
		if r.Addr == m.addr() && r.Len == uint64(len(m.b)) {
			return r.ID
		}
	}
	m.owner.t.Fatal("not registered")
	return 0
}

// A slice opens by the capability of its registration, while that lasts, and by no other's: not even where another registration
// has an equal slice.
func TestClaimsOfSlices(t *testing.T) {
	t.Parallel()
	p := onFake(t, fake.TCPCaps()).pair(4*mib, "mr_max", "1MiB")
	p.a.connected("bob")
	id := p.theirs.owned()
	whole := p.b.claim(id)
	half := p.b.claim(p.b.registered(p.theirs, 0, 2*mib))
	parts, err := whole.Slices(p.b.regions.Slice)
	require.NoError(t, err)
	shared, err := half.Slices(p.b.regions.Slice)
	require.NoError(t, err)
	require.Equal(t, parts[:2], shared)
	of := func(cap wire.Cap) (list []wire.Claim) {
		for _, r := range parts {
			list = append(list, wire.Claim{Range: r, Cap: cap})
		}
		return list
	}
	all, none, front := []bool{true, true, true, true}, make([]bool, 4), []bool{true, true, false, false}
	require.Equal(t, all, p.known(of(whole.Cap)...))
	require.Zero(t, p.b.refused())
	require.Equal(t, none, p.known(of(wire.Cap{})...))
	require.EqualValues(t, 4, p.b.refused())
	require.Equal(t, front, p.known(of(half.Cap)...), "its own slices, and not the others")
	of0, _ := p.b.targets.KeysWanted(p.b.targets.Latest().In(), []wire.Claim{{Range: parts[0], Cap: whole.Cap}, {Range: parts[0], Cap: half.Cap}})
	require.NotEqual(t, of0[0].Region, of0[1].Region, "they end one by one")
	require.NoError(t, p.b.Deregister(id))
	require.Equal(t, none, p.known(of(whole.Cap)...))
	require.Equal(t, front, p.known(of(half.Cap)...))
}

// ask sends a request, and returns the answer to it.
func (c *hostile) ask(t *testing.T, f wire.Frame) wire.Frame {
	require.NoError(t, wire.WriteFrame(c, f))
	for {
		answer, err := wire.ReadFrame(c, 0)
		require.NoError(t, err)
		switch answer.(type) {
		case *wire.Keys, *wire.Ring, *wire.Copied, *wire.PackedCopied:
			return answer
		}
	}
}

// A peer that holds the token, and knows where memory is, gets no key of it, no ring for it and no copy to or from it without its blob.
func TestGuessedRanges(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	a := h.agent("ann")
	host, hidden, given := a.memory(size), g.block(a, 0, size), g.block(a, 0, size)
	c, f := knock(a.conn(), strangerKey(1), 1, h.offer(a, 1))
	require.IsType(t, &wire.Welcome{}, f)
	defer c.Close()
	own := a.claim(given.md.region)
	guesses := append(wrong(a.claim(host.md.region), own), wrong(a.claim(hidden.md.region), own)...)
	keys := c.ask(t, &wire.KeysReq{ID: 1, Ranges: append(guesses, own)}).(*wire.Keys)
	for i, e := range keys.Entries[:len(guesses)] {
		require.Equal(t, wire.KeyEntry{Rails: []wire.RailKey{}}, e, "guess %d", i)
	}
	require.True(t, keys.Entries[len(guesses)].Known)
	count := uint64(len(guesses))
	require.Equal(t, count, a.refused())

	guesses = guesses[len(guesses)/2:] // of the GPU
	for i, guess := range guesses {
		ring := c.ask(t, &wire.RingReq{ID: uint64(10 + i), For: guess}).(*wire.Ring)
		require.True(t, ring.Code == wire.CodeMemory)
		require.Equal(t, wire.Claim{}, ring.Range)
	}
	count += uint64(len(guesses))
	require.Equal(t, count, a.refused())

	ring := c.ask(t, &wire.RingReq{ID: 20, For: own}).(*wire.Ring)
	require.Empty(t, ring.Text)
	require.Equal(t, ring.Range, a.regions.Find(ring.Range).Claim, "its ring is the peer's to use")
	hidden.fill(3)
	before := hidden.bytes()
	for i, guess := range guesses {
		for _, out := range []bool{true, false} {
			done := c.ask(t, &wire.Copy{ID: uint64(30 + i), Out: out, At: ring.Range.Addr, Regions: wire.Claims{own, guess},
				Pieces: wire.CopyPieces{{Addr: own.Addr, Len: 64}, {Region: 1, Addr: guess.Addr, Len: 4096}}}).(*wire.Copied)
			require.Contains(t, done.Text, "not registered here")
			count++
		}
	}
	require.Equal(t, count, a.refused())
	pattern.Same(t, before, hidden.bytes())
	given.fill(4)
	done := c.ask(t, &wire.Copy{ID: 50, At: ring.Range.Addr, Regions: wire.Claims{own}, Pieces: wire.CopyPieces{{Addr: own.Addr, Len: size}}}).(*wire.Copied)
	require.Empty(t, done.Text)
	pattern.Same(t, make([]byte, size), given.bytes(), "what was given may be written: the ring is empty")
	require.Equal(t, count, a.refused())
}
