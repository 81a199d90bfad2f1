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
