package top

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/gorail/live"
)

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
		{Index: 2, Name: "sm/memory", ForPeers: n << 20},
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
	require.Equal(t, "/run/gorail/stats-2.sock", b.Rows[0].Socket, "those that do not answer come first")
	require.Equal(t, 2*time.Second, b.Rows[0].Silent)
	require.Equal(t, "zoe", b.Rows[0].Agent, "its last answer stays")
	require.Nil(t, b.Rows[1].Live)
	ann := b.Rows[2]
	require.Equal(t, live.Rates{Written: 1 << 30, Read: 1<<20 + 1<<28, Operations: 1000, ForPeers: 1 << 20}, ann.Rates.Engine)
	times := ann.times()
	require.Len(t, times, 2)
	require.EqualValues(t, 303, times[0].Count(), "over both rails")
	require.Zero(t, times[1].Most, "the largest class is the last")

	b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", engine("ann", 4))}, nil, began.Add(4*time.Second))
	require.Len(t, b.heard, 1, "ended engines are forgotten")
	require.Len(t, b.Rows, 1)
	other := engine("ann", 40)
	other.Started = began.Add(time.Minute)
	b.Take([]live.Engine{answer("/run/gorail/stats-1.sock", other)}, nil, began)
	require.Zero(t, b.Rows[0].Rates.Engine, "another engine at the same path")
}
