package ofi

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"gorail/backend/provider/ofi/libfabric"
)

// Ports are what endpoints of the tcp family listen on, and who may connect to them besides the addresses that a peer is known by.
type Ports struct {
	First, Last uint16         // 0: the system chooses
	Sources     []netip.Prefix // of peers behind a translation of addresses
}

// ports gives endpoints of one peer their ports: those that all peers share are the hardware's and listen on nothing.
type ports struct {
	Ports
	bound *libfabric.Info // a copy of the device for endpoints on a port of our choice; nil: the system chooses
	next  uint16          // of that choice
}

func choosePorts(p Ports, device *libfabric.Info) (chosen ports, err error) {
	chosen = ports{Ports: p, next: p.First}
	if p.First != 0 && device.HasSource() {
		chosen.bound, err = device.Copy()
	}
	return chosen, err
}

// open opens an endpoint on a port of the option, or of the system's choice; under hold. The ports of our choice are tried in turn: one that
// was used last is used last again.
func (p *ports) open(e *libfabric.Endpoint, device *libfabric.Info, how libfabric.Options) error {
	if p.bound == nil {
		return e.Open(device, how)
	}
	err := device.Library().Errno("fi_endpoint", syscall.EADDRINUSE)
	for range int(p.Last) - int(p.First) + 1 {
		p.bound.SetPort(p.next)
		if p.next++; p.next > p.Last || p.next == 0 {
			p.next = p.First
		}
		if err = e.Open(p.bound, how); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return err
}

// explain says why an endpoint got no port of that address.
func (p *ports) explain(err error, addr string) error {
	if p.First == 0 || !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("%w: every port of option data_port=%d-%d is in use at %s: each connection to or from a peer listens on one; "+
		"give a wider range, and each process of this host one of its own", err, p.First, p.Last, addr)
}
