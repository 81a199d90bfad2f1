package top

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/gorail/live"
)

// plainText is the screen without colours and without blanks at the ends of lines.
func plainText(s string) string {
	var out strings.Builder
	for l := range strings.Lines(ansi.Strip(s)) {
		out.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return out.String()
}

// Any size has lines that fit, and the keys are in the last one.
func TestSizes(t *testing.T) {
	b := full(t)
	b.Rows[0].Agent = "漢字" + strings.Repeat("x", 100)
	wider, higher := 7, 3
	if testing.Short() {
		wider, higher = 23, 9
	}
	for width := 1; width < 200; width += wider {
		for height := 1; height < 60; height += higher {
			s := screen{width: width, height: height, order: ByAgent, offset: height}
			lines := strings.Split(s.paint(b), "\n")
			require.Len(t, lines, max(1, min(height, len(lines))))
			require.LessOrEqual(t, len(lines), height)
			for _, l := range lines {
				require.LessOrEqual(t, ansi.StringWidth(l), width)
			}
			require.Contains(t, "q quit  s sort", ansi.Strip(strings.TrimSuffix(ansi.Truncate(lines[len(lines)-1], min(width, 14), ""), "…"))[:min(width-1, 6)])
		}
	}
}

// Names and log lines of others cannot control the terminal.
func TestClean(t *testing.T) {
	b := full(t)
	b.Rows[0].Agent = "a\x1b[2Jb\r"
	b.Rows[0].Log[0].Text = "x\x1b]0;title\x07\u202e\ny"
	var out bytes.Buffer
	require.NoError(t, write(&out, b))
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), "a?[2Jb?")
	require.Contains(t, out.String(), "x?]0;title?? y")
	s := screen{width: 160, height: 30, order: ByAgent}
	require.NotContains(t, s.paint(b), "\x1b[2J")
}

func TestKeys(t *testing.T) {
	b := full(t)
	s := screen{width: 80, height: 8, order: ByAgent}
	press := func(name string) string {
		require.False(t, s.key(name))
		return plainText(s.paint(b))
	}
	require.Contains(t, press("s"), "sort: rate")
	require.Contains(t, press("t"), "queued")
	require.Contains(t, press("?"), "this help, or back")
	require.Contains(t, press("esc"), "ann")
	require.Contains(t, press("down"), "1 lines above, 1 below")
	for range 50 {
		press("pgdown")
	}
	require.Contains(t, press("pgdown"), " 0 below")
	require.NotContains(t, press("home"), "lines above, 0 below")
	require.True(t, s.key("q"))
	require.True(t, s.key("ctrl+c"))
}

type source struct{ n uint64 }

func (s *source) Live() (stats.Live, error) {
	s.n++
	return engine("ann", s.n), nil
}

func (s *source) Trace(context.Context, time.Duration) (stats.Trace, error) {
	return stats.Trace{}, errors.New("none")
}

// Once reads a socket twice and gives the rate between both. Transfer times are those since the start.
func TestOnce(t *testing.T) {
	folder := t.TempDir()
	server, err := stats.Listen(folder, "1", &source{}, nil)
	require.NoError(t, err)
	defer server.Close()
	var out bytes.Buffer
	require.NoError(t, Once(t.Context(), &out, live.Source{Folder: folder}.Read, time.Millisecond))
	require.Contains(t, out.String(), "34% W 1.0GiB/s of 2.9GiB/s")
	require.Contains(t, out.String(), "p50/p99 since start ≤4.0KiB <2µs/<8µs")
	require.ErrorIs(t, Once(t.Context(), &out, func(context.Context) ([]live.Engine, error) { return nil, os.ErrClosed }, 0), os.ErrClosed)
}

var began = time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)

// engine is what an engine answers n seconds after its start.
func engine(agent string, n uint64) stats.Live {
	at := began.Add(time.Duration(n) * time.Second)
	link := func(rail string, index int, phase string) stats.Link {
		return stats.Link{Rail: rail, Index: index, Phase: phase}
	}
	l := stats.Live{
		Process: stats.Process{PID: 4711, Host: "node1", Command: "python3", Version: "1.2.3", Started: began, Now: at},
		Core:    map[string]uint64{"transfers_done": 1000 * n},
		Transfers: []stats.Transfer{
			{Peer: "bob", Op: "WRITE", State: stats.IsPosted, Bytes: 64 << 20, Left: 1 << 20, Age: 12.5, Idle: stats.Since(2 * time.Second), Rails: []string{"tcp/eth0", "tcp/eth1"}},
			{Peer: "cid", Op: "READ", State: stats.IsQueued, Bytes: 4096, Left: 4096, Age: 0.25, Idle: stats.Never, Reason: "waits for the peer"}},
		Log: []stats.Line{{Time: began, Level: "warn", Text: "rail down: peer=bob rail=tcp/eth1"}},
	}
	l.Snapshot = stats.New(agent, []stats.Rail{
		{Index: 0, Name: "tcp/eth0", Mbps: 25_000, Counts: stats.Counts{BytesWritten: n << 30, BytesRead: n << 20},
			Times: []stats.Times{{Most: 4096, Buckets: []uint64{0, 98 * n, 0, 2 * n}}, {Buckets: []uint64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n}}}},
		{Index: 1, Name: "tcp/eth1", Counts: stats.Counts{BytesRead: n << 28, Errors: 3, Fences: 1}, Times: []stats.Times{{Most: 4096, Buckets: []uint64{0, 0, 0, 0, n}}}},
		{Index: 2, Name: "sm/memory"},
	}, []stats.Peer{
		{Agent: "bob", Direction: stats.Initiator, Session: 1, State: "ready", Links: []stats.Link{link("tcp/eth0", 0, stats.Working), link("tcp/eth1", 1, "backing off")}},
		{Agent: "cid", Direction: stats.Target, Session: 2, State: "suspended", Links: []stats.Link{link("tcp/eth0", 0, stats.Working)}},
		{Agent: "old", Direction: stats.Target, Session: 3, State: "lost"},
	})
	return l
}

func answer(socket string, l stats.Live) live.Engine { return live.Engine{Socket: socket, Live: &l} }

// full is a board with three engines. Two do not answer.
func full(t *testing.T) *Board {
	b := &Board{}
	zoe := answer("/run/gorail/stats-2.sock", engine("zoe", 1))
	b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", engine("ann", 1)), zoe}, nil, began.Add(time.Second))
	silent := func(socket string) live.Engine {
		return live.Engine{Socket: socket, Error: "no answer: the process is stopped, or has no CPU time"}
	}
	b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", engine("ann", 3)), silent("/run/gorail/stats-2.sock"), silent("/run/gorail/stats-3.sock")},
		nil, began.Add(3*time.Second))
	require.Len(t, b.Rows, 3)
	return b
}

func TestTake(t *testing.T) {
	b := full(t)
	ann := b.Rows[0]
	require.Equal(t, live.Rates{Written: 1 << 30, Read: 1<<20 + 1<<28, Operations: 1000}, ann.Rates.Engine)
	require.True(t, ann.Rails[0].Nominal)
	require.Equal(t, 25e9/8, ann.Rails[0].Full)
	require.False(t, ann.Rails[1].Nominal)
	require.EqualValues(t, 1<<28, ann.Rails[1].Full, "the highest rate that was seen")
	require.EqualValues(t, 1<<28, ann.Rails[1].Rate())
	require.Equal(t, 2*time.Second, ann.Over)
	require.Len(t, ann.Times, 2)
	require.EqualValues(t, 202, ann.Times[0].Count(), "of the two seconds, over both rails")
	require.Zero(t, ann.Times[1].Most, "the largest class is the last")
	require.Equal(t, 2*time.Second, b.Rows[1].Silent)
	require.Equal(t, "zoe", b.Rows[1].Agent, "its last answer stays")
	require.Nil(t, b.Rows[2].Live)

	b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", engine("ann", 4))}, nil, began.Add(4*time.Second))
	require.Len(t, b.heard, 1, "ended engines are forgotten")
	require.Len(t, b.past, 1)
	require.Len(t, b.peaks, 3)
	for n := range uint64(30) {
		b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", engine("ann", 5+n))}, nil, began)
	}
	require.Equal(t, window*time.Second, b.Rows[0].Over)
	other := engine("ann", 40)
	other.Started = began.Add(time.Minute)
	b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", other)}, nil, began)
	require.Zero(t, b.Rows[0].Rates.Engine, "another engine at the same path")
	require.Zero(t, b.Rows[0].Over)
}
