package initiator

import (
	"errors"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/wire"
)

var (
	errPIDs     = errors.New("it lives in another pid namespace")
	errNetworks = errors.New("it lives in another network namespace")
)

// reaches says whether a rail of ours reaches the peer by the one that it offers, which has to be tried. What hinders two of one
// host is told: they go by the next best way.
func (r *Session) reaches(o wire.RailOffer, sameNS bool) bool {
	if r.s.own.Boot == "" || r.s.own.Boot != r.blob.Boot {
		return false
	}
	for _, own := range r.s.Links.Rails.List {
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
		r.s.Log.Warn("rail not used for a peer of this host", "peer", r.name, "rail", own.Name(), "err", err)
	}
	return false
}
