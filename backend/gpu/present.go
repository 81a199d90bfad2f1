package gpu

import "path/filepath"

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
