// Package topotest makes a sysfs from a description of package sketch. For tests only.
package topotest

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"gorail/backend/topo"
	"gorail/backend/topo/sketch"
)

// Read returns the machine described in a file.
func Read(t testing.TB, file string) *topo.Machine {
	t.Helper()
	return topo.Read(FS(t, file))
}

// FS returns the sysfs of the machine described in a file.
func FS(t testing.TB, file string) fstest.MapFS {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(err)
	}
	return Parse(t, string(text))
}

// Parse is FS for a description in memory.
func Parse(t testing.TB, text string) fstest.MapFS {
	t.Helper()
	sys, err := sketch.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return sys
}
