package e2e

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// socketScene is a target whose unix sockets a process of another user floods, and a process of further agents.
type socketScene struct {
	bob   *worker.Agent
	guest *worker.Worker
	n     int
}

func newSocketScene(t testing.TB) *socketScene {
	t.Helper()
	skip.UnlessRoot(t, "needs root to change users")
	s := &socketScene{bob: agentOf(t, "bob", asUser(honest, ""))}
	s.bob.Polling(true)
	o := asUser(honest, "")
	o.Env = testenv.Need(t)
	s.guest = worker.Start(t, o)
	return s
}

// begin floods the sockets. stop returns how many connections the kernel made.
func (s *socketScene) begin(t testing.TB, threads int) (stop func() int) {
	t.Helper()
	what := assault{User: stranger, Names: unixNames(t, s.bob.Pid()), Flood: threads}
	ends, until := io.Pipe()
	done := make(chan struct{})
	var l loot
	var failed error
	go func() {
		defer close(done)
		l, failed = attack(t, what, &syscall.SysProcAttr{}, "", ends)
	}()
	return func() int {
		_ = until.Close()
		<-done
		require.NoError(t, failed)
		return l.Named
	}
}

// dial makes an agent that reaches the target for the first time. It returns the time of the first transfer, and by which rails it went.
func (s *socketScene) dial(t testing.TB) (took time.Duration, rails string) {
	t.Helper()
	s.n++
	name := fmt.Sprintf("guest%d", s.n)
	g := agent(s.guest, testenv.Need(t), name, params("log", "info"))
	here, there := g.Buffer(4096, seedA), s.bob.Buffer(4096, seedB)
	g.Learn(s.bob)
	began := time.Now()
	g.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: here.All(), Remote: there.All(), Peer: "bob"}).Do(limit)
	took = time.Since(began)
	there.Want(seedA)
	require.True(t, worker.Eventually(limit, func() bool {
		for _, line := range logged(s.guest) {
			if holds(line, []string{"peer connected", "agent=" + name + " ", "session=initiator"}) {
				_, rails, _ = strings.Cut(line, "rails=")
				rails, _, _ = strings.Cut(rails, " ")
			}
		}
		return rails != ""
	}))
	require.NoError(t, g.Close())
	return took, rails
}

// TestFloodOfAnotherUser: a process of another user connects to an engine's unix sockets as often as it can. New peers of the host are
// connected over shared memory all the same.
func TestFloodOfAnotherUser(t *testing.T) {
	t.Parallel()
	s := newSocketScene(t)
	stop := s.begin(t, 1)
	for range 8 {
		took, rails := s.dial(t)
		assert.Equal(t, "sm/memory", rails)
		assert.Less(t, took, testenv.Patient(5*time.Second))
	}
	require.Positive(t, stop())
	require.NoError(t, s.bob.Exit())
}

// BenchmarkFloodOfAnotherUser reports the times of new peers while 0, 1 and 2 threads of another user connect to the target's sockets:
//
//	go test ./test/e2e -run NONE -bench FloodOfAnotherUser -benchtime 1x
func BenchmarkFloodOfAnotherUser(b *testing.B) {
	for _, threads := range []int{0, 1, 2} {
		b.Run(fmt.Sprint(threads), func(b *testing.B) {
			for b.Loop() { // what follows has its own number of rounds
			}
			s := newSocketScene(b)
			stop := func() int { return 0 }
			if threads > 0 {
				stop = s.begin(b, threads)
				time.Sleep(time.Second)
			}
			var took []time.Duration
			apart := 0
			for range 48 {
				d, rails := s.dial(b)
				took = append(took, d)
				if rails != "sm/memory" {
					apart++
				}
			}
			slices.Sort(took)
			ms := func(p int) float64 { return took[(len(took)-1)*p/100].Seconds() * 1e3 }
			b.ReportMetric(ms(50), "p50-ms")
			b.ReportMetric(ms(99), "p99-ms")
			b.ReportMetric(float64(apart), "by-network")
			b.ReportMetric(float64(stop()), "connections")
		})
	}
}
