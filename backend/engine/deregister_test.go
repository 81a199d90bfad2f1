package engine

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
)

// holder is a provider whose regions say that somebody may still be at them when they are closed.
type holder struct{ provider.Provider }

type holdingRail struct{ provider.Rail }

type heldMR struct{ provider.MR }

var errHeld = errors.New("a process is stopped in the middle of a copy")

func (p holder) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return holdingRail{r}, err
}

func (r holdingRail) Register(addr, length, key uint64, peers access.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	return heldMR{mr}, err
}

func (m heldMR) Close() error { return errors.Join(m.MR.Close(), errHeld) }

// Memory that a rail can't promise to be let alone is not given back in silence; its registration has ended all the same.
func TestDeregisterHeld(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	h.wrap = func(p provider.Provider) provider.Provider { return holder{p} }
	a := h.agent("ann")
	m := a.memory(4096)
	err := a.Deregister(m.md.region)
	require.ErrorIs(t, err, errHeld)
	require.Equal(t, status.ErrBackend, status.Of(err))
	require.ErrorContains(t, err, "fake/fake0")
	require.Equal(t, status.ErrNotFound, status.Of(a.Deregister(m.md.region)))
	m.register()
}
