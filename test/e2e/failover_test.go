package e2e

import (
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
	"gorail/test/failover"
	"gorail/test/skip"
	"gorail/test/worker"
)

const (
	failoverMbit  = 1000
	failoverPorts = "7200-7299"
	dataFrom      = 7200
	dataTo        = 7299
)

// tcpRails are two tcp rails of two hosts. Implements failover.Rails.
type tcpRails struct {
	t    testing.TB
	a, b *host
	p    *pairOf
}

// newFailovers prepares transfers of so many bytes for each failure.
func newFailovers(t testing.TB, seed, bytes uint64) *failover.Runner {
	t.Helper()
	ours(t)
	f := &tcpRails{t: t}
	f.a, f.b = rails(t, failoverMbit, failoverMbit)
	f.p = onRails(t, f.a, f.b, "log", "info", "data_port", failoverPorts, "tcp_threads", "4") // idle connections of a silent rail
	mine, his := f.p.buffers(bytes)
	return failover.New(t, failover.Config{Rails: f, Ini: f.p.ini, Tgt: f.p.tgt, Mine: mine, His: his, Bytes: bytes,
		Loads: []failover.Load{{Size: 64 << 10}, {Size: 512 << 10}, {Size: 4 << 20}, {Size: 64 << 20}}, Limit: limit, Long: long, Seed: seed})
}

func railName(rail int) string { return fmt.Sprint("rail", rail) }

// Sent implements failover.Rails.
func (f *tcpRails) Sent(target bool, rail int) (uint64, error) {
	h := f.a
	if target {
		h = f.b
	}
	l, err := h.nl.LinkByName(railName(rail))
	if err != nil {
		return 0, err
	}
	return l.Attrs().Statistics.TxBytes, nil
}

// Fail implements failover.Rails.
func (f *tcpRails) Fail(kind string, rail int, rng *rand.Rand) (began time.Time, mend func()) {
	f.t.Helper()
	name, end := railName(rail), rng.IntN(2)
	began = time.Now()
	switch kind {
	case failover.Down:
		h := []*host{f.a, f.b}[end]
		h.cut(name)
		return began, func() {
			h.restore(name)
			require.True(f.t, worker.Eventually(limit, func() bool { return f.a.carries(name) && f.b.carries(name) }))
		}
	case failover.Error:
		return f.cutData([]*worker.Agent{f.p.ini, f.p.tgt}[end], rail), func() {}
	}
	which := 1 + rng.IntN(3) // 1: a's packets, 2: b's, 3: both
	if which&1 != 0 {
		f.a.lose(name, net.IPv4(10, 78, byte(rail), 2))
	}
	if which&2 != 0 {
		f.b.lose(name, net.IPv4(10, 78, byte(rail), 1))
	}
	return began, func() {
		if which&1 != 0 {
			f.a.find(name, net.IPv4(10, 78, byte(rail), 2))
		}
		if which&2 != 0 {
			f.b.find(name, net.IPv4(10, 78, byte(rail), 1))
		}
	}
}

// cutData ends the data connections of an agent over a rail, and returns the time before it.
func (f *tcpRails) cutData(at *worker.Agent, rail int) (began time.Time) {
	f.t.Helper()
	all, err := connections(f.t, at.Pid())
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
	h.t.Helper()
	require.NoError(h.t, h.nl.NeighSet(&netlink.Neigh{LinkIndex: h.link(name).Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		IP: to.To4(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99}}))
}

// find ends lose.
func (h *host) find(name string, to net.IP) {
	h.t.Helper()
	require.NoError(h.t, h.nl.NeighDel(&netlink.Neigh{LinkIndex: h.link(name).Attrs().Index, Family: unix.AF_INET, IP: to.To4()}))
}

// TestFailover lets a rail fail at random moments of WRITEs and READs of 64 KiB to 64 MiB, in each of three ways. Every
// transfer succeeds and every byte is right. BenchmarkFailover measures the gaps.
func TestFailover(t *testing.T) {
	t.Parallel()
	f := newFailovers(t, 7, 64<<20)
	for i := range rounds(6, 40) { // each way to fail with each operation
		r := f.One(failover.Kinds[i%3], failover.Ops[i%2])
		t.Logf("%s, %s of %s: gap %v, slowest transfer %v", r.Kind, r.Op, r.Load, r.Gap, r.Slowest)
	}
	require.NoError(t, f.Ini.Exit())
	require.NoError(t, f.Tgt.Exit())
}

// BenchmarkFailover lets one of two 1 Gbit/s rails fail at random moments, and reports the distribution of the gaps:
//
//	go test ./test/e2e -run NONE -bench Failover -benchtime 1000x -timeout 0
//
// GORAIL_FAILURES_JSON names a file for all of them. "Gap" is the longest time in which the other rail carried nothing.
func BenchmarkFailover(b *testing.B) {
	f := newFailovers(b, uint64(time.Now().UnixNano()), 128<<20)
	b.ResetTimer()
	var all []failover.Failure
	for i := range b.N {
		all = append(all, f.One(failover.Kinds[i%3], failover.Ops[i/3%2]))
		require.NoError(b, failover.Save(os.Getenv("GORAIL_FAILURES_JSON"), all))
	}
	require.NoError(b, f.Ini.Exit())
	require.NoError(b, f.Tgt.Exit())
	const quiet = 5 // threads that can run; the benchmark has three to five
	fmt.Print(failover.Table(all, quiet))
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
					require.NoError(b, p.ini.Exit())
					require.NoError(b, p.tgt.Exit())
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
