package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/door"
	"gorail/gorail/measure"
	"gorail/gorail/side"
)

// short keeps a run short: its results do not matter here.
var short = []string{"--time", "20ms", "--warmup_iter", "2", "--timeout", "1m"}

// bench runs gorail bench and returns its JSON output. Every sample must have succeeded.
func bench(t *testing.T, args ...string) *measure.Run {
	file := filepath.Join(t.TempDir(), "run.json")
	out, log, err := gorail(append(append([]string{"bench", "--json", file}, short...), args...)...)
	require.NoError(t, err, "%s\n%s", out, log)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	r := &measure.Run{}
	require.NoError(t, json.Unmarshal(text, r))
	for _, s := range r.Samples {
		require.Empty(t, s.Failed)
		require.NotZero(t, s.Wall)
		if s.Point.Transfers() {
			require.True(t, s.Verified, "%s %+v", s.Subject, s.Point)
			require.NotZero(t, s.Done)
			require.Equal(t, s.Done, s.Lat.Count())
			require.Positive(t, s.Lat.Quantile(0.5))
		}
	}
	return r
}

// TestBenchCompare: two backends and the limits take turns, twice. Every point of each is present. Ratios
// can be made.
func TestBenchCompare(t *testing.T) {
	env := needs(t)
	most := children(t)
	r := bench(t, "--wheel", env.WheelDir, "--compare", "GORAIL,UCX", "--op_type", "write,READ", "--shapes", "64,20x1K", "--repeats", "2", "--mode", "transfer,notify,idle")
	require.Equal(t, 2, most(), "only the pair whose turn it is lives")
	require.Equal(t, []string{"GORAIL", "UCX"}, r.Subjects)
	require.Equal(t, measure.Limits, r.Limits)
	require.Len(t, r.Samples, 2*(2*(4+2)+3*4))
	require.Len(t, r.Pairs, 4)
	for _, p := range r.Pairs {
		require.NotZero(t, p.Create)
		require.NotZero(t, p.First)
	}
	for _, s := range r.Samples {
		if s.Point.Transfers() {
			require.Positive(t, s.CPU[0], "%s %+v", s.Subject, s.Point)
		}
		if s.Point.Transfers() && slices.Contains(r.Subjects, s.Subject) {
			require.Equal(t, s.Done, s.Post.Count(), "%s %+v", s.Subject, s.Point)
			require.LessOrEqual(t, s.Post.Quantile(0.5), s.Lat.Quantile(0.5))
		}
	}
	for _, p := range r.Points() {
		for _, s := range r.Subjects {
			require.Len(t, r.Cell(s, p).Samples, 2)
		}
		if p.Transfers() {
			require.Positive(t, measure.Ratio(r.Cell("GORAIL", p), r.Cell("UCX", p), measure.Sample.GBps).Median)
		}
	}
	require.Equal(t, "GORAIL", r.Samples[0].Subject)
	require.NotEqual(t, "GORAIL", r.Samples[len(r.Samples)/2].Subject, "another begins the second repeat")
}

// children counts our live child processes, and returns the maximum.
func children(t *testing.T) (most func() int) {
	stop, got := make(chan struct{}), make(chan int)
	pause := 5 * time.Millisecond
	if testing.Short() {
		pause = 20 * time.Millisecond // a look at all processes takes a millisecond
	}
	self := fmt.Sprint(os.Getpid())
	count := func() (n int) {
		dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, d := range dirs {
			text, _ := os.ReadFile(d)
			_, rest, _ := strings.Cut(string(text), ") ") // state, parent
			if f := strings.Fields(rest); len(f) > 1 && f[1] == self && f[0] != "Z" {
				n++
			}
		}
		return n
	}
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				got <- n
				return
			case <-time.After(pause):
				n = max(n, count())
			}
		}
	}()
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { close(stop); <-got }) })
	return func() (n int) {
		once.Do(func() { close(stop); n = <-got })
		return n
	}
}

// TestBenchScattered: several descriptors of a transfer, all verified.
func TestBenchScattered(t *testing.T) {
	env := needs(t)
	r := bench(t, "--wheel", env.WheelDir, "--start_block_size", "1K", "--max_block_size", "4K", "--start_batch_size", "8",
		"--max_batch_size", "16", "--op_type", "READ,WRITE", "--repeats", "1", "--limits", "")
	require.Len(t, r.Samples, 2*2*3)
}

// TestBenchLoad: several threads, several transfers in flight, a fixed number of transfers, a sleeping target.
func TestBenchLoad(t *testing.T) {
	env := needs(t)
	r := bench(t, "--wheel", env.WheelDir, "--shapes", "256", "--num_threads", "1,3", "--depth", "1,4", "--num_iter", "30", "--repeats", "1", "--limits", "memcpy,tcp",
		"--target", "sleeps", "--enable_pt")
	require.Len(t, r.Samples, 4+2*2)
	for _, s := range r.Samples {
		require.EqualValues(t, 30, s.Done, "%+v", s.Point)
	}
	require.Contains(t, r.Setup, "sync mode rw")
}

// TestBenchTwoHosts: a listener starts the target and takes no environment from the other host.
func TestBenchTwoHosts(t *testing.T) {
	env := needs(t)
	t.Setenv("NIXL_PLUGIN_DIR", env.PluginDir)
	t.Setenv("NIXL_WHEEL_DIR", env.WheelDir)
	l, err := door.Listen("0", io.Discard)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- side.Listen(l) }()
	r := bench(t, "--connect", l.Place(), "--shapes", "4K", "--repeats", "1")
	require.Equal(t, []string{"memcpy", "tcp"}, r.Limits)
	require.Len(t, r.Samples, 3)

	_, log, err := gorail(append([]string{"bench", "--connect", l.Place(), "--compare", "GORAIL+LD_BIND_NOW=1", "--limits", "", "--shapes", "4K", "--repeats", "1"}, short...)...)
	require.ErrorContains(t, err, "1 points failed")
	require.Contains(t, log, "have to be set where --listen runs")
	require.NoError(t, l.Close())
	require.Error(t, <-done)
}

// TestBenchBusy: the tool warns of other programs before it starts, and marks what was measured beside them.
func TestBenchBusy(t *testing.T) {
	env := needs(t)
	for range runtime.NumCPU()/4 + 1 {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		require.NoError(t, loop.Start())
		t.Cleanup(func() { _ = loop.Process.Kill(); _ = loop.Wait() })
	}
	out, log, err := gorail("bench", "--wheel", env.WheelDir, "--shapes", "4K", "--limits", "", "--repeats", "1", "--json", "-")
	require.NoError(t, err, log)
	require.Regexp(t, `warning: other programs use [0-9]+ % of the cores`, log)
	require.Regexp(t, `1 points: about [0-9]+ s\n1 of 1: GORAIL WRITE 4 KiB\n`, log)
	require.Regexp(t, `4 KiB +GORAIL\* `, out)
	require.Regexp(t, `"Busy": 0?\.?[0-9]`, out)
}

func TestBenchFlags(t *testing.T) {
	for _, tt := range []struct{ says, args string }{
		{"--memory", "--memory tape"}, {"--op_type", "--op_type PUT"}, {"--mode", "--mode fast"}, {"--shapes", "--shapes 4Q"}, {"--limits", "--limits light"},
		{"--target", "--target dies"}, {"--output", "--output xml"}, {"1 or more", "--num_threads 0"}, {"1 or more", "--start_block_size 0"},
		{"nothing to measure", "--start_block_size 1M --max_block_size 4K"}, {"nothing to measure", "--total_buffer_size 1K"},
		{"no backend NOSUCH", "--backend NOSUCH"}, {"named twice", "--compare UCX,UCX"}, {"not KEY=VALUE", "--compare UCX+tcp"},
		{"want whole, blocks or a model", "--layout gpt"}, {"llama-70b-tp8", "--layout gpt"}, {"--ids", "--layout blocks --ids worst"}, {"--shapes is for", "--layout blocks --shapes 4K"},
		{"1 or more", "--layout blocks --block-size 0"}, {"1 or more", "--blocks 0"},
		{"wants memory of a GPU", "--gpus 0"}, {"no memory", "--target_seg_type OBJ"},
		{"--mode MG", "--mode MG"}, {"json=run.json", "--output json="},
		{"not a size", "--max_block_size lots"}, {"unknown flag", "--fast"},
	} {
		_, _, err := gorail(append([]string{"bench", "--wheel", t.TempDir()}, strings.Fields(tt.args)...)...)
		require.ErrorContains(t, err, tt.says, tt.args)
	}
	plugins := t.TempDir()
	_, _, err := gorail("bench", "--wheel", t.TempDir(), "--plugins", plugins, "--backend", "UXC")
	require.ErrorContains(t, err, "backends that are there: none;")
	for _, name := range []string{"UCX", "GORAIL"} {
		require.NoError(t, os.WriteFile(filepath.Join(plugins, "libplugin_"+name+".so"), nil, 0o600))
	}
	_, _, err = gorail("bench", "--wheel", t.TempDir(), "--plugins", plugins, "--compare", "GORAIL,UXC")
	require.ErrorContains(t, err, "backends that are there: GORAIL, UCX;")
}
