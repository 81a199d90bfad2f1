package gpu

/*
#include <dlfcn.h>
#include <stdlib.h>

// Whether it is a driver's library; nothing of it is called. 0, 1: there is no such library, 2: it lacks calls of a driver.
static int gg_present(const char *path)
{
	void *dl = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
	if (!dl)
		return 1;
	int rc = dlsym(dl, "cuInit") && dlsym(dl, "cuGetProcAddress") ? 0 : 2;
	dlclose(dl);
	return rc;
}

// Whether somebody in this process has a context on a GPU. Loads and initialises nothing.
static int gg_in_use(const char *path)
{
	void *dl = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
	if (!dl)
		return 0;
	int (*find)(const char *, void **, int, unsigned long long) = (int (*)(const char *, void **, int, unsigned long long))dlsym(dl, "cuGetProcAddress");
	int (*count)(int *) = 0, (*state)(int, unsigned *, int *) = 0;
	int n = 0, active = 0;
	if (find && find("cuDeviceGetCount", (void **)&count, 2000, 0) == 0 && find("cuDevicePrimaryCtxGetState", (void **)&state, 7000, 0) == 0 && count && state &&
	    count(&n) == 0) // else nobody has called cuInit
		for (int i = 0; i < n && !active; i++) {
			unsigned flags;
			if (state(i, &flags, &active) != 0)
				active = 0;
		}
	dlclose(dl);
	return active;
}
*/
import "C"

import (
	"path/filepath"
	"unsafe"
)

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
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	switch C.gg_present(c) {
	case 1:
		return NoLibrary
	case 2:
		return NotADriver
	}
	return nil
}

// InUse tells whether this process has a primary context on some GPU already. Nothing is loaded or initialised. Implements
// cuDevicePrimaryCtxGetState.
func InUse(path string) bool {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	return C.gg_in_use(c) != 0
}
