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

// busyProvider is a provider whose regions fail to close, because a process may still access them.
type busyProvider struct{ provider.Provider }

type busyRail struct{ provider.Rail }

type busyMR struct{ provider.MR }

var errBusy = errors.New("a process is stopped in the middle of a copy")

func (p busyProvider) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return busyRail{r}, err
}

func (r busyRail) Register(addr, length, key uint64, peers access.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	return busyMR{mr}, err
}

func (m busyMR) Close() error { return errors.Join(m.MR.Close(), errBusy) }

// A process may still access the memory after its deregistration. Deregister returns an error then. The registration has
// ended all the same.
func TestDeregisterHeld(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	h.wrap = func(p provider.Provider) provider.Provider { return busyProvider{p} }
	a := h.agent("ann")
	m := a.memory(4096)
	err := a.Deregister(m.md.region)
	require.ErrorIs(t, err, errBusy)
	require.Equal(t, status.ErrBackend, status.Of(err))
	require.ErrorContains(t, err, "fake/fake0")
	require.Equal(t, status.ErrNotFound, status.Of(a.Deregister(m.md.region)))
	m.register()
}
