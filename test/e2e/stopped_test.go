package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// stops are the times for which a process is stopped. GORAIL_STOP sets another time.
func stops(t *testing.T) []time.Duration {
	t.Helper()
	if s := os.Getenv("GORAIL_STOP"); s != "" {
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		return []time.Duration{d}
	}
	return []time.Duration{3 * time.Second, 9 * time.Second}[:rounds(1, 2)]
}

// stopped is a pair with one process that is stopped for some time.
type stopped struct {
	*pairOf
	a, b  *worker.Buf
	write *worker.Xfer
	read  *worker.Xfer
	sent  int
	got   []nixlapi.Notif
}

// phases are the moments of the stop. The target is stopped, in the last phase the initiator. begin returns the transfer
// that is then in progress, or nil.
var phases = []struct {
	name  string
	begin func(s *stopped) *worker.Xfer
}{
	{"connecting", func(s *stopped) *worker.Xfer { s.tgt.Stop(); return s.post(s.write) }}, // stopped before the first post
	{"idle", func(s *stopped) *worker.Xfer { s.write.Do(limit); s.tgt.Stop(); return nil }},
	{"write", func(s *stopped) *worker.Xfer { s.warm(); s.post(s.write); s.tgt.Stop(); return s.write }},
	{"read", func(s *stopped) *worker.Xfer { s.warm(); s.post(s.read); s.tgt.Stop(); return s.read }},
	{"notification", func(s *stopped) *worker.Xfer { s.write.Do(limit); s.notify(200); s.tgt.Stop(); return nil }},
	{"initiator", func(s *stopped) *worker.Xfer { s.warm(); s.post(s.write); s.ini.Stop(); return s.write }},
}

// warm connects. Afterwards the two buffers differ.
func (s *stopped) warm() { s.write.Do(limit); s.b.Fill(seedB) }

func (s *stopped) post(x *worker.Xfer) *worker.Xfer { x.Post(); return x }

func (s *stopped) notify(n int) {
	for range n {
		if s.ini.GenNotif("bob", []byte("n")) != nil {
			return
		}
		s.sent++
	}
}

// TestStoppedPeers: a target or an initiator is stopped for some time, with and without transfers posted meanwhile. The
// transfer in progress ends, with success or an error. Every later transfer succeeds, and the application does nothing
// for it. With GORAIL_STOP_APART the phases run one after the other, for machines on which twelve processes are too many.
func TestStoppedPeers(t *testing.T) {
	t.Parallel()
	for _, d := range stops(t) {
		for _, meanwhile := range []bool{true, false}[:rounds(1, 2)] {
			t.Run(fmt.Sprintf("%v/posts_meanwhile=%v", d, meanwhile), func(t *testing.T) {
				if os.Getenv("GORAIL_STOP_APART") == "" {
					standStill(t, d, meanwhile, 0, len(phases), nil)
					return
				}
				for i, p := range phases {
					t.Run(p.name, func(t *testing.T) { standStill(t, d, meanwhile, i, i+1, nil) })
				}
			})
		}
	}
}

// TestStoppedForAMinute: 60 s are less than the deadlines here. Nothing is lost and no peer is declared dead: the transfer in progress
// succeeds with equal bytes, and neither side's log says that a session ended. With the default deadlines (xfer_timeout is 30 s) the
// transfer may fail, and no session ends, either.
func TestStoppedForAMinute(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("stops a process for a minute")
	}
	for name, opts := range map[string][]option{"default": nil, "patient": {params("xfer_timeout", "5m", "connect_timeout", "5m")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := 0
			if opts == nil {
				first = 1 // connect_timeout is 30 s
			}
			for _, s := range standStill(t, time.Minute, false, first, len(phases), func(s *stopped, x *worker.Xfer, st nixlapi.Status) {
				if opts != nil {
					require.Equal(t, nixlapi.Success, st, "%s\n%s", s.ini.Output(), s.tgt.Output())
					if x == s.read {
						s.a.Want(seedB)
					} else {
						s.b.Want(seedA)
					}
				}
			}, opts...) {
				for _, text := range []string{s.ini.Output(), s.tgt.Output()} {
					for _, end := range []string{"peer lost", "session with a peer suspended"} {
						require.NotContains(t, text, end)
					}
				}
			}
		})
	}
}

// standStill runs phases at the same time. One goroutine drives all agents: it stops them one after the other, and
// continues them together. ended sees how the transfers in progress ended; nil: any end will do.
func standStill(t *testing.T, d time.Duration, meanwhile bool, first, end int, ended func(*stopped, *worker.Xfer, nixlapi.Status), opts ...option) (all []*stopped) {
	t.Helper()
	for range phases[first:end] {
		s := &stopped{pairOf: quietPair(t, opts...)}
		s.tgt.PollEvery(5 * time.Millisecond) // six targets that always poll are too many for a small machine
		s.a, s.b = s.buffers(uint64(rounds(16, 32)) << 20)
		s.write = s.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: s.a.All(), Remote: s.b.All(), Peer: "bob", Notif: []byte("w")})
		s.read = s.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: s.a.All(), Remote: s.b.All(), Peer: "bob"})
		all = append(all, s)
	}
	busy := make([]*worker.Xfer, len(all))
	for i, s := range all {
		busy[i] = phases[first+i].begin(s)
	}
	over := time.Now().Add(d)
	for meanwhile && time.Now().Before(over) {
		for i, s := range all {
			switch {
			case phases[first+i].name == "initiator":
				time.Sleep(time.Millisecond)
			case busy[i] == nil:
				busy[i] = s.post(s.write)
			case busy[i].Wait(10*time.Millisecond) != nixlapi.InProgress:
				busy[i] = nil
			}
		}
	}
	time.Sleep(time.Until(over))
	for _, s := range all {
		s.tgt.Cont()
		s.ini.Cont()
	}
	for i, s := range all {
		if busy[i] != nil {
			begin := time.Now()
			st := busy[i].Wait(long) // success or error
			t.Logf("%s: %v after %v", phases[first+i].name, st, time.Since(begin))
			require.NotEqual(t, nixlapi.InProgress, st)
			if ended != nil {
				ended(s, busy[i], st)
			}
		}
		for k, x := range []*worker.Xfer{s.write, s.read, s.write} {
			s.a.Fill(uint64(k))
			x.Do(limit)
			if x == s.write {
				s.b.Want(uint64(k))
			}
		}
		require.True(t, s.ini.Knows("bob"))
		require.True(t, worker.Eventually(limit, func() bool {
			s.got = append(s.got, s.tgt.WaitNotifs(1<<20, 0)...)
			return count(s.got, "n") >= s.sent
		}), "%d of %d accepted notifications arrived", count(s.got, "n"), s.sent)
	}
	return all
}

func count(list []nixlapi.Notif, msg string) (n int) {
	for _, g := range list {
		if string(g.Msg) == msg {
			n++
		}
	}
	return n
}

// TestStoppedPeerBesideOthers: one of ten peers is stopped with transfers in flight. The other nine write, read and notify meanwhile, until the
// deadline and the fence of the stopped peer's transfer have passed.
func TestStoppedPeerBesideOthers(t *testing.T) {
	t.Parallel()
	const peers, posts = 10, 50
	ini := start(t, "alice", params("xfer_timeout", "500ms", "cancel_timeout", "200ms"))
	a := ini.Buffer(4<<20, seedA)
	var first *worker.Agent
	var small, large []*worker.Xfer
	for i := range peers {
		name := string(worker.Seq("bob", i))
		tgt := start(t, name)
		tgt.Polling(true)
		b := tgt.Buffer(4<<20, seedB)
		ini.Learn(tgt)
		small = append(small, ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, 4096), Remote: b.Span(0, 4096), Peer: name, Notif: []byte("s")}))
		large = append(large, ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: name, Notif: make([]byte, 10_000)}))
		small[i].Do(limit)
		large[i].Do(limit)
		if i == 0 {
			first = tgt
		}
	}
	first.Stop()
	require.False(t, large[0].Post().Failed())
	for ended := false; !ended; {
		ended = large[0].Status() != nixlapi.InProgress
		for i := 1; i < peers; i++ {
			l := small[i].Loop(worker.LoopArgs{N: posts, Timeout: limit})
			require.Equal(t, posts, l.Done, l.Status)
			large[i].Do(limit)
		}
	}
	first.Cont()
	require.True(t, worker.Eventually(limit, func() bool { // on a busy host the first ones may miss their deadline
		return !small[0].Post().Failed() && small[0].Wait(limit) == nixlapi.Success
	}), "the peer that goes on is reached again")
}
