// Package gpu is what GORAIL wants of GPUs: what a pointer is, mapping the memory of a peer on the same host, and copies that are posted and
// polled without Go. CUDA's driver library is loaded when somebody asks for it; nothing of a toolkit is needed.
//
// What posts and polls is C (gr_gpu.h), which C elsewhere calls through Driver.Core: streams, jobs, tables, pinned memory. What may take its time,
// registration and mapping, is Go, over one table of the driver's calls (cuda.go). docs/gpu.md has the decisions and the measurements behind them.
package gpu

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"sync"
)

var drivers struct {
	mu     sync.Mutex
	byPath map[string]*Driver
}

// DefaultPath is the driver's library, as dlopen finds it.
const DefaultPath = "libcuda.so.1"

// Present tells whether there is a driver with a device, without initialising anything: nil, or NoLibrary, NotADriver or NoDevice. A library
// that somebody named is taken to have one. Implements dlopen.
func Present(path string) error {
	if path == DefaultPath {
		if found, _ := filepath.Glob("/dev/nvidia[0-9]*"); len(found) == 0 {
			if found, _ = filepath.Glob("/dev/dxg"); len(found) == 0 { // Windows' subsystem for Linux
				return NoDevice
			}
		}
	}
	switch present(path) {
	case 1:
		return NoLibrary
	case 2:
		return NotADriver
	}
	return nil
}

// InUse tells whether this process has a primary context on some GPU already. Nothing is loaded or initialised. Implements
// cuDevicePrimaryCtxGetState.
func InUse(path string) bool { return inUse(path) }

// Open loads the driver's library, or counts one more user of it. Implements dlopen, cuGetProcAddress and cuInit: no GPU is touched. The
// error is a Fault: NoLibrary, NotADriver, OldDriver, NoDevice or Driver (cuInit failed).
func Open(path string) (*Driver, error) {
	drivers.mu.Lock()
	defer drivers.mu.Unlock()
	if d := drivers.byPath[path]; d != nil {
		d.refs++
		return d, nil
	}
	c, err := load(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d := &Driver{calls: calls{c}, path: path, refs: 1}
	if err := d.start(); err != nil {
		_ = d.unload()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if drivers.byPath == nil {
		drivers.byPath = make(map[string]*Driver)
	}
	drivers.byPath[path] = d
	return d, nil
}

// Close gives the driver back; the last user's Close releases contexts and pinned memory. With streams, mappings, tables or pinned ranges left
// it fails with Busy and changes nothing.
func (d *Driver) Close() error {
	drivers.mu.Lock()
	defer drivers.mu.Unlock()
	if d.refs == 0 {
		return nil
	}
	if d.refs > 1 {
		d.refs--
		return nil
	}
	if d.maps.busy() || d.pins.busy() {
		return &Fault{Why: Busy, Call: "close"}
	}
	if err := d.unload(); err != nil {
		return &Fault{Why: Busy, Call: "close"}
	}
	d.refs = 0
	delete(drivers.byPath, d.path)
	return nil
}

// start initialises the driver. Implements cuInit and cuDeviceGetCount.
func (d *Driver) start() error {
	if r := d.init(); r == noDevice {
		return &Fault{Why: NoDevice, Call: "cuInit", Text: "CUDA_ERROR_NO_DEVICE"}
	} else if r != ok {
		return d.failed(r, "cuInit")
	}
	n, r := d.count()
	if r != ok {
		return d.failed(r, "cuDeviceGetCount")
	}
	if n <= 0 {
		return &Fault{Why: NoDevice, Call: "cuDeviceGetCount", Text: "0"}
	}
	d.set(min(n, maxDevices), process())
	return nil
}

// process is a number that no other process has.
var process = sync.OnceValue(func() (number [16]byte) {
	_, _ = rand.Read(number[:])
	return number
})
