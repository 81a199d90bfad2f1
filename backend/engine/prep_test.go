package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// TestPrepGuess: the operations move when the first pair suggests other memory for them than the whole list needs. A list that
// merges to few operations moves to a smaller block of the same memory.
func TestPrepGuess(t *testing.T) {
	t.Parallel()
	h := onHost(t)
	g := h.withGPUs()
	a, b := h.agent("a"), h.agent("b")
	loadBoth(a, b)
	const size, n = 1 << 20, 1000
	rnd := rand.New(rand.NewPCG(7, 8))
	for _, tt := range []struct {
		name  string
		kinds [2][2]int // the memory of both sides: a GPU, or -1; of the first and of the second half of the list
		bulk  bool
	}{
		{"GPUs", [2][2]int{{0, 1}, {0, 1}}, true},
		{"GPUs, then the host", [2][2]int{{0, 1}, {-1, -1}}, false},
		{"GPUs, then one GPU", [2][2]int{{0, 1}, {0, -1}}, false},
		{"the host, then GPUs", [2][2]int{{-1, -1}, {0, 1}}, false},
		{"the host", [2][2]int{{-1, -1}, {-1, -1}}, false},
	} {
		for _, whole := range []bool{false, true} {
			var local, remote []Desc
			var there []*block
			var want [][]byte
			for i, k := range tt.kinds {
				mine, theirs := g.block(a, k[0], size), g.block(b, k[1], size)
				mine.fill(uint64(i))
				theirs.fill(uint64(10 + i))
				seen := theirs.seenBy(a)
				if whole {
					for at := 0; at < size; at += size / 1024 {
						local, remote = append(local, mine.desc(at, size/1024)), append(remote, seen.desc(at, size/1024))
					}
					want = append(want, mine.bytes())
				} else {
					l, r, w := lists(rnd, transfer.Write, mine, seen, n)
					local, remote, want = append(local, l...), append(remote, r...), append(want, w)
				}
				there = append(there, theirs)
			}
			x := a.prep(transfer.Write, local, remote, "b")
			require.Equal(t, tt.bulk, x.record().Bulk(), tt.name)
			for range 2 {
				x.run("there")
				b.expect("a:there")
				for i, m := range there {
					require.Equal(t, want[i], m.bytes(), "%s, half %d", tt.name, i)
				}
			}
			x.release()
		}
	}
}

// TestPrepLong: a list that several threads share moves the right bytes. The first bad descriptor of such a list is named, whatever
// comes behind it.
func TestPrepLong(t *testing.T) {
	t.Parallel()
	for _, slices := range []string{"0", "1MiB"} {
		t.Run("mr_max="+slices, func(t *testing.T) { prepLong(t, onFake(t, fake.TCPCaps()), "mr_max", slices) })
	}
}

func prepLong(t *testing.T, h *harness, params ...string) {
	const length, n = 8, 2 * transfer.LongList
	p := h.pair(n*length, params...)
	p.mine.fill(1)
	want := make([]byte, n*length)
	local, remote := make([]Desc, n), make([]Desc, n)
	rnd := rand.New(rand.NewPCG(3, 9))
	for i, from := range rnd.Perm(n / 2) {
		for k := 2 * i; k < 2*i+2; k++ {
			to, from := k*length, (2*from+k%2)*length // two and two touch
			if i < n/4 {                              // the other way round, so that they do not
				from ^= length
			}
			local[k], remote[k] = p.mine.desc(from, length), p.theirs.desc(to, length)
			copy(want[to:], p.mine.b[from:from+length])
		}
	}
	x := p.a.prep(transfer.Write, local, remote, "bob")
	x.run("there")
	p.b.expect("ann:there")
	require.True(t, string(want) == string(p.theirs.b))
	x.release()

	for _, bad := range []struct {
		what  string
		spoil func(d *Desc)
	}{
		{"8 bytes here, 9 at the peer", func(d *Desc) { d.Len++ }},
		{"is not inside its region", func(d *Desc) { d.Addr += n * length }},
		{"is not inside its region", func(d *Desc) { d.Addr -= 4 * n * length }},
		{"remote metadata is not loaded", func(d *Desc) { d.MD = nil }},
	} {
		first := transfer.LongList/2 + rnd.IntN(transfer.LongList)
		spoiled := slices.Clone(remote)
		for i := first; i < n; i += 1 + rnd.IntN(transfer.LongList/4) {
			bad.spoil(&spoiled[i])
		}
		_, _, err := p.a.Prep(transfer.Write, local, spoiled, "bob")
		require.ErrorContains(t, err, fmt.Sprintf("descriptor %d: ", first))
		require.ErrorContains(t, err, bad.what)
	}
}

// Prep refuses these arguments, and no transfer is left.
func TestPrepRefuses(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096)
	c := h.agent("cat")
	loadBoth(p.a, c)
	other := c.memory(4096).seenBy(p.a)
	l, r := p.mine.desc(0, 64), p.theirs.desc(0, 64)
	with := func(d Desc, change func(*Desc)) Desc { change(&d); return d }
	for what, bad := range map[string]struct {
		l, r []Desc
		code errcode.Status
	}{
		"no descriptors":     {nil, nil, errcode.ErrInvalidParam},
		"unequal lists":      {[]Desc{l, l}, []Desc{r}, errcode.ErrInvalidParam},
		"unequal lengths":    {[]Desc{l}, []Desc{with(r, func(d *Desc) { d.Len-- })}, errcode.ErrInvalidParam},
		"past local end":     {[]Desc{with(l, func(d *Desc) { d.Len = 4097 })}, []Desc{with(r, func(d *Desc) { d.Len = 4097 })}, errcode.ErrInvalidParam},
		"past remote end":    {[]Desc{l}, []Desc{with(r, func(d *Desc) { d.Addr += 4033 })}, errcode.ErrInvalidParam},
		"before local":       {[]Desc{with(l, func(d *Desc) { d.Addr-- })}, []Desc{r}, errcode.ErrInvalidParam},
		"overflow":           {[]Desc{with(l, func(d *Desc) { d.Len = math.MaxUint64 })}, []Desc{with(r, func(d *Desc) { d.Len = math.MaxUint64 })}, errcode.ErrInvalidParam},
		"no local region":    {[]Desc{with(l, func(d *Desc) { d.MD = nil })}, []Desc{r}, errcode.ErrNotFound},
		"no remote region":   {[]Desc{l}, []Desc{with(r, func(d *Desc) { d.MD = nil })}, errcode.ErrNotFound},
		"remote as local":    {[]Desc{r}, []Desc{r}, errcode.ErrNotFound},
		"local as remote":    {[]Desc{l}, []Desc{l}, errcode.ErrNotFound},
		"another peer's":     {[]Desc{l}, []Desc{other.desc(0, 64)}, errcode.ErrNotFound},
		"bad among the good": {[]Desc{l, l, l}, []Desc{r, r, other.desc(0, 64)}, errcode.ErrNotFound},
	} {
		_, _, err := p.a.Prep(transfer.Write, bad.l, bad.r, "bob")
		require.Equal(t, bad.code.String(), errcode.StatusOf(err).String(), "%s: %v", what, err)
	}
	_, _, err := p.a.Prep(2, []Desc{l}, []Desc{r}, "bob")
	require.Equal(t, errcode.ErrInvalidParam, errcode.StatusOf(err))
	require.Zero(t, p.a.transfers.Len())
	p.a.prep(transfer.Write, []Desc{l}, []Desc{r}, "bob").run()
}

func TestStaleHandle(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.run()
	x.release()
	require.Equal(t, errcode.ErrNotFound, errcode.Status(x.check()))
	require.Equal(t, errcode.ErrNotFound, errcode.StatusOf(p.a.Release(x.handle)))
	y := p.a.whole(transfer.Write, p.mine, p.theirs) // the same slot
	require.Equal(t, errcode.ErrNotFound, errcode.Status(x.check()))
	_, err := x.Post()
	require.Equal(t, errcode.ErrNotFound, errcode.StatusOf(err))
	y.run()
}
