// Package bed is the test machine: it runs commands as root in guests with software RDMA devices. A guest is a temporary User-Mode Linux
// kernel with rxe (tools/rdma-kernel.sh). Its / is the host's /, read-only, below a tmpfs. The host's network stays unchanged.
//
// Guests can test function, and throughput below about 200 MB/s. Each guest has one CPU, so latencies are meaningless. README.md in the
// folder above has more.
package bed

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// EnvDir is the environment variable for the kernel's folder.
const EnvDir = "GORAIL_RDMA_DIR"

// Environment variables of a command in a guest.
const (
	EnvKind  = "BED_KIND"  // Guest.Kind
	EnvRails = "BED_RAILS" // Guest.Rails
	EnvSide  = "BED_SIDE"  // host A or B of a pair; not set if one guest is both hosts
)

// Kind is a software RDMA driver.
type Kind string

const (
	RXE Kind = "rxe" // RoCE v2
)

// Guest describes a guest. The zero value has no rails.
type Guest struct {
	Kind   Kind          // RDMA device at each end of a rail; "": plain network interfaces
	Rails  int           // number of rails: 10.0.<rail>.1 at host A, .2 at host B; rails.sh has the names
	Rate   string        // of a rail in each direction, in tc's units ("200mbit"); "": no limit
	Delay  string        // added in each direction, in tc's units ("1ms")
	MTU    int           // of a rail's interfaces, bytes; 0: 4200, for RDMA's 4096
	Memory int           // MiB; 0: 2048. The host allocates memory at first use
	Limit  time.Duration // time after which the guest is killed; 0: 2 minutes
	Dir    string        // the command's working directory; "": /
	Env    []string      // NAME=value, beside PATH, HOME and TERM; the caller's environment is not passed on
	Stdout io.Writer     // also receives the command's output at once; may be nil
	Stderr io.Writer
}

// Result is the result of a command in a guest.
type Result struct {
	Status         int // exit status of the command; 128 + n for signal n
	Stdout, Stderr string
	Took           time.Duration // includes the kernel's start and shutdown
}

// String formats the result for failure messages.
func (r Result) String() string {
	return fmt.Sprintf("exit status %d after %v\n%s%s", r.Status, r.Took.Round(time.Millisecond), r.Stdout, r.Stderr)
}

// Dir returns the kernel's folder: GORAIL_RDMA_DIR, or gorail/rdma in the user's cache folder.
func Dir() string {
	if d := os.Getenv(EnvDir); d != "" {
		return d
	}
	cache, err := os.UserCacheDir() // XDG_CACHE_HOME, ~/.cache
	if err != nil {
		cache = filepath.Join(os.TempDir(), "cache")
	}
	return filepath.Join(cache, "gorail", "rdma")
}

func kernel() string { return filepath.Join(Dir(), "linux") }

// Check returns an error with the reason if this machine cannot run guests.
func Check() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("guests with RDMA devices need root, for namespaces and mounts")
	}
	if _, err := os.Stat(kernel()); err != nil {
		return fmt.Errorf("kernel for guests with RDMA devices not found: %w; build the kernel with tools/rdma-kernel.sh", err)
	}
	return namespaces()
}

// Need skips the test if this machine cannot run guests. With CI set the test fails.
func Need(t testing.TB) {
	t.Helper()
	if err := Check(); err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
}

// Run runs a command in a new guest and waits for its end. The caller checks the exit status. The test fails if the guest ends without
// an exit status of the command.
func Run(t testing.TB, g Guest, command ...string) Result {
	t.Helper()
	Need(t)
	r, err := g.Run(command...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Run runs a command in a new guest, like the function Run. The error is about the guest, never about the command.
func (g Guest) Run(command ...string) (Result, error) {
	m, err := g.machine("", nil, command)
	if err != nil {
		return Result{}, err
	}
	return m.run()
}

// Shell returns a command that runs a bash script, which stops at the first error.
func Shell(script string) []string { return []string{"bash", "-euc", script} }

// script returns the guest's shell script: it creates the rails, then runs the command.
func (g Guest) script(side string, command []string) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	if side != "" {
		fmt.Fprintf(&b, "echo %s >/proc/sys/kernel/hostname; export %s=%s\n", side, EnvSide, side)
	}
	if g.Rails > 0 {
		b.WriteString("/bed/rails -n " + fmt.Sprint(g.Rails))
		option := func(flag, value string) {
			if value != "" {
				b.WriteString(" " + flag + " " + quote(value))
			}
		}
		option("-k", string(g.Kind))
		option("-r", g.Rate)
		option("-d", g.Delay)
		option("-m", fmt.Sprint(g.mtu()))
		option("-s", side)
		b.WriteString(" || exit 125\n")
		fmt.Fprintf(&b, "export %s=%s %s=%d\n", EnvKind, quote(string(g.Kind)), EnvRails, g.Rails)
	}
	if g.Dir != "" {
		b.WriteString("cd " + quote(g.Dir) + " || exit 125\n")
	}
	for _, e := range g.Env {
		b.WriteString("export " + quote(e) + "\n")
	}
	b.WriteString("exec")
	for _, w := range command {
		b.WriteString(" " + quote(w))
	}
	return b.String()
}

func (g Guest) mtu() int {
	if g.MTU == 0 {
		return 4200
	}
	return g.MTU
}

// quote quotes a word for the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// tail keeps the last bytes written: between keep and 2*keep.
type tail struct {
	keep int
	buf  bytes.Buffer
}

func (w *tail) Write(p []byte) (int, error) {
	w.buf.Write(p)
	if over := w.buf.Len() - w.keep; over > w.keep {
		w.buf.Next(over)
	}
	return len(p), nil
}
