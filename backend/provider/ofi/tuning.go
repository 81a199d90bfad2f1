package ofi

import (
	"fmt"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// Tuning holds the operator's settings for libfabric; the zero value leaves everything to libfabric. A setting that a
// fabric refuses is an error of Open that names the option. A setting that a fabric does not have is a note
// of the rail.
type Tuning struct {
	TrafficClass string // best_effort, low_latency, dedicated_access or bulk_data
	Keys         []Key  // of CXI devices
}

// Key is a CXI authorization key: a service of the device, and a virtual network.
type Key struct {
	Device  string // "": all devices without their own key
	Service uint32
	VNI     uint16
}

func (k Key) String() string { return fmt.Sprintf("%d:%d", k.Service, k.VNI) }

var trafficClasses = map[string]uint32{
	"":                 libfabric.ClassUnspec,
	"best_effort":      libfabric.ClassBestEffort,
	"low_latency":      libfabric.ClassLowLatency,
	"dedicated_access": libfabric.ClassDedicatedAccess,
	"bulk_data":        libfabric.ClassBulkData,
}

// asked returns the hints for listing devices.
func (t Tuning) asked() (libfabric.Hints, error) {
	class, ok := trafficClasses[t.TrafficClass]
	if !ok {
		return libfabric.Hints{}, fmt.Errorf("%w: option traffic_class=%s: unknown class", provider.ErrUnusable, t.TrafficClass)
	}
	return libfabric.Hints{Class: class}, nil
}

// key returns a device's key, or nil.
func (t Tuning) key(device string) *Key {
	for _, name := range []string{device, ""} {
		if i := slices.IndexFunc(t.Keys, func(k Key) bool { return k.Device == name }); i >= 0 {
			return &t.Keys[i]
		}
	}
	return nil
}

// suspectOptions names the options that may have made a call of opening fail; "" for none.
func (t Tuning) suspectOptions(e *entry) string {
	var s []string
	if k := t.key(e.Domain); k != nil && e.Provider == "cxi" {
		s = append(s, fmt.Sprintf("cxi_auth_key=%s (does service %d of %s allow VNI %d, and this user?)", k, k.Service, e.Domain, k.VNI))
	}
	if t.TrafficClass != "" {
		s = append(s, fmt.Sprintf("traffic_class=%s (does the fabric, and on CXI the service, allow it?)", t.TrafficClass))
	}
	if len(s) == 0 {
		return ""
	}
	return "; options that may be the cause: " + strings.Join(s, " and ")
}

// notes returns a message for each setting that has no effect on the fabric.
func (t Tuning) notes(e *entry, version libfabric.Version) []string {
	var s []string
	known := map[string][]string{"efa": {"low_latency"}, "cxi": {"low_latency", "dedicated_access", "bulk_data"}}
	switch {
	case t.TrafficClass == "" || t.TrafficClass == "best_effort":
	case !slices.Contains(known[e.Provider], t.TrafficClass):
		s = append(s, fmt.Sprintf("option traffic_class=%s has no effect on %s", t.TrafficClass, e.Provider))
	case e.Provider == "efa" && version < 2<<16:
		s = append(s, fmt.Sprintf("option traffic_class=%s has no effect on efa before libfabric 2.0; this is %s", t.TrafficClass, version))
	}
	switch {
	case len(t.Keys) == 0:
	case e.Provider != "cxi":
		s = append(s, fmt.Sprintf("option cxi_auth_key has no effect on %s", e.Provider))
	case t.key(e.Domain) == nil:
		s = append(s, "option cxi_auth_key has no key for it; libfabric chooses one")
	}
	return s
}
