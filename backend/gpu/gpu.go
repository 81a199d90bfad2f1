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

// DefaultPath is the name of the driver library for dlopen.
const DefaultPath = "libcuda.so.1"

// Present checks for a driver with a device, without initializing anything. The error is NoLibrary, NotADriver or NoDevice. For
// a path other than DefaultPath, Present assumes a device. Implements dlopen.
func Present(path string) error {
	if path == DefaultPath {
		if found, _ := filepath.Glob("/dev/nvidia[0-9]*"); len(found) == 0 {
			if found, _ = filepath.Glob("/dev/dxg"); len(found) == 0 { // Windows Subsystem for Linux
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

// InUse reports whether this process has a primary context on a GPU. It loads and initializes nothing. Implements
// cuDevicePrimaryCtxGetState.
func InUse(path string) bool { return inUse(path) }

// Open loads the driver library, or counts one more user of it. It touches no GPU. Implements dlopen, cuGetProcAddress and
// cuInit. The error is a Fault: NoLibrary, NotADriver, OldDriver, NoDevice, NoMemory, Lost or Failed (cuInit failed).
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

// Close ends one use of the driver. The last one releases contexts and pinned memory, and waits for all work of the GPUs: a GPU may never
// end it. Busy: streams, mappings, tables or pinned ranges are left; Close has then changed nothing.
func (d *Driver) Close() error {
	last, err := d.leave()
	if !last || err != nil {
		return err
	}
	d.warming.Wait()
	d.proofs.free(d)
	return d.unload() // without the lock: others open the library anew meanwhile
}

// leave ends one use. last: there is no other, and no one can open this Driver any more.
func (d *Driver) leave() (last bool, err error) {
	drivers.mu.Lock()
	defer drivers.mu.Unlock()
	if d.refs > 1 {
		d.refs--
		return false, nil
	}
	if d.refs == 0 {
		return false, nil
	}
	if d.maps.busy() || d.pins.busy() || d.held() {
		return false, &Fault{Why: Busy, Call: "close"}
	}
	d.refs = 0
	delete(drivers.byPath, d.path)
	return true, nil
}

// start initializes the driver. Implements cuInit and cuDeviceGetCount.
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

// process is a random number that identifies this process.
var process = sync.OnceValue(func() (number [16]byte) {
	_, _ = rand.Read(number[:])
	return number
})
