package peer

import (
	"os"
	"slices"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/wire"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/side"
)

// ways tries the rail sm in both directions.
func (v *peerChecker) ways() (w ways) {
	w.there, w.thereErr = v.wayThere()
	w.back, w.backErr = v.wayBack()
	v.apart = w.thereErr != nil || w.backErr != nil
	return w
}

func (v *peerChecker) wayThere() (string, error) {
	proof, err := side.Call[[]byte](v.process, "Offer", side.None{}, factsTime)
	if err != nil {
		return "", err
	}
	o, _, err := option.Parse(v.host.Params, os.LookupEnv)
	if err != nil {
		return "", err
	}
	return machine.Reach(o, proof)
}

func (v *peerChecker) wayBack() (string, error) {
	o, _, err := option.Parse(v.host.Params, os.LookupEnv)
	if err != nil {
		return "", err
	}
	proof, end, err := machine.Offer(o)
	if err != nil {
		return "", err
	}
	defer func() { _ = end() }()
	return side.Call[string](v.process, "Reach", proof, factsTime)
}

// usable are the peer's rails, without sm where it has no way to us: an engine leaves it out, too.
func (v *peerChecker) usable() []wire.RailOffer {
	return slices.DeleteFunc(slices.Clone(v.peer.Rails), func(o wire.RailOffer) bool {
		return o.Fabric == provider.SharedMemory && (v.apart || v.own.Boot != v.peer.Boot)
	})
}
