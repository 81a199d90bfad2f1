package rails

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/bench/cuda"
	"gorail/gorail/doctor"
	"gorail/gorail/doctor/machine"
	"gorail/gorail/drive"
	"gorail/gorail/result"
	"gorail/gorail/side"
	"gorail/gorail/study/env"
	"gorail/gorail/study/lab"
	imitation "gorail/test/cuda"
	"gorail/test/skip"
	"gorail/test/testenv"
)

// TestMain lets the test binary run as a process of a benchmark and as gorail doctor.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) < 2:
		os.Exit(m.Run())
	case os.Args[1] == side.Command:
		err = side.Main()
	case os.Args[1] == machine.Command:
		err = machine.Child(os.Stdin, os.Stdout)
	case os.Args[1] == "doctor":
		err = doctor.Run(machine.Here("test", map[string]string{"provider": "tcp"})).JSON(os.Stdout)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestRailDies: a rail is cut in the middle. The numbers before it, and those over other rails, are kept; the others are named.
func TestRailDies(t *testing.T) {
	skip.UnlessRoot(t, "network namespaces")
	w := testenv.Need(t)
	t.Setenv("GORAIL_PLUGIN_DIR", w.PluginDir)
	t.Setenv("GORAIL_PEER_TIMEOUT", "1s")
	t.Setenv("GORAIL_CONNECT_TIMEOUT", "1s")
	e := &env.Env{Version: "test", Effort: env.Smallest, Progress: drive.NewProgress(io.Discard), Time: time.Millisecond}
	require.NoError(t, e.Find(w.WheelDir, ""))
	e.Plugins = w.PluginDir // without UCX
	var made *lab.Lab
	r := &result.Result{}
	e.Progress = drive.NewProgress(writer(func(line string) {
		if strings.Contains(line, "rail0 WRITE") {
			require.NoError(t, made.Cut(0, true))
		}
	}))
	require.NoError(t, Run(context.Background(), e, Options{Lab: "rails=2,rate=400mbit", made: func(l *lab.Lab) { made = l }}, r))
	require.NotEmpty(t, r.Failed)
	require.Contains(t, r.Failed[0], "rail0: WRITE")
	require.NotEmpty(t, r.Sections)
	require.Contains(t, strings.Join(r.Findings, "\n"), "All 2 rails")
}

type writer func(line string)

func (w writer) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

// TestGPUs: each GPU's memory is measured over this machine's rails, without UCX.
func TestGPUs(t *testing.T) {
	w := testenv.Need(t)
	t.Setenv("GORAIL_PLUGIN_DIR", w.PluginDir)
	t.Setenv(cuda.EnvPath, imitation.Build(t).Path)
	e := &env.Env{Version: "test", Effort: env.Smallest, Progress: drive.NewProgress(io.Discard), Time: time.Millisecond}
	require.NoError(t, e.Find(w.WheelDir, ""))
	e.Plugins = w.PluginDir
	r := &result.Result{}
	err := Run(context.Background(), e, Options{}, r)
	if err != nil && strings.Contains(err.Error(), "no rail but shared memory") {
		skip.OrFail(t, err)
	}
	require.NoError(t, err)
	require.Empty(t, r.Failed)
	var titles []string
	for _, s := range r.Sections {
		titles = append(titles, s.Title)
	}
	require.Subset(t, titles, []string{"WRITE, host memory", "WRITE, memory of GPU 0", "READ, memory of GPU 0"})
}
