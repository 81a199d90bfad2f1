package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/procstat"
	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// BenchmarkIdlePeers is what idle peers of one host cost: a hub loads the metadata of GORAIL_TEST_IDLE_PEERS agents (300), which live in
// GORAIL_TEST_IDLE_PROCESSES processes (10). It reports the processor time of the hub and of all others while nothing happens; that of the
// processes before they have agents, and of agents without sessions, is the base. It reports what a peer takes at the hub, the time to add one, the
// latency of a pair beside the idle ones, and what stays after all peers were removed:
//
//	GORAIL_TEST_IDLE_PEERS=1000 go test ./test/e2e -run NONE -bench IdlePeers -benchtime 1x
func BenchmarkIdlePeers(b *testing.B) {
	n, procs := number(b, "GORAIL_TEST_IDLE_PEERS", 300), number(b, "GORAIL_TEST_IDLE_PROCESSES", 10)
	for _, provider := range []string{"auto", "tcp"} {
		b.Run(provider, func(b *testing.B) {
			for b.Loop() {
				idlePeers(b, provider, n, procs)
			}
		})
	}
}

// calm is the time until agents without work sleep as long as they may, and Go's runtime has given memory back: GORAIL_TEST_IDLE_CALM seconds (60).
func calm(b *testing.B) {
	time.Sleep(time.Duration(number(b, "GORAIL_TEST_IDLE_CALM", 60)) * time.Second)
}

// number is a number in a variable.
func number(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

// idlePeers measures one round.
func idlePeers(b *testing.B, provider string, n, procs int) {
	o := worker.Options{Env: testenv.Need(b), Setenv: []string{"GORAIL_PROVIDER=" + provider, "GORAIL_DEVICES=lo"}}
	if provider == "auto" {
		o.Setenv = o.Setenv[:1]
	}
	hub, busy := process(b, o), process(b, o)
	h, other := agent(hub, o.Env, "hub"), agent(busy, o.Env, "busy")
	mine, theirs := h.Buffer(4096, seedA), other.Buffer(4096, seedB)
	h.Learn(other)
	x := h.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.All(), Remote: theirs.All(), Peer: "busy"})
	x.Do(limit)
	alone := tail(b, x)

	var leaves []*worker.Worker
	var metadata [][]byte
	for range procs {
		leaves = append(leaves, process(b, o))
	}
	time.Sleep(10 * time.Second) // NIXL's library and Go's runtime have started
	b.ReportMetric(100*idleShare(b, hub, leaves)[1], "%leaves-without-agents")
	for i, w := range leaves {
		for k := range (n-i-1)/procs + 1 {
			a := agent(w, o.Env, fmt.Sprintf("leaf-%d-%d", i, k))
			a.Buffer(4096, seedC)
			metadata = append(metadata, a.Metadata())
		}
	}
	before := hub.Settled()
	b.Log("the hub before: ", about(b, hub.Pid()))
	calm(b)
	noSessions := idleShare(b, hub, leaves)
	cpuBefore := cpu(b, hub.Pid())
	began := time.Now()
	var names []string
	for _, md := range metadata {
		name, err := h.Load(md)
		require.NoError(b, err)
		names = append(names, name)
	}
	added := time.Since(began)
	for _, name := range names {
		require.NoError(b, h.Connect(name))
	}
	established(b, h, names)
	connected := time.Since(began)
	b.ReportMetric(float64(added.Microseconds())/float64(n), "us-add")
	b.ReportMetric(float64(connected.Microseconds())/float64(n), "us-connect")
	b.ReportMetric(float64((cpu(b, hub.Pid())-cpuBefore).Microseconds())/float64(n), "us-connect-cpu-hub")
	calm(b)
	with := hub.Settled()
	b.Log("the hub with its peers: ", about(b, hub.Pid()))
	b.ReportMetric(float64(with.FDs-before.FDs)/float64(n), "fds/peer")
	b.ReportMetric(float64(with.RSSKiB-before.RSSKiB)/float64(n), "KiB/peer")
	share := idleShare(b, hub, leaves)
	b.ReportMetric(100*noSessions[1], "%leaves-without-sessions")
	b.ReportMetric(100*share[0], "%hub")
	b.ReportMetric(100*share[1], "%leaves")
	beside := tail(b, x)
	b.ReportMetric(alone/1000, "us-p99-alone")
	b.ReportMetric(beside/1000, "us-p99-beside")
	b.ReportMetric(beside/alone, "p99-ratio")
	began = time.Now()
	for _, name := range names {
		require.NoError(b, h.Invalidate(name))
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/float64(n), "us-remove")
	left := 0
	worker.Eventually(limit, func() bool { left = hub.Stats().FDs - before.FDs; return left <= 0 })
	b.ReportMetric(float64(left), "fds-left")
	b.Log("the hub after their removal: ", about(b, hub.Pid()))
	b.ReportMetric(float64(hub.Settled().RSSKiB-before.RSSKiB)/float64(n), "KiB-left/peer")
	for _, w := range append(leaves, hub, busy) {
		_ = w.Exit()
	}
}

// established waits until the hub has a session with every peer: a notification to each is accepted and sent.
func established(b *testing.B, h *worker.Agent, names []string) {
	for _, name := range names {
		require.NoError(b, h.GenNotif(name, []byte("x")))
	}
	fds, same := 0, 0
	require.True(b, worker.Eventually(long, func() bool { // descriptors of all peers, and no more for a second
		time.Sleep(200 * time.Millisecond)
		was := fds
		if fds = h.Stats().FDs; fds == was && fds > len(names) {
			same++
		} else {
			same = 0
		}
		return same > 5
	}))
}

// idleShare is the share of a core that the hub and the other processes take while nobody calls them.
func idleShare(b *testing.B, hub *worker.Worker, leaves []*worker.Worker) (share [2]float64) {
	while := time.Duration(number(b, "GORAIL_TEST_IDLE_WHILE", 20)) * time.Second
	sum := func(all []*worker.Worker) (ns time.Duration) {
		for _, w := range all {
			spent, err := procstat.Of(w.Pid())
			require.NoError(b, err)
			ns += spent
		}
		return ns
	}
	h, l := sum([]*worker.Worker{hub}), sum(leaves)
	time.Sleep(while)
	return [2]float64{float64(sum([]*worker.Worker{hub})-h) / float64(while), float64(sum(leaves)-l) / float64(while)}
}

// tail is the 99th percentile of a transfer's latency, the median of 50 runs: the pair is busy for a second or so.
func tail(b *testing.B, x *worker.Xfer) float64 {
	var p99 []int64
	for range 50 {
		l := x.Loop(worker.LoopArgs{N: 20000, Timeout: limit, Times: true})
		slices.Sort(l.Lat)
		p99 = append(p99, l.Lat[len(l.Lat)*99/100])
	}
	b.Log("99th percentiles of the runs, in ns: ", p99)
	return median(p99)
}

// about is what the kernel says of a process's descriptors and memory.
func about(b *testing.B, pid int) string {
	kinds, err := procstat.Descriptors(pid)
	require.NoError(b, err)
	memory, err := procstat.Resident(pid)
	require.NoError(b, err)
	return fmt.Sprint(kinds, memory)
}
