package verbs

import (
	"io/fs"

	"gorail/backend/option"
	"gorail/backend/topo"
)

// Name of the provider and of its only fabric.
const Name = "verbs"

// Options of a Provider.
type Options struct {
	LibraryPath string // path or soname of libibverbs; "" = ibverbs.Default
	CUDAPath    string // path or soname of the GPU driver's library; "" = gpu.DefaultPath
	Sys         fs.FS  // "/sys"; nil = this machine's
	Interfaces  func() ([]topo.Interface, error)
	option.IB

	moreRNR uint8 // 1: messages wait for a receive without end; 0 but in tests
}
