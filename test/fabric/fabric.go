// Package fabric builds a libfabric for tests. The library offers EFA and CXI devices, enforces their rules and records each breach.
// It moves the bytes through the real libfabric's tcp provider. lib/switches.h lists all rules.
package fabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
	"gorail/test/skip"
)

// Names of environment variables that the library reads.
const (
	EnvConfig   = "GORAIL_FABRIC"          // the configuration, see Config
	EnvBreaches = "GORAIL_FABRIC_BREACHES" // file to which breaches are appended
	EnvCUDA     = "GORAIL_FABRIC_CUDA"     // path of a libcuda of test/cuda, whose GPU memory can then be registered by address
	EnvOpened   = "GORAIL_FABRIC_OPENED"   // file that gets a line for each enabled endpoint with its attributes
)

// Library is the library that Build builds.
var Library = native.Part{Name: "libfabric.so.1", SOName: "libfabric-imitation.so", Dirs: []string{"test/fabric/lib"},
	Exports: "test/fabric/lib/exports.map", Include: []string{"test/native"}, Flags: []string{"-fvisibility=hidden"}, Libs: []string{"-ldl"}}

var (
	relay = native.Part{Name: "librelay-fi.so", Sources: []string{"test/fabric/relay/relay.c"}, Flags: []string{"-fvisibility=hidden"}, Libs: []string{"-ldl"}}
	probe = native.Part{Name: "probe", Program: true, Sources: []string{"test/fabric/drivers/probe.c"}, Libs: []string{"-ldl"}}
)

// lacking is the error if there is no real libfabric. The probe runs once. Without the probe a test would only find no device, which
// can have many causes.
var lacking = sync.OnceValue(func() error {
	look, err := probe.Make()
	if err != nil {
		return err
	}
	so, err := Library.Make()
	if err != nil {
		return err
	}
	if out, err := exec.Command(look, so).CombinedOutput(); err != nil {
		return &native.Missing{What: "real libfabric not found: " + strings.TrimSpace(string(out))}
	}
	return nil
})

// Build builds the library and returns its path, a new path each time. A process can load several copies; each reads its configuration
// from the environment at first use. Build skips the test if there is no real libfabric. native.Part lists the other reasons to skip.
func Build(t testing.TB) string {
	t.Helper()
	path := Library.Build(t)
	if err := lacking(); err != nil {
		skip.OrFail(t, err)
	}
	return path
}

// BuildProvider builds the external provider "relay" (relay/relay.c) and returns its folder, for FI_PROVIDER_PATH. libfabric reads that
// variable at first use. native.Part says when the test is skipped.
func BuildProvider(t testing.TB) string {
	t.Helper()
	return filepath.Dir(relay.Build(t))
}

// Config returns a value for GORAIL_FABRIC. extra adds switches ("name=value").
func Config(kind string, rails int, seed int64, extra ...string) string {
	return strings.Join(append([]string{"kind=" + kind, fmt.Sprint("rails=", rails), fmt.Sprint("seed=", seed)}, extra...), ",")
}

// Env returns environment variables for a process whose plugin loads the library. The caller adds GORAIL_LIBFABRIC_PATH with the
// library's path. kind is efa, efa-direct or cxi.
func Env(kind string, rails int, seed int64, extra ...string) []string {
	prov, _, _ := strings.Cut(kind, "-")
	return []string{EnvConfig + "=" + Config(kind, rails, seed, extra...), "GORAIL_PROVIDER=" + prov, "GORAIL_CONTROL_DEVICES=lo"}
}

// Breaches returns the lines recorded in file: "RULE FABRIC: DESCRIPTION".
func Breaches(t testing.TB, file string) []string {
	t.Helper()
	return lines(t, file)
}

// Opened returns one line for each enabled endpoint: fabric and device number, tclass=, key=service:vni, tx=, rx=, cq= (depths),
// threading=.
func Opened(t testing.TB, file string) []string {
	t.Helper()
	return lines(t, file)
}

func lines(t testing.TB, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}
