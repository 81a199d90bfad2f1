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
	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/side"
	"gorail/gorail/study/env"
	"gorail/gorail/study/lab"
	"gorail/gorail/study/result"
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
	e := &env.Env{Version: "test", Effort: env.Smallest, Progress: env.NewProgress(io.Discard), Time: time.Millisecond}
	require.NoError(t, e.Find(w.WheelDir, ""))
	e.Plugins = w.PluginDir // without UCX
	var made *lab.Lab
	r := &result.Result{}
	e.Progress = env.NewProgress(writer(func(line string) {
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

// TestWords: what limits, in words, for machines that are not here.
func TestWords(t *testing.T) {
	port := doctor.Capacity{Port: 200_000, PCIe: 105_000, Card: "0000:01:00", Link: "x4 at 32 GT/s"}
	a := link{name: "mlx5_0", fabric: "verbs", gbps: 13.1, why: "its PCIe link x4 at 32 GT/s carries 105 Gbit/s", capacity: &port}
	b := a
	b.name = "mlx5_1"
	s := &study{Env: &env.Env{Peer: door.At("other")}, links: []link{a, b}}
	s.makeSets()
	require.Len(t, s.sets, 3)
	require.InDelta(t, 13.1, s.sets[2].gbps, 0.01, "two ports of one card")

	run := &measure.Run{}
	sample := func(subject, op string, gbps float64) {
		p := measure.Point{Op: op, Block: 1 << 30, Batch: 1, Depth: 1, Threads: 1}
		run.Samples = append(run.Samples, measure.Sample{Subject: subject, Point: p, Done: 1, Wall: time.Duration(float64(p.Block) / gbps)})
	}
	for _, x := range []struct {
		subject     string
		write, read float64
	}{{"mlx5_0", 13, 6}, {"mlx5_1", 13, 12.9}, {"all", 13.05, 13.05}, {"UCX all", 6.5, 6.5}} {
		sample(x.subject, "WRITE", x.write)
		sample(x.subject, "READ", x.read)
	}
	text := strings.Join(s.findings(run, "host memory"), "\n")
	for _, want := range []string{"99 %, the link is the limit", "mlx5_0: READ gives 46 % of WRITE: READ is held by the outstanding READs of a connection, 16 by default",
		"the ports share one PCIe link, which carries 105 of 210 Gbit/s", "UCX over the same rails (all): 6.50 GB/s by WRITE of 1 GiB; GORAIL moves 2.01 x it"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "mlx5_1: READ gives")

	tcp := link{name: "rail0", fabric: "tcp", gbps: 1}
	other := tcp
	other.name = "rail1"
	s = &study{Env: &env.Env{}, links: []link{tcp, other}, lab: &lab.Lab{}, plain: []float64{1, 1, 1.2}}
	require.Contains(t, s.whyNot(1.1, 2), "plain TCP over all at once gives 1.20 GB/s here, so the processors are the limit")
	require.Contains(t, s.whyNot(1.95, 2), "98 % of their sum")
	s.plain[2] = 2
	require.Contains(t, s.whyNot(1.1, 2), "the links have room")
	s.busy = true
	require.Contains(t, s.whyNot(1.1, 2), "other programs keep the cores busy")
}

// TestGPUs: each GPU's memory is measured over this machine's rails, without UCX.
func TestGPUs(t *testing.T) {
	w := testenv.Need(t)
	t.Setenv("GORAIL_PLUGIN_DIR", w.PluginDir)
	t.Setenv(cuda.EnvPath, imitation.Build(t).Path)
	e := &env.Env{Version: "test", Effort: env.Smallest, Progress: env.NewProgress(io.Discard), Time: time.Millisecond}
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
