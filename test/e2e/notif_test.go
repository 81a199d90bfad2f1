package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/pattern"
	"gorail/nixlapi"
	"gorail/test/worker"
)

// TestNotifAlone sends notifications without a transfer: text, empty, binary.
func TestNotifAlone(t *testing.T) {
	t.Parallel()
	p := pair(t)
	p.ini.Learn(p.tgt)
	p.ini.Polling(true) // a backend without a progress thread sends in the sender's polls
	for _, msg := range [][]byte{[]byte("hello"), {}, {0, 1, 0, 255}, []byte("last")} {
		require.NoError(t, p.ini.GenNotif("bob", msg))
		got := p.tgt.WaitNotifs(1, limit)
		require.Len(t, got, 1)
		require.Equal(t, "alice", got[0].From)
		pattern.Same(t, msg, got[0].Msg, "%q", got[0].Msg)
	}
}

// TestNotifBig sends messages up to 16 MiB, with sizes around those at which backends split a message.
func TestNotifBig(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(4096)
	p.ini.Polling(true)
	for i, size := range []int{255, 256, 1023, 4096, 8191, 8192, 65535, 65537, 1 << 20, 4<<20 + 1, 16 << 20} {
		msg := make([]byte, size)
		pattern.Fill(msg, uint64(i), 0)
		require.NoError(t, p.ini.GenNotif("bob", msg))
		got := p.tgt.WaitNotifs(1, limit)
		require.Len(t, got, 1, size)
		pattern.Same(t, msg, got[0].Msg, size)

		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: msg})
		x.Do(limit)
		got = p.tgt.WaitNotifs(1, limit)
		require.Len(t, got, 1, size)
		pattern.Same(t, msg, got[0].Msg, size)
		require.NoError(t, x.Release())
	}
}

// TestNotifUnread: the sender goes on while the receiver does not poll. The receiver gets every notification when it
// polls.
func TestNotifUnread(t *testing.T) {
	t.Parallel()
	const n = 5000
	p := quietPair(t)
	a, b := p.buffers(1 << 20)
	require.Nil(t, p.ini.GenNotifsAsync("bob", "u", n).Wait().Err)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("w")})
	l := x.Loop(worker.LoopArgs{N: 100, Timeout: limit})
	require.Equal(t, 100, l.Done, l.Status)
	got := p.tgt.WaitNotifs(n+100, limit)
	require.Len(t, got, n+100)
	alone := 0
	for _, g := range got {
		if g.Msg[0] == 'u' {
			require.Equal(t, worker.Seq("u", alone), g.Msg)
			alone++
		}
	}
	require.Equal(t, n, alone)
	b.Want(seedA)
}

// TestNotifManySenders: three senders notify a receiver that has not loaded their metadata.
func TestNotifManySenders(t *testing.T) {
	t.Parallel()
	const senders, n = 3, 300
	tgt := start(t, "bob")
	tgt.Polling(true)
	for i := range senders {
		name := string(worker.Seq("sender-", i))
		s := start(t, name)
		s.Learn(tgt)
		require.Nil(t, s.GenNotifsAsync("bob", name+":", n).Wait().Err)
		require.False(t, tgt.Knows(name))
	}
	next := map[string]int{}
	got := tgt.WaitNotifs(senders*n, limit)
	require.Len(t, got, senders*n)
	for _, g := range got {
		require.Equal(t, worker.Seq(g.From+":", next[g.From]), g.Msg)
		next[g.From]++
	}
	require.Len(t, next, senders)
}

// visits is the least number of notifications of each pattern. GORAIL_VISITS sets it.
func visits() int {
	if n, err := strconv.Atoi(os.Getenv("GORAIL_VISITS")); err == nil {
		return n
	}
	return rounds(100, 400)
}

// TestRemoveDelivers: remove_remote_agent follows right after accepted notifications. All of them arrive in order, however
// often the target polls.
func TestRemoveDelivers(t *testing.T) {
	t.Parallel()
	n := visits()
	for _, pattern := range []struct {
		name string
		args worker.VisitArgs
	}{
		{"write", worker.VisitArgs{N: n, Transfer: true, Op: nixlapi.Write}},
		{"read", worker.VisitArgs{N: n, Transfer: true, Op: nixlapi.Read}},
		{"alone", worker.VisitArgs{N: n, Alone: 1}},
		{"200_alone", worker.VisitArgs{N: (n + 199) / 200, Alone: 200}},
		{"write_and_199", worker.VisitArgs{N: (n + 199) / 200, Transfer: true, Op: nixlapi.Write, Alone: 199}},
	} {
		t.Run(pattern.name, func(t *testing.T) {
			p := quietPair(t)
			a, b := p.buffers(64 << 10)
			require.NoError(t, p.ini.Invalidate("bob"))
			in := pattern.args
			in.Prefix, in.Blob, in.Local, in.Remote, in.Timeout = "v", p.tgt.Metadata(), a.All(), b.All(), 5*long
			each := in.Alone
			if in.Transfer {
				each++
			}
			visit := func(t *testing.T) {
				accepted, err := p.ini.Visit(in)
				require.NoError(t, err, "%s", p.ini.Output())
				require.Equal(t, in.N*each, accepted)
			}
			check := func(t *testing.T) {
				got := p.tgt.WaitNotifs(in.N*each, limit)
				require.Len(t, got, in.N*each, "%s\n%s", p.ini.Output(), p.tgt.Output())
				for i, g := range got {
					require.Equal(t, string(worker.Seq("v", i)), string(g.Msg))
				}
			}
			t.Run("target_polls_densely", func(t *testing.T) { p.tgt.Polling(true); visit(t); check(t) })
			t.Run("target_polls_every_5ms", func(t *testing.T) { p.tgt.PollEvery(5 * time.Millisecond); visit(t); check(t) })
			t.Run("target_polls_a_second_later", func(t *testing.T) {
				p.tgt.Polling(false)
				visit(t)
				time.Sleep(time.Second)
				check(t)
			})
		})
	}
}

// TestCloseDelivers: the sender's agent is destroyed, or its process exits normally, right after accepted notifications.
// All of them arrive in order. An engine that ends waits half a second for that at most. A starved machine may need longer to connect:
// then the log says that notifications may be lost, those that arrive are in order, and another visit takes the place of this one.
func TestCloseDelivers(t *testing.T) {
	t.Parallel()
	p := quietPair(t)
	const n, wanted, most = 200, 5, 30
	for visit, complete := 0, 0; complete < wanted; visit++ {
		require.Less(t, visit, most, "the engine waited long enough in %d visits", complete)
		w := process(t, worker.Options{Env: p.env})
		s := agent(w, p.env, "carol")
		s.Learn(p.tgt)
		prefix := string(worker.Seq("c", visit)) + "."
		require.Nil(t, s.GenNotifsAsync("bob", prefix, n).Wait().Err)
		if complete%2 == 0 {
			require.NoError(t, s.Close())
		} else {
			require.NoError(t, w.Exit())
		}
		arrived := 0
		gaveUp := func() bool {
			return strings.Contains(w.Output(), "engine closed before the peer confirmed the last notifications")
		}
		require.True(t, worker.Eventually(limit, func() bool {
			for _, g := range p.tgt.WaitNotifs(n-arrived, 100*time.Millisecond) {
				if strings.HasPrefix(string(g.Msg), prefix) { // or late, of a visit before
					require.Equal(t, string(worker.Seq(prefix, arrived)), string(g.Msg))
					arrived++
				}
			}
			return arrived == n || gaveUp()
		}), "%d of %d arrived\n%s", arrived, n, w.Output())
		if arrived == n {
			complete++
		} else {
			t.Logf("visit %d: %d of %d had arrived when the engine gave up", visit, arrived, n)
		}
	}
}

// TestTargetAsleep: the target exports its metadata and then calls nothing, not even getNotifs. All transfers complete,
// the first one included.
func TestTargetAsleep(t *testing.T) {
	t.Parallel()
	eachProgress(t, func(t *testing.T, o option) {
		eachOp(t, func(t *testing.T, op nixlapi.Op) {
			p := quietPair(t, o)
			la, lb := scattered(0, 8192, 100, 300, 1), scattered(0, 8192, 64, 300, 2)
			a, b := p.ini.Buffer(la.End(), seedA), p.tgt.Buffer(lb.End(), seedB)
			p.ini.Learn(p.tgt)
			x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.At(la), Remote: b.At(lb), Peer: "bob", Notif: []byte("n")})
			l := x.Loop(worker.LoopArgs{N: 50, Timeout: limit})
			require.Equal(t, 50, l.Done, "the target calls nothing; status %s", l.Status)
			require.NoError(t, p.ini.GenNotif("bob", []byte("end")))
			p.ini.Polling(true)
			require.Len(t, p.tgt.WaitNotifs(51, limit), 51)
			want(op, a, b, la, lb)
		})
	})
}

// TestInitiatorAsleep: the initiator posts a transfer and does not ask for its status. The data and the notification
// arrive before it asks.
func TestInitiatorAsleep(t *testing.T) {
	t.Parallel()
	for _, size := range []uint64{100, 16 << 20} {
		p := pair(t)
		a, b := p.buffers(size)
		// The first transfer connects. The second one is the test.
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("a")})
		x.Do(limit)
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Fill(seedB)
		require.False(t, x.Post().Failed())
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Want(seedA)
		require.Equal(t, nixlapi.Success, x.Wait(limit))
	}
}

// TestFirstPostAsleep: the initiator does not ask for the status of its first transfer either.
func TestFirstPostAsleep(t *testing.T) {
	t.Parallel()
	p := pair(t)
	a, b := p.buffers(1 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("f")})
	require.False(t, x.Post().Failed())
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedA)
}

// TestNotifAfterData: when the target has the notification, it has the data.
func TestNotifAfterData(t *testing.T) {
	t.Parallel()
	const n, size = 200, 300_001
	p := pair(t)
	a, b := p.buffers(size)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	for i := range uint64(n) {
		a.Fill(1000 + i)
		require.False(t, x.Post().Failed())
		done := x.WaitAsync(limit) // beside the target's check
		require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
		b.Want(1000 + i)
		require.Equal(t, nixlapi.Success, done.Wait().Status)
	}
}
