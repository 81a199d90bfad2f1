// Package fabric builds a libfabric for tests: it offers EFA and CXI devices, keeps their rules, records whoever breaks one,
// and moves the bytes through the real libfabric's tcp provider. lib/switches.h has all rules.
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
	EnvConfig   = "GORAIL_FABRIC"          // see Config
	EnvBreaches = "GORAIL_FABRIC_BREACHES" // file that breaches are appended to
	EnvCUDA     = "GORAIL_FABRIC_CUDA"     // a libcuda of test/cuda: memory of its GPUs can be registered by address
	EnvOpened   = "GORAIL_FABRIC_OPENED"   // file that gets a line for each endpoint: what it was opened with
)

// Library is the part that Build makes.
var Library = native.Part{Name: "libfabric.so.1", SOName: "libfabric-imitation.so", Dirs: []string{"test/fabric/lib"},
	Exports: "test/fabric/lib/exports.map", Include: []string{"test/native"}, Flags: []string{"-fvisibility=hidden"}, Libs: []string{"-ldl"}}

var (
	relay = native.Part{Name: "librelay-fi.so", Sources: []string{"test/fabric/relay/relay.c"}, Flags: []string{"-fvisibility=hidden"}, Libs: []string{"-ldl"}}
	probe = native.Part{Name: "probe", Program: true, Sources: []string{"test/fabric/drivers/probe.c"}, Libs: []string{"-ldl"}}
)

// lacking is why there is no real libfabric, looked for once: a test that finds no device later could have many reasons.
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
		return &native.Missing{What: "no real libfabric here: " + strings.TrimSpace(string(out))}
	}
	return nil
})

// Build makes the library and returns its path, a new one each time: a process that loads two has two, each with the
// configuration that it found in the environment when first used. It skips the test where there is no real libfabric; see
// native.Part for what else does.
func Build(t testing.TB) string {
	t.Helper()
	path := Library.Build(t)
	if err := lacking(); err != nil {
		skip.OrFail(t, err)
	}
	return path
}

// BuildProvider makes an external provider (relay/relay.c) and returns the folder with it, for FI_PROVIDER_PATH, which
// libfabric reads when it is first used. Its name is "relay". It skips the test like Build.
func BuildProvider(t testing.TB) string {
	t.Helper()
	return filepath.Dir(relay.Build(t))
}

// Config is the value of GORAIL_FABRIC; extra are more switches ("name=value").
func Config(kind string, rails int, seed int64, extra ...string) string {
	return strings.Join(append([]string{"kind=" + kind, fmt.Sprint("rails=", rails), fmt.Sprint("seed=", seed)}, extra...), ",")
}

// Env are environment variables for a process whose plugin shall load the library at path GORAIL_LIBFABRIC_PATH, which the
// caller adds. kind is efa, efa-direct or cxi.
func Env(kind string, rails int, seed int64, extra ...string) []string {
	prov, _, _ := strings.Cut(kind, "-")
	return []string{EnvConfig + "=" + Config(kind, rails, seed, extra...), "GORAIL_PROVIDER=" + prov, "GORAIL_CONTROL_DEVICES=lo"}
}

// Breaches are the lines recorded in file: the rule's name, the fabric's, and what happened.
func Breaches(t testing.TB, file string) []string {
	t.Helper()
	return lines(t, file)
}

// Opened are the lines about endpoints: device and number, tclass=, key=service:vni, tx=, rx=, cq= (depths), threading=.
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
