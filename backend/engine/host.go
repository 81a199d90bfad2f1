package engine

import (
	"errors"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/wire"
)

// offers are our rails as peers hear of them.
func (e *Engine) offers() []wire.RailOffer {
	offers := rail.Offers(e.railSet.Devices())
	for i, r := range e.rails {
		if p, ok := r.Rail.(provider.Prover); ok {
			offers[i].Proof = p.Proof()
		}
	}
	return offers
}

var (
	errPIDs     = errors.New("it lives in another pid namespace")
	errNetworks = errors.New("it lives in another network namespace")
)

// proved says whether a rail of ours reaches the peer by the one that it offers, which has to be tried. What hinders two of one
// host is told: they go by the next best way.
func (r *remote) proved(o wire.RailOffer, sameNS bool) bool {
	if r.e.blob.Boot == "" || r.e.blob.Boot != r.blob.Boot {
		return false
	}
	for _, own := range r.e.rails {
		p, ok := own.Rail.(provider.Prover)
		if !ok || own.Device().Fabric != o.Fabric {
			continue
		}
		var err error
		switch {
		case own.Device().Subnet != o.Subnet:
			err = errPIDs
		case !sameNS:
			err = errNetworks
		default:
			err = p.Reach(o.Proof)
		}
		// A process that has ended is the control connection's to tell. Without a descriptor nothing was tried: the endpoint will.
		if err == nil || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			return true
		}
		r.e.log.Warn("rail not used for a peer of this host", "peer", r.name, "rail", own.Name(), "err", err)
	}
	return false
}
