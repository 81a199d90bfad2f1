package plugin

// #include "gorail.h"
import "C"

import "gorail/backend/errcode"

// refusedCount is the number of reasons.
const refusedCount = C.GR_REFUSED_COUNT

// refused is an error of the shim itself (GR_REFUSED_*).
func refused(why int) error {
	switch why {
	case C.GR_REFUSED_MEMORY:
		return errcode.NoMemoryInCall.Errorf("an allocation failed: the process is at its limit of memory (ulimit -v, the cgroup)")
	case C.GR_REFUSED_ENGINE:
		return errcode.EngineClosed.Errorf("the engine was not created, and is used all the same: end the use of an agent whose createBackend has failed")
	case C.GR_REFUSED_ORDER:
		return errcode.HostMismatch.Errorf("the call is out of order (before getConnInfo, at another function's place, or beyond the last known function), so NIXL calls by another table of backend functions: %s. "+
			"Use one of those releases of NIXL, or a GORAIL release that supports this one", hostWords())
	case C.GR_REFUSED_LAYOUT:
		return errcode.HostMismatch.Errorf("NIXL ended the new engine without a call, so it has the members of its engines elsewhere: %s. "+
			"Use one of those releases of NIXL, or a GORAIL release that supports this one", hostWords())
	case C.GR_REFUSED_REGION:
		return errcode.UnknownRegion.Errorf("the memory was deregistered or unloaded before: do so once")
	case C.GR_REFUSED_REQUEST:
		return errcode.UnknownTransfer.Errorf("the transfer was released before: release each handle once")
	case C.GR_REFUSED_NULL:
		return errcode.NoHandle.Errorf("no transfer's handle was given: prepare the transfer first")
	case C.GR_REFUSED_VIEW:
		return errcode.NoMemoryView.Errorf("GORAIL has no memory views for GPU kernels: use transfers, or another backend for them")
	}
	return errcode.Unclassified.Errorf("the shim refuses the call for reason %d", why)
}
