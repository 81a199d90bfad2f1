package engine

import (
	"errors"

	"gorail/backend/access"
	"gorail/backend/provider"
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
