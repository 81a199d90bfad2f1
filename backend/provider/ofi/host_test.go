package ofi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/conform"
	"gorail/test/fabric"
)

// TestHostProcess: loading libfabric leaves the process unchanged. It runs in a child, because this process has already
// loaded libfabric.
func TestHostProcess(t *testing.T) {
	if os.Getenv("GORAIL_TEST_CHILD") != "" {
		hostChild()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHostProcess$")
	cmd.Env = append(os.Environ(), "GORAIL_TEST_CHILD=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if bytes.Contains(out.Bytes(), []byte("no libfabric")) {
		t.Skip(out.String())
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out.String())
	status := exit.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled() && status.Signal() == syscall.SIGINT, "Ctrl-C must still end the process: %v\n%s", err, &out)
	require.Contains(t, out.String(), "child: all as before")
}

func hostChild() {
	fail := func(format string, args ...any) {
		fmt.Printf("child: "+format+"\n", args...)
		os.Exit(3)
	}
	environ := nativeEnviron()
	before := signalActions()
	p := New(Options{LibraryPath: testLibrary()})
	_, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{"shm"}})
	if errors.Is(err, provider.ErrNoLibrary) {
		fail("no libfabric here: %v", err)
	}
	if after := signalActions(); after != before {
		for sig := range after {
			if after[sig] != before[sig] {
				fmt.Printf("child: signal %d: %x became %x\n", sig, before[sig], after[sig])
			}
		}
		fail("signal handlers changed")
	}
	if now := nativeEnviron(); now != environ {
		fail("environment changed:\n%q\n%q", environ, now)
	}
	if !recovers() {
		fail("a nil dereference is not recovered")
	}
	fmt.Println("child: all as before")
	signal.Reset(syscall.SIGINT)
	_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	time.Sleep(5 * time.Second)
	fail("still alive after SIGINT")
}

//go:noinline
func recovers() (ok bool) {
	defer func() { ok = recover() != nil }()
	var p *[1 << 10]int
	runtime.KeepAlive(p[5])
	return false
}

// testLibrary selects another libfabric for the tests: GORAIL_TEST_LIBFABRIC=/path/libfabric.so.1.
func testLibrary() string { return os.Getenv("GORAIL_TEST_LIBFABRIC") }

func TestMissingLibrary(t *testing.T) {
	_, err := New(Options{LibraryPath: "/nonexistent/libfabric.so.1"}).Discover(context.Background(), provider.Filter{})
	require.ErrorIs(t, err, provider.ErrNoLibrary)
	for _, part := range []string{"/nonexistent/libfabric.so.1", "libfabric1", "libfabric_path", "No such file"} {
		require.ErrorContains(t, err, part)
	}
}

func TestNotLibfabric(t *testing.T) {
	_, err := New(Options{LibraryPath: "libm.so.6"}).Discover(context.Background(), provider.Filter{})
	require.ErrorIs(t, err, provider.ErrNoLibrary)
	require.ErrorContains(t, err, "fi_getinfo@FABRIC_1.3")
}

func TestUnknownFabric(t *testing.T) {
	p := New(Options{LibraryPath: testLibrary()})
	_, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{"nosuch"}})
	require.ErrorIs(t, err, provider.ErrNoDevice)
	require.ErrorContains(t, err, `"nosuch"`)
	require.ErrorContains(t, err, "providers:")
}

// TestExternalProvider: a provider that libfabric loads from FI_PROVIDER_PATH is listed, and used only on request. The
// test runs in a child process, because libfabric reads the variable when it is loaded.
func TestExternalProvider(t *testing.T) {
	const child = "GORAIL_TEST_EXTERNAL"
	if os.Getenv(child) != "" {
		t.Run("named", externalNamed)
		t.Run("traffic", func(t *testing.T) {
			// Over net of 1.17 no thread can sleep: its fi_trywait leaves the queue's signal set.
			conform.RunTraffic(t, traits, func(t *testing.T) provider.Rail { return openLoopback(t, "relay") }, "Sleeps")
		})
		return
	}
	require.NoError(t, openLoopback(t, "tcp;ofi_rxm").Close()) // skips if there is no libfabric
	cmd := exec.Command(os.Args[0], "-test.run=^TestExternalProvider$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1", "FI_PROVIDER_PATH="+fabric.BuildProvider(t))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	require.NoError(t, cmd.Wait(), out.String())
	require.Contains(t, out.String(), "--- PASS: TestExternalProvider/traffic")
}

func externalNamed(t *testing.T) {
	p := New(Options{LibraryPath: testLibrary()})
	discover := func(names ...string) []provider.Device {
		devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: names})
		require.NoError(t, err)
		require.NotEmpty(t, devs)
		return devs
	}
	for _, d := range discover("relay") {
		require.Equal(t, "relay", d.Fabric)
	}
	_, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{"nosuch"}})
	require.ErrorContains(t, err, "relay", "the error lists all providers")
}
