package ofi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

// Ports of option data_port, which endpoints of the tcp family listen on.

// choosePorts is for endpoints of one peer: those that all peers share are the hardware's and listen on nothing.
func (r *rail) choosePorts() error {
	if r.ports.First == 0 || r.entry.info.src_addr == nil {
		return nil
	}
	r.nextPort = r.ports.First
	if r.bound = r.lib().dupinfo(r.entry.info); r.bound == nil {
		return r.lib().errno("fi_dupinfo", syscall.ENOMEM)
	}
	return nil
}

// makeEP opens an endpoint on a port of the option, or of the system's choice; under hold. The ports of our choice are tried in turn: one that
// was used last is used last again.
func (r *rail) makeEP() (*fiEP, error) {
	if r.bound == nil {
		return r.makeOf(r.entry.info)
	}
	err := r.lib().errno("fi_endpoint", syscall.EADDRINUSE)
	for range int(r.ports.Last) - int(r.ports.First) + 1 {
		binary.BigEndian.PutUint16(sourceOf(r.bound)[2:], r.nextPort) // at the same place in both families
		if r.nextPort++; r.nextPort > r.ports.Last || r.nextPort == 0 {
			r.nextPort = r.ports.First
		}
		var ep *fiEP
		if ep, err = r.makeOf(r.bound); !errors.Is(err, syscall.EADDRINUSE) {
			return ep, err
		}
	}
	return nil, err
}

// portsUsed explains why an endpoint got no port.
func (r *rail) portsUsed(err error) error {
	if r.ports.First == 0 || !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return fmt.Errorf("%w: every port of option data_port=%d-%d is in use at %s: each connection to or from a peer listens on one; "+
		"give a wider range, and each process of this host one of its own", err, r.ports.First, r.ports.Last, r.dev.Addr)
}
