// Command plugin is the Go half of libplugin_GORAIL.so, linked with the shim by -buildmode=c-shared. It forwards the
// flat C boundary of gorail.h to the engine. It adds no policy: only handles, status codes, recovered panics and logs.
package main

import "gorail/backend/rlimit"

// version comes from the file VERSION; the build sets it (-X main.version).
var version = "dev"

// main is never called: the exports are the entry points.
func main() {}

func init() { rlimit.CapProcs() }
