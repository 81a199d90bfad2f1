package verbs

import (
	"fmt"

	"gorail/backend/provider"
)

// openRail opens the device's port. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, o Options) (*rail, error) {
	r := &rail{dev: d, entry: e, opt: o, gid: e.gid}
	r.at.Store(&d)
	if err := r.device.open(e, o.IB); err != nil {
		return nil, fmt.Errorf("%w; take another with option devices", r.error(provider.ErrUnusable, err, ""))
	}
	r.gpus = r.direct(o.CUDAPath)
	return r, nil
}
