package kv

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/result"
	"gorail/gorail/study/env"
	"gorail/gorail/study/kv/node"
)

// TestPhase: times are of complete requests alone.
func TestPhase(t *testing.T) {
	p := &phase{shape: node.Shape{Layers: 2}, requests: []request{
		{layers: 2, ready: 5, done: 9}, {layers: 2, ready: 5, done: 6}, {layers: 1, ready: 5, done: 100, failed: "backend error"}, {layers: 1, ready: 5}}}
	require.Equal(t, []time.Duration{1, 4}, p.times(nil))
	require.Equal(t, time.Duration(4), p.quantile(0.5))
	require.Len(t, p.failures(), 2)
}

// TestClocks: a time of another host's clock is that of ours, also while the two clocks drift apart.
func TestClocks(t *testing.T) {
	var m clocks
	require.Equal(t, time.Duration(77), m.ours(77), "a member of this host")
	m = clocks{{at: 1000, ahead: 5_000_000}, {at: 2000, ahead: 5_000_100}}
	require.Equal(t, time.Duration(1000), m.ours(5_001_000))
	require.InDelta(t, 2000, m.ours(5_002_100), 10, "clocks drift by far less than this 10 %")
	require.InDelta(t, 1500, m.ours(5_001_550), 10)
	m[1] = m[0] // it was killed
	require.Equal(t, time.Duration(1500), m.ours(5_001_500))
	s := &study{within: 2 * time.Millisecond}
	require.Equal(t, "WARN", s.clocks().Status)
	s.within = 40 * time.Microsecond
	require.Equal(t, "the decode nodes' clocks are known within 0.04 ms, and so is each time to the last block", s.clocks().Text)
}

// TestOptions: wrong options are errors before a process starts.
func TestOptions(t *testing.T) {
	for says, o := range map[string]Options{
		"one of each":                {Prefill: -1, Decode: 1},
		"16 together":                {Prefill: 8, Decode: 9},
		"--decode 2 at least":        {Prefill: 2, Decode: 1, Chaos: []string{"kill"}},
		"want campaign, or some of":  {Prefill: 2, Decode: 2, Chaos: []string{"fire"}},
		"--compare: a campaign":      {Prefill: 1, Decode: 1, Compare: []string{"UCX"}},
		"write NAME=VALUE":           {Prefill: 1, Decode: 1, Params: []string{"provider"}},
		"no backend NOSUCH":          {Prefill: 1, Decode: 1, Backend: "NOSUCH"},
		"--tokens must be 1 or more": {Prefill: 1, Decode: 1, Backend: "GORAIL", Tokens: -1},
	} {
		e := &env.Env{Plugins: t.TempDir()}
		if o.Backend == "GORAIL" {
			e.Plugins = plugins(t)
		}
		require.ErrorContains(t, Run(context.Background(), e, o, &result.Result{}), says)
	}
}

// plugins is a folder where a plugin seems to be.
func plugins(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libplugin_GORAIL.so"), nil, 0o600))
	return dir
}

// TestSection: the table names no rate that a row has not, no quantile of too few requests, and no speed where the time is that of the last layer alone.
func TestSection(t *testing.T) {
	shape := node.Shape{Layers: 2, Blocks: 2, Block: 1 << 20}
	list := []*phase{{title: "alone", shape: shape}, {title: "whole", shape: shape, rate: 20}, {title: "layers", shape: shape, rate: 20, mode: mode{layer: true}}}
	for i, n := range []int{9, 10, 100} {
		for range n {
			list[i].requests = append(list[i].requests, request{layers: 2, done: time.Millisecond})
		}
	}
	sec := section(list)
	require.Contains(t, sec.Text, "p99 needs 100 requests, p90 10.")
	got := map[string][]string{}
	for _, row := range sec.Tables[0].Rows {
		for i, c := range row {
			if i > 0 {
				got[row[0].String()] = append(got[row[0].String()], sec.Tables[0].Columns[i]+"="+c.String())
			}
		}
	}
	require.Equal(t, []string{"requests=9", "a second=", "ms p50=1", "p90=", "p99=", "longest=1", "GB/s of one at p50=4.19", "failed=0", "slots compared=0"}, got["alone"])
	require.Equal(t, []string{"requests=10", "a second=20", "ms p50=1", "p90=1", "p99=", "longest=1", "GB/s of one at p50=4.19", "failed=0", "slots compared=0"}, got["whole"])
	require.Equal(t, []string{"requests=100", "a second=20", "ms p50=1", "p90=1", "p99=1", "longest=1", "GB/s of one at p50=", "failed=0", "slots compared=0"}, got["layers"])
}
