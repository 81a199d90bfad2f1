package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/history/play"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

const (
	dataFrom = 7200
	dataTo   = 7299
)

// tcpRails are two tcp rails of 1 Gbit/s between two agents, each on a host. Implements play.Rails.
type tcpRails struct {
	t     testing.TB
	hosts [2]*host
	round *play.Round
}

// newFailovers starts two agents that transfer and notify both ways all the time.
func newFailovers(t testing.TB, seed uint64) *tcpRails {
	t.Helper()
	ours(t)
	f := &tcpRails{t: t}
	f.hosts[0], f.hosts[1] = rails(t, 1000, 1000)
	f.round = &play.Round{T: t, Env: testenv.Need(t), Provider: "tcp", Seed: seed, Dir: t.TempDir(), Cast: play.Cast[:2], Rng: rand.New(rand.NewPCG(seed, 0)), Calm: true,
		Place: func(i int, f2 func()) { f.hosts[i].In(f2) },
		Params: func(int) map[string]string { // some of four connections a rail are idle when it falls silent
			return map[string]string{"provider": "tcp", "data_port": fmt.Sprintf("%d-%d", dataFrom, dataTo), "tcp_threads": "4"}
		}}
	f.round.Open()
	return f
}

// Sent implements play.Rails.
func (f *tcpRails) Sent(rail int) (n [2]uint64, err error) {
	for i, h := range f.hosts {
		l, err := h.NL.LinkByName(fmt.Sprint("rail", rail))
		if err != nil {
			return n, err
		}
		n[i] = l.Attrs().Statistics.TxBytes
	}
	return n, nil
}

// Fail implements play.Rails.
func (f *tcpRails) Fail(kind string, rail int, rng *rand.Rand) (began time.Time, mend func()) {
	f.t.Helper()
	a, b := f.hosts[0], f.hosts[1]
	name, end := fmt.Sprint("rail", rail), rng.IntN(2)
	began = time.Now()
	switch kind {
	case play.Down:
		h := f.hosts[end]
		h.Cut(name)
		return began, func() {
			h.Restore(name)
			require.True(f.t, worker.Eventually(limit, func() bool { return a.Carries(name) && b.Carries(name) }))
		}
	case play.Error:
		return f.cutData(f.round.Actors[end].Pid(), rail), func() {}
	}
	which := 1 + rng.IntN(3) // 1: a's packets, 2: b's, 3: both
	if which&1 != 0 {
		a.lose(name, net.IPv4(10, 78, byte(rail), 2))
	}
	if which&2 != 0 {
		b.lose(name, net.IPv4(10, 78, byte(rail), 1))
	}
	return began, func() {
		if which&1 != 0 {
			a.find(name, net.IPv4(10, 78, byte(rail), 2))
		}
		if which&2 != 0 {
			b.find(name, net.IPv4(10, 78, byte(rail), 1))
		}
	}
}

// cutData ends the data connections of an agent over a rail, and returns the time before it.
func (f *tcpRails) cutData(pid, rail int) (began time.Time) {
	f.t.Helper()
	all, err := connections(f.t, pid)
	skip.OrFail(f.t, err)
	defer closeAll(all)
	began = time.Now()
	for _, fd := range all {
		here, _ := unix.Getsockname(fd)
		there, _ := unix.Getpeername(fd)
		is4, ok := here.(*unix.SockaddrInet4)
		data := func(a unix.Sockaddr) bool { return portOf(a) >= dataFrom && portOf(a) <= dataTo }
		if ok && is4.Addr[1] == 78 && int(is4.Addr[2]) == rail && (data(here) || data(there)) {
			shut(fd)
		}
	}
	return began
}

// lose sends all packets to an address over a wire to nobody: its neighbour entry names a station that does not exist.
func (h *host) lose(name string, to net.IP) {
	h.T.Helper()
	require.NoError(h.T, h.NL.NeighSet(&netlink.Neigh{LinkIndex: h.Link(name).Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: to.To4(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99}}))
}

// find ends lose.
func (h *host) find(name string, to net.IP) {
	h.T.Helper()
	require.NoError(h.T, h.NL.NeighDel(&netlink.Neigh{LinkIndex: h.Link(name).Attrs().Index, Family: unix.AF_INET, IP: to.To4()}))
}

// TestFailover: a rail fails at random moments of WRITEs, READs and notifications both ways, in each of three ways. Every transfer succeeds,
// every byte is right, and each notification arrives once: package history looks. A rail that is mended carries bytes again.
// BenchmarkFailover measures the gaps. GORAIL_SOAK=2m sets the duration.
func TestFailover(t *testing.T) {
	t.Parallel()
	f := newFailovers(t, 7)
	soak, err := time.ParseDuration(cmp.Or(os.Getenv("GORAIL_SOAK"), "0s"))
	require.NoError(t, err)
	began := time.Now()
	for i := 0; i < rounds(6, 40) || time.Since(began) < soak; i++ {
		t.Logf("%+v", f.round.FailRail(f, play.Kinds[i%3], limit))
	}
	f.round.Close()
}

// BenchmarkFailover lets one of two 1 Gbit/s rails fail at random moments, and reports the distribution of the gaps:
//
//	go test ./test/e2e -run NONE -bench 'Failover$' -benchtime 1000x -timeout 0
//
// "Gap" is the longest time in which the other rail carried nothing, one of the ways.
func BenchmarkFailover(b *testing.B) {
	f := newFailovers(b, uint64(time.Now().UnixNano()))
	b.ResetTimer()
	var all []play.Gap
	for i := range b.N {
		all = append(all, f.round.FailRail(f, play.Kinds[i%3], limit))
	}
	f.round.Close()
	fmt.Print(play.Table(all))
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFailoverFabric lets the n-th operation of one of two imitated devices fail, n at random. Peers share an endpoint there, which is
// drained and not fenced: the transfer of that operation ends in an error, and later ones go on.
//
//	go test ./test/e2e -run NONE -bench FailoverFabric -benchtime 20x
//
// "ms-error" is the time of the transfer that fails, "ms-next" from its error to the success of the next one, "ms-normal" the time of
// a transfer without a failure. All are medians, "ms-most" is the longest sum of the first two.
func BenchmarkFailoverFabric(b *testing.B) {
	const size = 1 << 20
	for _, kind := range []string{"efa", "efa-direct", "cxi"} {
		for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
			b.Run(kind+"/"+op.String(), func(b *testing.B) {
				var failed, next, both, normal []time.Duration
				for i := range b.N {
					p, _ := onFabric(b, kind, []string{"rails=2", fmt.Sprint("fail_at=", 100+rand.IntN(400)), fmt.Sprint("seed=", i+1)})
					mine, theirs := p.buffers(size)
					src, dst := mine, theirs
					if op == nixlapi.Read {
						src, dst = theirs, mine
					}
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: mine.All(), Remote: theirs.All(), Peer: "bob"})
					timed := func() (nixlapi.Status, time.Duration) {
						began := time.Now()
						r := x.Loop(worker.LoopArgs{N: 1, Timeout: limit})
						return r.Status, time.Since(began)
					}
					for {
						s, took := timed()
						if s == nixlapi.Success {
							normal = append(normal, took)
							continue
						}
						require.NotEqual(b, nixlapi.InProgress, s)
						src.Fill(uint64(i))
						s, after := timed()
						require.Equal(b, nixlapi.Success, s, p.ini.Output())
						dst.Want(uint64(i))
						failed, next, both = append(failed, took), append(next, after), append(both, took+after)
						break
					}
					exit(b, p.ini, p.tgt)
				}
				for name, list := range map[string][]time.Duration{"ms-error": failed, "ms-next": next, "ms-normal": normal} {
					slices.Sort(list)
					b.ReportMetric(float64(list[len(list)/2])/1e6, name)
				}
				b.ReportMetric(float64(slices.Max(both))/1e6, "ms-most")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
