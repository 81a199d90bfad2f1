package ofi

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"gorail/backend/provider/ofi/libfabric"
)

// Ports are the listening ports of the tcp family's endpoints, and additional sources from which peers may connect.
type Ports struct {
	First, Last uint16         // 0: the system chooses
	Sources     []netip.Prefix // source networks of peers behind address translation
}

// ports assigns listening ports to endpoints of one peer. Shared endpoints belong to hardware and do not listen.
type ports struct {
	Ports
	bound *libfabric.Info // a copy of the device for endpoints on a port of the option; nil: the system chooses
	next  uint16          // the next port to try
}

func choosePorts(p Ports, device *libfabric.Info) (chosen ports, err error) {
	chosen = ports{Ports: p, next: p.First}
	if p.First != 0 && device.HasSource() {
		chosen.bound, err = device.Copy()
	}
	return chosen, err
}

// open opens an endpoint on a port of the option, or on a port that the system chooses; under hold. Ports of the option
// are tried in turn, so the last used port is reused last.
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

// explain adds to EADDRINUSE that every port of the option is in use.
func (p *ports) explain(err error, addr string) error {
	if p.First == 0 || !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("%w: every port of option data_port=%d-%d is in use at %s: each connection to or from a peer listens on one; "+
		"give a wider range, and each process of this host one of its own", err, p.First, p.Last, addr)
}
