package engine

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

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
