// Package plugin is the Go half of libplugin_GORAIL.so. It forwards the flat C boundary of gorail.h to the engine. It adds no policy: only handles,
// status codes, recovered panics and logs.
package plugin

import "gorail/backend/host"

// version comes from the file VERSION; the build sets it (-X gorail/plugin.version).
var version = "dev"

func init() { host.CapProcs() }
