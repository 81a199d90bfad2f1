package verbs

import (
	"io/fs"
	"time"

	"gorail/backend/option"
)

// Name of the provider and of its only fabric.
const Name = "verbs"

// DefaultCMLibrary is the soname that dlopen looks for when Options.CMLibraryPath is empty.
const DefaultCMLibrary = "librdmacm.so.1"

// connectTime is how long an iWARP connection may take to come about by itself; later it has failed.
const connectTime = 5 * time.Second

// Options of a Provider.
type Options struct {
	LibraryPath   string           // a path or soname of libibverbs; "" = ibverbs.Default
	CMLibraryPath string           // of librdmacm, which iWARP devices need; "" = DefaultCMLibrary
	CUDAPath      string           // of the GPUs' driver; "" = gpu.DefaultPath
	Sys           fs.FS            // "/sys"; nil = the machine's
	Ports         option.PortRange // that iWARP devices listen on
	option.IB

	connectTime time.Duration // 0: connectTime
}
