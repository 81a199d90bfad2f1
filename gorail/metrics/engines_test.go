package metrics

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/stats"
)

// childFolder makes the test binary a process with one engine.
const childFolder = "GORAIL_TEST_METRICS"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		if _, err := stats.Listen(folder, "child", stats.Source{Live: (&engine{snapshot("child", 1)}).Live}, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the test ends
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type engine struct{ live stats.Live }

func (e *engine) Live() (stats.Live, error) { return e.live, nil }

func serve(t *testing.T, folder, id string, l stats.Live) *stats.Server {
	s, err := stats.Listen(folder, id, stats.Source{Live: (&engine{l}).Live}, nil)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// child starts a process with one engine. stop stops it as SIGSTOP does.
func child(t *testing.T, folder string) (stop, resume func()) {
	c := exec.Command(os.Args[0])
	c.Env, c.Stderr = append(os.Environ(), childFolder+"="+folder), os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		in.Close()
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return func() {
			require.NoError(t, c.Process.Signal(unix.SIGSTOP))
			var status unix.WaitStatus
			_, err := unix.Wait4(c.Process.Pid, &status, unix.WUNTRACED, nil)
			require.NoError(t, err)
			require.True(t, status.Stopped())
		}, func() {
			require.NoError(t, c.Process.Signal(unix.SIGCONT))
		}
}

// snapshot is what an engine with two rails and three peers answers. n scales its counters.
func snapshot(agent string, n uint64) stats.Live {
	at := time.Unix(1_800_000_000, 0)
	link := func(rail string, index int, phase string, q stats.Queues, c stats.Counts) stats.Link {
		return stats.Link{Rail: rail, Index: index, PeerRail: "tcp/eth9", Phase: phase, Queues: q, Counts: c}
	}
	l := stats.Live{
		Process: stats.Process{PID: 7, Host: "h", Command: "python3", Version: "1.2.3", Started: at, Now: at.Add(time.Hour)},
		Core: map[string]uint64{"transfers_done": 10 * n, "transfers_failed": n, "notifs_sent": 3 * n, "notifs_received": 4 * n, "notif_duplicates": 0,
			"bad_messages": 0, "replayed_batches": n},
		Control:   map[string]any{"Established": 5, "Accepted": 6, "Lost": 1, "Resumed": 2, "BadToken": 3},
		Transfers: []stats.Transfer{{Peer: "bob", Op: "WRITE", State: stats.IsPosted, Age: 12.5, Idle: stats.Since(2 * time.Second)}, {Peer: "bob", Op: "READ", Age: 1}},
		LeftOut:   3,
	}
	l.Snapshot = stats.New(agent, []stats.Rail{
		{Index: 0, Name: "tcp/eth0", Device: "eth0", Fabric: "tcp", Mbps: 100_000, Links: 2, InFlight: 4096, Idle: stats.Since(time.Second),
			Counts: stats.Counts{BytesWritten: 1000 * n, BytesRead: 500 * n, Errors: n, Retries: 2 * n, Fences: n, Stalls: n},
			Times:  []stats.Times{{Most: 4096, Buckets: []uint64{1, 98 * n, 1}}, {Buckets: []uint64{0, 0, 0, 100}, Coarse: 9}}},
		{Index: 1, Name: "tcp/eth1", Device: "eth1", Fabric: "tcp", Idle: stats.Never},
	}, []stats.Peer{
		{Agent: "bob", Direction: stats.Initiator, State: "ready", Links: []stats.Link{
			link("tcp/eth0", 0, stats.Working, stats.Queues{Window: 1 << 20, Ops: 3, Credits: 25}, stats.Counts{}),
			link("tcp/eth1", 1, "backing off", stats.Queues{}, stats.Counts{})}},
		{Agent: "cid", Direction: stats.Target, State: "ready", Links: []stats.Link{
			link("tcp/eth0", 0, stats.Working, stats.Queues{Window: 1 << 20, Ops: 1, Messages: 2}, stats.Counts{})}},
		{Agent: "old", Direction: stats.Initiator, State: "lost", Links: []stats.Link{
			link("tcp/eth0", 0, "closed", stats.Queues{}, stats.Counts{})}},
	})
	l.Limits = map[string]uint64{"sessions": 2, "fences": 0}
	l.Staged = stats.Staged{Transfers: 4, Bytes: 400, Copies: 2, Packed: 300, PackedBytes: 210, Times: []stats.Times{{Most: 1 << 20, Buckets: []uint64{0, 4}}}}
	return l
}
