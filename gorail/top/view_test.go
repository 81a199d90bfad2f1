package top

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/gorail/live"
)

// Any size has lines that fit, and the keys are in the last one.
func TestSizes(t *testing.T) {
	b := full(t)
	b.Rows[2].Agent = "漢字" + strings.Repeat("x", 100)
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 60; height += 3 {
			m := model{board: *b, width: width, height: height, offset: height}
			got := strings.Split(m.paint(), "\n")
			require.Len(t, got, height)
			for _, l := range got {
				require.LessOrEqual(t, ansi.StringWidth(l), width)
			}
			require.Contains(t, ansi.Strip(got[height-1]), "q quit  up, down"[:min(width-1, 16)])
		}
	}
}

// Names and log lines of others cannot control the terminal.
func TestClean(t *testing.T) {
	b := full(t)
	b.Rows[2].Agent = "a\x1b[2Jb\r"
	b.Rows[2].Log[0].Text = "x\x1b]0;title\x07\u202e\ny"
	var out strings.Builder
	for _, l := range lines(b) {
		out.WriteString(l.String() + "\n")
	}
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), "a?[2Jb?")
	require.Contains(t, out.String(), "x?]0;title?? y")
	m := model{board: *b, width: 160, height: 30}
	require.NotContains(t, m.paint(), "\x1b[2J")
}

// TestLatency: the bounds of histograms, powers of two of microseconds, have two significant digits.
func TestLatency(t *testing.T) {
	for power, want := range map[int]string{0: "1 µs", 6: "64 µs", 9: "510 µs", 10: "1.0 ms", 13: "8.2 ms", 14: "16 ms", 17: "130 ms", 20: "1.0 s", 24: "17 s"} {
		require.Equal(t, want, latency(time.Microsecond<<power))
	}
}

// TestByPeers: an engine that is a target shows what its peers say of their bytes, unless they said it long ago.
func TestByPeers(t *testing.T) {
	ann := full(t).Rows[2]
	i := slices.IndexFunc(ann.Peers, func(p stats.Peer) bool { return p.Direction == stats.Target && !p.Ended() })
	ann.Peers[i].Moves = &stats.Moves{WrittenRate: 3e9, ReadRate: 2e3}
	require.Contains(t, ann.byPeers()[0].String(), "W 3.0GB R 2.0kB, as 1 peer says; this process copies 1.0MB of it")
	ann.Rates.Engine.ForPeers = 0
	ann.Peers[i].Moves.Age = 2 * fresh
	require.Contains(t, ann.byPeers()[0].String(), "W 0B R 0B, as 1 peer says")
	ann.Peers[i].Moves.Age = stats.Never
	require.Contains(t, ann.byPeers()[0].String(), "W 0B R 0B, as 1 peer says")
	ann.Peers = ann.Peers[:0]
	require.Empty(t, ann.byPeers())
}

// TestCompressed: a rail whose bytes go out compressed shows by how much; others say nothing of it.
func TestCompressed(t *testing.T) {
	ann := full(t).Rows[2]
	k := ann.Live.Rails[0]
	k.Packed, k.PackedBytes = 143, 100
	require.Contains(t, ann.rail(&k).String(), "compressed 1.43x since start")
	k.Packed, k.PackedBytes = 0, 0
	require.NotContains(t, ann.rail(&k).String(), "compressed")
	all := len(ann.lines())
	ann.Live.Staged.Packed, ann.Live.Staged.PackedBytes = 143, 100
	lines := ann.lines()
	require.Len(t, lines, all+1)
	require.Contains(t, lines[all-1].String(), "compressed 1.43x since start")
}

type source struct{ n uint64 }

func (s *source) Live() (stats.Live, error) {
	s.n++
	return engine("ann", s.n), nil
}

// Once reads a socket twice and gives the rate between both. Transfer times are those since the start.
func TestOnce(t *testing.T) {
	folder := t.TempDir()
	server, err := stats.Listen(folder, "1", stats.Source{Live: (&source{}).Live}, nil)
	require.NoError(t, err)
	defer server.Close()
	var out bytes.Buffer
	require.NoError(t, Once(t.Context(), &out, live.Source{Folder: folder}.Read, time.Millisecond))
	require.Contains(t, out.String(), "34% W 1.1GB/s of 3.1GB/s")
	require.Contains(t, out.String(), "p50/p99 since start ≤4.0KiB <2 µs/<8 µs")
	require.ErrorIs(t, Once(t.Context(), &out, func(context.Context) ([]live.Engine, error) { return nil, os.ErrClosed }, 0), os.ErrClosed)
}
