package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

const mib = 1 << 20

// placing are verbs capabilities with completions that prove placement.
func placing() fake.Caps {
	caps := fake.VerbsCaps()
	caps.DeliveryComplete = true
	return caps
}

// sliced runs body on fakes that register at most one MiB at a time.
func sliced(t *testing.T, body func(t *testing.T, caps fake.Caps)) {
	for name, caps := range map[string]fake.Caps{"tcp": fake.TCPCaps(), "efa": fake.EFACaps(), "verbs": placing()} {
		caps.MaxMR = mib
		t.Run(name, func(t *testing.T) { body(t, caps) })
	}
}

// scatter moves n random pieces in both directions and compares all bytes. Many pieces cross slices.
func (p *pair) scatter(rnd *rand.Rand, n int) {
	t := p.a.t
	t.Helper()
	p.mine.fill(rnd.Uint64())
	p.theirs.fill(rnd.Uint64())
	for op := range 2 {
		var local, remote []Desc
		from, to := p.mine.b, p.theirs.b
		if op == transfer.Read {
			from, to = to, from
		}
		want := append([]byte(nil), to...)
		room := len(to) / n
		for i, k := range rnd.Perm(n) { // destinations do not overlap
			length := rnd.IntN(room + 1)
			a, b := rnd.IntN(len(from)-length+1), k*room
			if i%4 == 0 { // up to the end of the source
				a = len(from) - length
			}
			copy(want[b:b+length], from[a:])
			if op == transfer.Read {
				a, b = b, a
			}
			local, remote = append(local, p.mine.desc(a, length)), append(remote, p.theirs.desc(b, length))
		}
		x := p.a.prep(op, local, remote, "bob")
		x.run("moved")
		p.b.expect("ann:moved")
		x.release()
		require.True(t, string(want) == string(to), "op %d, %d pieces", op, n)
	}
}

// Transfers over regions with slices move the same bytes as over whole regions.
func TestSlices(t *testing.T) {
	t.Parallel()
	sliced(t, func(t *testing.T, caps fake.Caps) {
		for _, rails := range []int{1, 3} {
			h := onRails(t, rails, caps)
			p := h.pair(5*mib + 12345)
			p.allUp(rails)
			require.GreaterOrEqual(t, len(p.a.regions.Regions.Get(p.mine.md.region).Slices), 6)
			rnd := rand.New(rand.NewPCG(1, uint64(rails)))
			for _, n := range []int{1, 2, 7, 300} {
				p.scatter(rnd, n)
			}
			p.a.whole(transfer.Write, p.mine, p.theirs).run()
			p.same()
		}
	})
}

// Registrations whose slices are equal end one by one, and each takes its slices back from the peer.
func TestSlicesShared(t *testing.T) {
	t.Parallel()
	h := onFake(t, placing())
	p := h.pair(4*mib, "mr_max", "1MiB")
	whole := p.theirs
	id := whole.md.region
	mine := func() int { return len(p.b.regions.All()) }
	require.Equal(t, 5, mine(), "four and their name")
	own := p.b.regions.Find(p.a.regions.Regions.Get(id).Claim)
	half, err := p.b.Register(own.Addr, 2*mib, 0, 0, nil)
	require.NoError(t, err)
	one, err := p.b.Register(own.Addr+mib, mib, 0, 0, nil)
	require.NoError(t, err)
	require.NotEqual(t, own.Slices[1].ID, one)
	require.Equal(t, 5+3+1, mine(), "they share no slice")

	x := p.a.whole(transfer.Write, p.mine, whole)
	x.run()
	require.NoError(t, p.b.Deregister(own.ID))
	require.Equal(t, 3+1, mine())
	x.post().fails(errcode.ErrBackend)
	front := p.b.regions.Regions.Get(half)
	blob, err := p.b.RegionBlob(half)
	require.NoError(t, err)
	sub, err := p.a.LoadRemote("bob", front.Addr, front.Len, 0, 0, blob)
	require.NoError(t, err)
	theirs := &memory{owner: p.b, b: whole.b[:2*mib], md: &metaObject{region: sub}}
	p.mine.fill(9)
	y := p.a.whole(transfer.Write, p.mine, theirs)
	y.run()
	require.True(t, string(theirs.b) == string(p.mine.b[:2*mib]))
	require.NoError(t, p.b.Deregister(half))
	require.Equal(t, 1, mine())
	y.post().fails(errcode.ErrBackend)
	require.NoError(t, p.b.Deregister(one))
	require.Zero(t, mine())
	require.Equal(t, errcode.ErrNotFound, errcode.StatusOf(p.b.Deregister(own.ID)))

	again, err := p.b.Register(own.Addr, own.Len, 0, 0, nil) // the same metadata holds
	require.NoError(t, err)
	p.mine.fill(10)
	x.run()
	p.same()
	require.NoError(t, p.b.Deregister(again))
}

// A rail that refuses one slice does not carry the region. If all rails refuse, the error of Prep gives the reason.
func TestSliceRefused(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, placing())
	p := h.pair(mib/2, "mr_max", "1MiB")
	p.allUp(2)
	n := 0
	p.a.railNo(0).OnRegister(func(uint64, uint64) error {
		if n++; n == 2 {
			return fmt.Errorf("not the second")
		}
		return nil
	})
	big, far := p.a.memory(3*mib).fill(1), p.b.memory(3*mib).seenBy(p.a)
	x := p.a.whole(transfer.Write, big, far)
	x.run()
	require.True(t, string(big.b) == string(far.b))
	for _, path := range x.record().Slot().Paths() {
		require.NotZero(t, path.Own, "rail 0 lacks a slice")
	}
	for i := range 2 {
		p.a.railNo(i).OnRegister(func(uint64, uint64) error { return fmt.Errorf("nothing any more") })
	}
	bad := p.a.memory(2 * mib)
	_, _, err := p.a.Prep(transfer.Write, []Desc{bad.desc(0, 8)}, []Desc{far.desc(0, 8)}, "bob")
	require.ErrorContains(t, err, "nothing any more")
}

// A peer's range is unloaded. Its slices are freed with the last transfer that uses them.
func TestSlicesUnloaded(t *testing.T) {
	h := onFake(t, placing())
	p := h.pair(3*mib, "mr_max", "1MiB")
	before := p.a.regions.Regions.Len()
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.run()
	require.NoError(t, p.a.UnloadRemote(p.theirs.md.region))
	require.Equal(t, before-1, p.a.regions.Regions.Len(), "the range is freed, and the slices are in use")
	x.run()
	x.release()
	require.Equal(t, before-1-p.theirs.pieces(mib), p.a.regions.Regions.Len())
}

// pieces returns the number of slices of the memory, which depends on its address.
func (m *memory) pieces(slice uint64) int {
	return int((m.addr()%slice + uint64(len(m.b)) + slice - 1) / slice)
}
