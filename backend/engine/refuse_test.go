package engine

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// Every damaged connection blob is refused, and no session is made.
func TestDamagedConn(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann"), h.agent("bob")
	good := b.Conn()
	refused := func(blob []byte, what ...any) {
		err := a.LoadConn("bob", blob)
		require.Equal(t, status.ErrMismatch, status.Of(err), what...)
		require.ErrorContains(t, err, `"bob"`)
	}
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x40
		refused(bad, "byte %d", i)
		refused(good[:i], "%d bytes", i)
	}
	refused(append(append([]byte(nil), good...), 0))
	refused(a.memory(4096).blob, "the blob of a region")
	require.Empty(t, a.initiators.All())
	require.Equal(t, status.ErrNotFound, status.Of(a.Connect("bob")))
	require.NoError(t, a.LoadConn("bob", good))
	refused([]byte("junk"))
	require.ErrorContains(t, a.LoadConn("bob", []byte("junk")), `agent "bob": the peer's backend under this name is not GORAIL`)
	require.NoError(t, a.Notify("bob", []byte("still there")))
	b.expect("ann:still there")
}

func TestDamagedRegion(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096)
	m := p.b.memory(8192)
	before := p.a.regions.Regions.Len()
	load := func(addr, length, dev uint64, mem int32, blob []byte) error {
		_, err := p.a.LoadRemote("bob", addr, length, dev, mem, blob)
		return err
	}
	for i := range m.blob {
		bad := append([]byte(nil), m.blob...)
		bad[i] ^= 0x01
		require.Equal(t, status.ErrMismatch, status.Of(load(m.addr(), 8192, 0, 0, bad)), "byte %d", i)
		require.Equal(t, status.ErrMismatch, status.Of(load(m.addr(), 8192, 0, 0, m.blob[:i])), "%d bytes", i)
	}
	require.ErrorContains(t, load(m.addr()+1, 8192, 0, 0, m.blob), "its descriptor")
	require.Equal(t, status.ErrMismatch, status.Of(load(m.addr(), 8191, 0, 0, m.blob)))
	require.Equal(t, status.ErrMismatch, status.Of(load(m.addr(), 8192, 1, 0, m.blob)))
	require.Equal(t, status.ErrMismatch, status.Of(load(m.addr(), 8192, 0, 1, m.blob)))
	require.ErrorContains(t, load(p.mine.addr(), 4096, 0, 0, p.mine.blob), "another engine")
	require.Equal(t, before, p.a.regions.Regions.Len(), "no region is made")
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096)
	a := p.a
	d, r := []Desc{p.mine.desc(0, 8)}, []Desc{p.theirs.desc(0, 8)}
	_, _, prepped := a.Prep(transfer.Write, d, r, "eve")
	_, loaded := a.LoadRemote("eve", 0, 1, 0, 0, p.theirs.blob)
	_, posted := a.Engine.Post(12345, false, nil)
	_, _, estimated := a.Estimate(12345)
	_, blob := a.RegionBlob(p.theirs.md.region)
	for what, err := range map[string]error{"prep": prepped, "load": loaded, "notify": a.Notify("eve", nil), "connect": a.Connect("eve"),
		"disconnect": a.Disconnect("eve"), "post": posted, "estimate": estimated, "release": a.Release(12345),
		"deregister": a.Deregister(1 << 40), "deregister the peer's": a.Deregister(p.theirs.md.region), "region blob": blob} {
		require.Equal(t, status.ErrNotFound, status.Of(err), what)
	}
	require.Nil(t, a.initiators.Of("eve"))
	require.NoError(t, a.UnloadRemote(77), "NIXL's agent also unloads regions that it has not loaded")
	require.Zero(t, a.transfers.Len())
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
		code status.Code
	}{
		"no descriptors":     {nil, nil, status.ErrInvalidParam},
		"unequal lists":      {[]Desc{l, l}, []Desc{r}, status.ErrInvalidParam},
		"unequal lengths":    {[]Desc{l}, []Desc{with(r, func(d *Desc) { d.Len-- })}, status.ErrInvalidParam},
		"past local end":     {[]Desc{with(l, func(d *Desc) { d.Len = 4097 })}, []Desc{with(r, func(d *Desc) { d.Len = 4097 })}, status.ErrInvalidParam},
		"past remote end":    {[]Desc{l}, []Desc{with(r, func(d *Desc) { d.Addr += 4033 })}, status.ErrInvalidParam},
		"before local":       {[]Desc{with(l, func(d *Desc) { d.Addr-- })}, []Desc{r}, status.ErrInvalidParam},
		"overflow":           {[]Desc{with(l, func(d *Desc) { d.Len = math.MaxUint64 })}, []Desc{with(r, func(d *Desc) { d.Len = math.MaxUint64 })}, status.ErrInvalidParam},
		"no local region":    {[]Desc{with(l, func(d *Desc) { d.MD = nil })}, []Desc{r}, status.ErrNotFound},
		"no remote region":   {[]Desc{l}, []Desc{with(r, func(d *Desc) { d.MD = nil })}, status.ErrNotFound},
		"remote as local":    {[]Desc{r}, []Desc{r}, status.ErrNotFound},
		"local as remote":    {[]Desc{l}, []Desc{l}, status.ErrNotFound},
		"another peer's":     {[]Desc{l}, []Desc{other.desc(0, 64)}, status.ErrNotFound},
		"bad among the good": {[]Desc{l, l, l}, []Desc{r, r, other.desc(0, 64)}, status.ErrNotFound},
	} {
		_, _, err := p.a.Prep(transfer.Write, bad.l, bad.r, "bob")
		require.Equal(t, bad.code.String(), status.Of(err).String(), "%s: %v", what, err)
	}
	_, _, err := p.a.Prep(2, []Desc{l}, []Desc{r}, "bob")
	require.Equal(t, status.ErrInvalidParam, status.Of(err))
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
	require.Equal(t, status.ErrNotFound, status.Code(x.check()))
	require.Equal(t, status.ErrNotFound, status.Of(p.a.Release(x.handle)))
	y := p.a.whole(transfer.Write, p.mine, p.theirs) // the same slot
	require.Equal(t, status.ErrNotFound, status.Code(x.check()))
	_, err := x.Post()
	require.Equal(t, status.ErrNotFound, status.Of(err))
	y.run()
}
