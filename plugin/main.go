// Command plugin is the Go half of libplugin_GORAIL.so, linked with the shim by -buildmode=c-shared. It forwards the flat C boundary
// of gorail.h to the engine and holds no policy: handles, status codes, panics caught, logs.
package main

// version is set by the build (-X main.version) from the file VERSION.
var version = "dev"

// main is never called: the entry points are the exports.
func main() {}
