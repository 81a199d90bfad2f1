// Package fabric builds a libfabric for tests: it offers EFA and CXI devices, keeps their rules, records whoever breaks one,
// and moves the bytes through the real libfabric's tcp provider. lib/switches.h has all rules.
package fabric

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Names of environment variables that the library reads.
const (
	EnvConfig   = "GORAIL_FABRIC"          // see Config
	EnvBreaches = "GORAIL_FABRIC_BREACHES" // file that breaches are appended to
	EnvCUDA     = "GORAIL_FABRIC_CUDA"     // a libcuda of test/cuda: memory of its GPUs can be registered by address
	EnvOpened   = "GORAIL_FABRIC_OPENED"   // file that gets a line for each endpoint: what it was opened with
)

var built struct {
	sync.Once
	data []byte
	err  error
	skip string
}

// Build compiles the library and returns its path, a new one each time: a process that loads two has two, each with the
// configuration that it found in the environment when first used. It skips the test where there is no compiler or no real
// libfabric.
func Build(t testing.TB) string {
	t.Helper()
	built.Do(compile)
	if built.skip != "" {
		t.Skip(built.skip)
	}
	require.NoError(t, built.err)
	path := filepath.Join(t.TempDir(), "libfabric.so.1")
	require.NoError(t, os.WriteFile(path, built.data, 0o755))
	return path
}

func compile() {
	dir, err := os.MkdirTemp("", "fabric")
	if err != nil {
		built.err = err
		return
	}
	defer os.RemoveAll(dir)
	lib := filepath.Join(source(), "lib")
	sources, _ := filepath.Glob(filepath.Join(lib, "*.c"))
	so := filepath.Join(dir, "fabric.so")
	args := append([]string{"-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
		"-I" + filepath.Join(source(), "../board"), "-Wl,--version-script=" + filepath.Join(lib, "exports.map"), "-Wl,-soname,libfabric-imitation.so", "-o", so}, sources...)
	if built.err = cc(append(args, "-ldl", "-pthread")...); built.err != nil {
		built.skip = lacking(built.err)
		return
	}
	// The real one is looked for now: a test that finds no device later could have many reasons.
	probe := filepath.Join(dir, "probe")
	if built.err = cc("-o", probe, filepath.Join(source(), "drivers", "probe.c"), "-ldl"); built.err != nil {
		return
	}
	if out, err := exec.Command(probe, so).CombinedOutput(); err != nil {
		built.skip = "no real libfabric here: " + strings.TrimSpace(string(out))
		return
	}
	built.data, built.err = os.ReadFile(so)
}

func cc(args ...string) error {
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return nil
}

// lacking says what this machine has not, if that is why cc failed.
func lacking(err error) string {
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "no gcc here"
	case err != nil && strings.Contains(err.Error(), "rdma/"):
		return "no libfabric headers here"
	}
	return ""
}

func source() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// BuildProvider compiles an external provider (relay/relay.c) and returns the folder with it, for FI_PROVIDER_PATH, which
// libfabric reads when it is first used. Its name is "relay". It skips the test like Build.
func BuildProvider(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	err := cc("-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
		"-o", filepath.Join(dir, "librelay-fi.so"), filepath.Join(source(), "relay", "relay.c"), "-ldl")
	if why := lacking(err); why != "" {
		t.Skip(why)
	}
	require.NoError(t, err)
	return dir
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
