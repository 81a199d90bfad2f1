// Command so is libplugin_GORAIL.so: package plugin and the shim, linked by -buildmode=c-shared. It has no cgo of its own: for a main package with
// cgo the go command compiles the C of all packages again at each build, 26 s of processor time.
package main

import _ "gorail/plugin"

// main is never called: the exports of package plugin are the entry points.
func main() {}
