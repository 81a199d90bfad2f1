package ofi

import (
	"fmt"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// asker lists devices of a library with the operator's settings. It implements lister.
type asker struct {
	*libfabric.Library
	asked libfabric.Hints // set by the operator; 0 is the provider's own choice
	tune  Tuning
	// why FI_HMEM is not requested; nil: FI_HMEM is requested
	noHMEM error
}

// List implements lister with fi_getinfo. A fabric must offer delivery-complete operations. Without them a WRITE
// completes, and its notification is sent, before the data is in place.
func (a asker) List(fabric string) ([]*entry, error) {
	got, err := a.delivering(fabric)
	if len(got) > 0 {
		return got, err
	}
	if early, _ := (asker{Library: a.Library}).list(fabric, false, false); len(early) > 0 {
		return nil, fmt.Errorf("%w: %s/%s offers no FI_DELIVERY_COMPLETE: a WRITE would complete before its data is in place at the peer; "+
			"take another fabric with option provider, or a libfabric whose %s has it (option libfabric_path)", provider.ErrUnusable, fabric, early[0].Domain, fabric)
	}
	return got, err
}

// delivering returns the devices that offer FI_DELIVERY_COMPLETE.
func (a asker) delivering(fabric string) ([]*entry, error) {
	got, err := a.list(fabric, true, false)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return a.withHMEM(got, fabric), nil
}

// withHMEM replaces devices by their entries with FI_HMEM, if they offer it. Other devices stay unchanged.
func (a asker) withHMEM(got []*entry, fabric string) []*entry {
	if a.noHMEM != nil || !slices.ContainsFunc(got, func(e *entry) bool { return !e.sockets() }) {
		return got
	}
	able, err := a.list(fabric, true, true)
	if err != nil {
		return got
	}
	for i, e := range got {
		same := func(a *entry) bool {
			return a.Domain == e.Domain && a.Fabric == e.Fabric && a.Protocol == e.Protocol && a.Src == e.Src
		}
		if k := slices.IndexFunc(able, same); k >= 0 && !e.sockets() {
			able[k].hmem = true
			got[i] = able[k]
		}
	}
	return got
}

// list implements List, with or without FI_DELIVERY_COMPLETE and FI_HMEM.
func (a asker) list(fabric string, delivery, hmem bool) (out []*entry, err error) {
	h := a.asked
	h.Provider, h.Delivery, h.HMEM = fabric, delivery, hmem
	got, err := a.Library.List(h)
	for _, i := range got {
		if k := a.tune.key(i.Domain); k != nil && i.Provider == "cxi" {
			if err := i.SetKey(k.Service, k.VNI); err != nil {
				return nil, err
			}
		}
		out = append(out, &entry{Info: i, noHMEM: a.noHMEM})
	}
	return out, err
}
