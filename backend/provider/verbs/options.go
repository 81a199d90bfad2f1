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

// connectTime is the time limit for an iWARP connection.
const connectTime = 5 * time.Second

// Options of a Provider.
type Options struct {
	LibraryPath   string           // path or soname of libibverbs; "" = ibverbs.Default
	CMLibraryPath string           // path or soname of librdmacm, for iWARP devices; "" = DefaultCMLibrary
	CUDAPath      string           // path or soname of the GPU driver's library; "" = gpu.DefaultPath
	Sys           fs.FS            // "/sys"; nil = this machine's
	Ports         option.PortRange // listening ports of iWARP devices
	option.IB

	connectTime time.Duration // time limit for an iWARP connection; 0: the constant connectTime
}
