package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/door"
	"gorail/gorail/drive"
	"gorail/gorail/measure"
	"gorail/gorail/side"
	"gorail/test/testenv"
)

// config is a benchmark of three points, as a study writes it.
func config(t *testing.T, env testenv.Env) *drive.Config {
	point := measure.Point{Op: "WRITE", Block: 64, Batch: 1, Depth: 1, Threads: 1}
	c := &drive.Config{Subjects: []measure.Subject{{Title: "GORAIL", Backend: "GORAIL"}}, Pace: measure.Pace{Warmup: 1, Time: 50 * time.Millisecond, Limit: time.Minute},
		Repeats: 1, Sync: "none", Target: "polls", Notify: true, Check: true, Wheel: env.WheelDir, PluginDir: func(string) string { return env.PluginDir },
		Step: func(string) {}, Warn: func(_ string, why error) { t.Log(why) }}
	for i := range 3 {
		point.Block = uint64(64 << i)
		c.Points = append(c.Points, point)
	}
	return c
}

// serving returns the process that serves another host.
func serving(t *testing.T) int {
	dirs, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(d)))
		text, _ := os.ReadFile(d)
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(d), "stat"))
		if strings.Contains(string(text), "GORAIL_BENCH_REMOTE=1") && strings.Contains(string(stat), fmt.Sprintf(" %d ", os.Getpid())) && !strings.Contains(string(stat), ") Z ") {
			return pid
		}
	}
	t.Fatal("no process serves")
	return 0
}

// kill kills a process soon, while a point of a second is measured.
func kill(t *testing.T, pid int) {
	timer := time.AfterFunc(200*time.Millisecond, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	t.Cleanup(func() { timer.Stop() })
}

// TestBenchTargetDies: a target is killed in the middle. Its point fails with the reason. What was measured is kept, and the next
// point has new processes.
func TestBenchTargetDies(t *testing.T) {
	env := needs(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	t.Setenv("NIXL_WHEEL_DIR", env.WheelDir)
	l, err := door.Listen("0", io.Discard)
	require.NoError(t, err)
	go func() { _ = side.Listen(l) }()
	defer l.Close()
	c := config(t, env)
	c.Connect, c.Pace.Time = door.At(l.Place()), time.Second
	steps := 0
	c.Step = func(string) {
		if steps++; steps == 2 {
			kill(t, serving(t))
		}
	}
	r := c.Run(context.Background())
	require.Len(t, r.Samples, 3)
	require.NotEmpty(t, r.Samples[1].Failed)
	t.Log(r.Samples[1].Failed)
	for _, i := range []int{0, 2} {
		require.Empty(t, r.Samples[i].Failed)
		require.True(t, r.Samples[i].Verified)
	}
}

// early and other are processes of other versions on another host.
type (
	early struct{}
	other struct{}
)

func (early) Open(side.None, *side.None) error { return nil }

func (other) Hello(_ side.HelloArgs, out *side.HelloOut) error {
	out.Protocol = 99
	return nil
}

// TestBenchOtherVersion: a peer of another version is named as such.
func TestBenchOtherVersion(t *testing.T) {
	env := needs(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	s := rpc.NewServer()
	require.NoError(t, s.RegisterName("Side", early{}))
	go s.Accept(l)
	for says, at := range map[string]string{"an earlier version of gorail, answers there": l.Addr().String() + "#x", "its commands have version 99": behind(t, other{})} {
		_, log, err := gorail(append([]string{"bench", "--wheel", env.WheelDir, "--connect", at, "--shapes", "4K", "--repeats", "1", "--limits", ""}, short...)...)
		require.ErrorContains(t, err, "1 points failed")
		require.Contains(t, log, says)
		require.Contains(t, log, "install the same version on both hosts")
	}
}

// behind serves callers with the token with a server in this process, as gorail bench --listen does with a process. It returns the place.
func behind(t *testing.T, server any) (place string) {
	l, err := door.Listen("0", io.Discard)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	r := rpc.NewServer()
	require.NoError(t, r.RegisterName("Side", server))
	go func() {
		_ = l.Serve(func(c *net.TCPConn) (door.Process, error) {
			f, err := c.File()
			if err != nil {
				return nil, err
			}
			conn, err := net.FileConn(f)
			go r.ServeConn(conn)
			return here{}, errors.Join(err, f.Close())
		})
	}()
	return l.Place()
}

// here is a process that serves in this one.
type here struct{}

func (here) Pid() int                    { return os.Getpid() }
func (here) Signal(syscall.Signal) error { return nil }
func (here) Wait() (string, bool)        { return "", true }

// TestBenchOutput: every format has the machine, the versions and the command. A file on a full disk keeps the run elsewhere.
func TestBenchOutput(t *testing.T) {
	env := needs(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	args := append([]string{"bench", "--wheel", env.WheelDir, "--shapes", "4K", "--repeats", "1", "--limits", ""}, short...)
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("run.md"), []byte("of before"), 0o600))
	out, _, err := gorail(append(args, "--output", "json="+at("run.json")+",md="+at("run.md"))...)
	require.NoError(t, err)
	require.Empty(t, out)
	for _, name := range []string{"run.json", "run.md"} {
		text, err := os.ReadFile(at(name))
		require.NoError(t, err)
		for _, says := range []string{"Linux", "gorail " + version, "nixl", "gorail bench --"} {
			require.Contains(t, string(text), says, name)
		}
		require.NotContains(t, string(text), "of before")
	}

	out, _, err = gorail(append(args, "--output", "table,md=/dev/full")...)
	require.ErrorContains(t, err, "md is not written to /dev/full: write /dev/full: no space left on device")
	require.Contains(t, out, "4 KiB")
	kept, err := filepath.Glob(at("gorail-*.html"))
	require.NoError(t, err)
	require.Len(t, kept, 1)
	text, err := os.ReadFile(kept[0])
	require.NoError(t, err)
	require.Contains(t, string(text), "4 KiB")

	t.Setenv("TMPDIR", at("none"))
	_, _, err = gorail(append(args, "--output", "md=/dev/full")...)
	require.ErrorContains(t, err, "nor can the page be kept in "+at("none"))
	_, _, err = gorail(append(args, "--output", "md="+at("no/such/folder.md"))...)
	require.ErrorContains(t, err, "no such file or directory")
}
