// Package nofile counts and limits the descriptors of a test's process.
package nofile

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TB is the used part of testing.TB.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// None sets RLIMIT_NOFILE to the three standard descriptors, until its result is called. This process can then open no
// descriptor, even after it has closed others. poll(2) of more than three descriptors fails with EINVAL.
func None(t TB) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatalf("getrlimit: %v", err)
	}
	set := func(limit unix.Rlimit) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatalf("setrlimit: %v", err)
		}
	}
	set(unix.Rlimit{Cur: 3, Max: was.Max})
	return func() { t.Helper(); set(was) }
}

// Alone runs the test in a process of its own, in which no other test, and nothing that one has left, opens or closes descriptors. It returns
// true there.
func Alone(t *testing.T) bool {
	t.Helper()
	const env = "GORAIL_TEST_ALONE"
	if os.Getenv(env) == t.Name() {
		return true
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // this test binary
	cmd.Env = append(os.Environ(), env+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v: %s", err, out)
	}
	return false
}
