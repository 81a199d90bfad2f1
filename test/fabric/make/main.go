// Command make builds the libfabric of package fabric and copies the library to a path, for scripts.
package main

import (
	"fmt"
	"os"

	"gorail/test/fabric"
	"gorail/test/native"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: make libfabric.so.1")
		os.Exit(2)
	}
	made, err := fabric.Library.Make()
	if err == nil {
		err = native.Copy(made, os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
