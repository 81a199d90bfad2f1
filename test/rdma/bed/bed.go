// Package bed runs commands in throw-away kernels with software RDMA devices, as root, without touching the machine's own
// network: User-Mode Linux with rxe and siw built in (tools/rdma-kernel.sh), whose / is the host's / below a tmpfs.
//
// What the guests are good for is function, and throughput below some 200 MB/s; they have one CPU each, so their
// latencies say nothing. See README.md beside this package.
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

// EnvDir names the folder of the kernel.
const EnvDir = "GORAIL_RDMA_DIR"

// Variables that tell a command in a guest where it is.
const (
	EnvKind  = "BED_KIND"  // Guest.Kind
	EnvRails = "BED_RAILS" // Guest.Rails
	EnvSide  = "BED_SIDE"  // host A or B of a pair; not set where one guest is both
)

// Kind is a software RDMA driver.
type Kind string

const (
	RXE Kind = "rxe" // RoCE v2
	SIW Kind = "siw" // iWARP; within one guest its packets do not cross the rails, but lo
)

// Guest describes a guest. The zero value has no rails.
type Guest struct {
	Kind   Kind          // RDMA device at each end of a rail; "": plain network interfaces
	Rails  int           // 10.0.<rail>.1 at host A, .2 at host B; names: see rails.sh
	Rate   string        // of a rail in each direction, in tc's words ("200mbit"); "": as fast as it goes
	Delay  string        // added in each direction, in tc's words ("1ms")
	MTU    int           // of a rail's interfaces, bytes; 0: 4200, for RDMA's 4096
	Memory int           // MiB; 0: 2048. Taken from the host as it is used
	Limit  time.Duration // then the guest is killed; 0: 2 minutes
	Dir    string        // the command's working directory; "": /
	Env    []string      // NAME=value, beside PATH, HOME and TERM; the caller's environment is not handed down
	Stdout io.Writer     // gets the command's output as it comes, too; may be nil
	Stderr io.Writer
}

// Result is how a command ended.
type Result struct {
	Status         int // its exit status; 128 + n for signal n
	Stdout, Stderr string
	Took           time.Duration // with the kernel's start and end
}

// String is for failure messages.
func (r Result) String() string {
	return fmt.Sprintf("exit status %d after %v\n%s%s", r.Status, r.Took.Round(time.Millisecond), r.Stdout, r.Stderr)
}

// Dir is the folder of the kernel: GORAIL_RDMA_DIR, or gorail/rdma in the user's cache folder.
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

// Check says why there can be no guests on this machine, if so.
func Check() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("guests with RDMA devices need root (namespaces and mounts of their own)")
	}
	if _, err := os.Stat(kernel()); err != nil {
		return fmt.Errorf("no kernel for guests with RDMA devices: tools/rdma-kernel.sh builds it (%w)", err)
	}
	return namespaces()
}

// Need skips the test where there can be no guests; with CI set it fails.
func Need(t testing.TB) {
	t.Helper()
	if err := Check(); err != nil && os.Getenv("CI") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
}

// Run runs a command in a guest of its own and waits for its end. A status other than 0 is the caller's to judge; a guest
// that does not come so far fails the test.
func Run(t testing.TB, g Guest, command ...string) Result {
	t.Helper()
	Need(t)
	r, err := g.Run(command...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Run is the function Run without a test. The error is about the guest, never about the command.
func (g Guest) Run(command ...string) (Result, error) {
	m, err := g.machine("", nil, command)
	if err != nil {
		return Result{}, err
	}
	return m.run()
}

// Shell is a command that bash runs; it stops at the first error.
func Shell(script string) []string { return []string{"bash", "-euc", script} }

// script is what the guest runs: the rails, then the command.
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

// quote makes one word of the shell's.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// tail keeps the end of what is written to it.
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
