// Package guest has a program that uses signals as hosts of the plugin do (host/), with NIXL's agents in it or without. Its tests compare
// what comes of each signal: the plugin must not change it.
package guest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/native"
	"gorail/test/testenv"
)

var program = native.Part{Name: "host", Program: true, Flags: []string{"-pthread"}, Include: []string{"nixlapi"}, Dirs: []string{"test/guest/host"},
	Sources: []string{"nixlapi/capi.c"}, Libs: []string{"-ldl"}}

// How a host takes a signal.
const (
	Blocked = "blocked" // and read by signalfd
	Awaited = "awaited" // blocked, and read by sigtimedwait
	Handler = "handler"
	OnStack = "onstack" // a handler with SA_ONSTACK
	Default = "default"
	Ignored = "ignored"
)

// Case is a row of the matrix.
type Case struct {
	How    string
	Before bool // all is set before NIXL is loaded
	Busy   bool // transfers all the time
	Frame  int  // bytes of the handler's stack frame
}

// words are the program's first arguments.
func (c Case) words() []string {
	out := []string{c.How, "after", "idle"}
	if c.Before {
		out[1] = "before"
	}
	if c.Busy {
		out[2] = "busy"
	}
	return out
}

func (c Case) String() string { return strings.Join(c.words(), "/") }

// Host is a running program.
type Host struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed when the program ends
	ended error
	pings int
	stops int // how often line found it stopped, and continued it

	patience time.Duration // bounds all waits for the program
}

// patience bounds waits for a program that must answer.
const patience = time.Minute

// Build builds the program, and returns its path.
func Build(t testing.TB) string { return program.Build(t) }

// environment is that of a program with NIXL.
func environment(env testenv.Env) ([]string, string, error) {
	lib, err := nixlapi.LibDir(env.WheelDir)
	if err != nil {
		return nil, "", err
	}
	own := append(os.Environ(), "NIXL_PLUGIN_DIR="+env.PluginDir, "NIXL_LOG_LEVEL=ERROR",
		"LD_LIBRARY_PATH="+lib+":"+nixlapi.BundleDir(env.WheelDir))
	return own, filepath.Join(lib, "libnixl_capi.so"), nil
}

// Start starts the program for signals, and waits until it is ready. Without a backend it runs without NIXL.
func Start(t testing.TB, path, backend string, c Case, signals ...int) *Host {
	t.Helper()
	with := testenv.Need(t)
	if backend != "" {
		with.PluginDir = with.PluginDirOf(backend)
	}
	env, library, err := environment(with)
	require.NoError(t, err)
	if backend == "" {
		library = "-"
	}
	args := append(c.words(), strconv.Itoa(c.Frame), library, backend)
	for _, s := range signals {
		args = append(args, strconv.Itoa(s))
	}
	h := &Host{t: t, cmd: exec.Command(path, args...), lines: make(chan string, 1<<10), patience: patience}
	h.cmd.Env, h.cmd.Stderr = env, io.Discard
	h.in, err = h.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := h.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, h.cmd.Start())
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
		h.ended = h.cmd.Wait()
		close(h.lines)
	}()
	t.Cleanup(func() { _ = h.cmd.Process.Kill() })
	require.Equal(t, "ready", h.line())
	return h
}

// line returns the next line of the program, or how it ended. A program that is stopped goes on: a signal that stops it may do so after the
// program has answered, since another thread may have taken it.
func (h *Host) line() string {
	for end := time.Now().Add(h.patience); time.Now().Before(end); {
		select {
		case s, more := <-h.lines:
			if more {
				return s
			}
			return h.fate()
		case <-time.After(time.Millisecond):
			if h.state() == "T" {
				h.stops++
				_ = syscall.Kill(h.cmd.Process.Pid, syscall.SIGCONT)
			}
		}
	}
	return "silent"
}

// fate says how the program has ended.
func (h *Host) fate() string {
	status := h.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return "ended by signal " + strconv.Itoa(int(status.Signal()))
	}
	return "ended with status " + strconv.Itoa(status.ExitStatus())
}

// state is the process's state in /proc, such as "T".
func (h *Host) state() string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
	if err != nil {
		return "gone"
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}

// Send sends a signal, and returns what comes of it: who took it, how the program ended, or that it lives on. stops counts those
// that stopped it.
func (h *Host) Send(sig int, how string) string {
	if err := syscall.Kill(h.cmd.Process.Pid, syscall.Signal(sig)); err != nil {
		return err.Error()
	}
	if how != Default && how != Ignored {
		return h.line()
	}
	// Nobody says anything, unless the program ends.
	h.pings++
	ping := fmt.Sprintf("ping %d", h.pings)
	_, _ = io.WriteString(h.in, ping+"\n")
	s := h.line()
	for end := time.Now().Add(h.patience); s == ping && h.pending(sig) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if s != ping {
		return s
	}
	return "lives"
}

// pending reports whether no thread of the process has taken the signal so far.
func (h *Host) pending(sig int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(b), "ShdPnd:\t")
	mask, _, _ := strings.Cut(rest, "\n")
	set, _ := strconv.ParseUint(mask, 16, 64)
	return set&(1<<(sig-1)) != 0
}

// End closes the program's input, and returns how it ended.
func (h *Host) End() string {
	_ = h.in.Close()
	for {
		if s := h.line(); strings.HasPrefix(s, "ended") || s == "silent" {
			return s
		}
	}
}

// output runs the program to its end with three arguments after its way, and returns what it printed.
func output(t testing.TB, path, backend string, how ...string) (string, error) {
	return outputWith(t, nil, path, backend, how...)
}

// outputWith is output with more variables of the environment.
func outputWith(t testing.TB, setenv []string, path, backend string, how ...string) (string, error) {
	t.Helper()
	env, library, err := environment(testenv.Need(t))
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), path, append(how, library, backend)...)
	c.Env = append(env, setenv...)
	out, err := c.CombinedOutput()
	return string(out), err
}
