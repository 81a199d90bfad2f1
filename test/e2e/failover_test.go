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
	"gorail/test/skip"
	"gorail/test/worker"
)

// The ways in which a rail fails.
const (
	railDown   = "link down" // an interface goes down at one end
	railError  = "error"     // the rail's data connections end: completion errors
	railSilent = "silence"   // packets are dropped, in one direction or in both; nobody gets an error
)

// failovers lets one of two rails fail during transfers, again and again.
type failovers struct {
	t         testing.TB
	a, b      *host
	p         *pairOf
	mine, his *worker.Buf
	sets      map[nixlapi.Op]map[uint64][]*worker.Xfer // by size: requests over consecutive ranges
	rng       *rand.Rand
	seed      uint64
}

// failure is what one failure cost.
type failure struct {
	Kind, Op string
	At       time.Time
	Size     uint64        // of each transfer
	Gap      time.Duration // the longest time in which no rail that works carried anything, from the failure to the end of the transfers
	Before   time.Duration // the same before the failure, over both rails
	Slowest  time.Duration // the longest transfer
	Runnable int           // threads of the machine that could run when it failed
	Rate     float64       // of the other rail after the failure, the gap left out, in MB/s
}

const (
	failoverMbit  = 1000
	failoverPorts = "7200-7299"
	dataFrom      = 7200
	dataTo        = 7299
)

var failoverSizes = []uint64{64 << 10, 512 << 10, 4 << 20, 64 << 20}

// newFailovers prepares transfers of so many bytes for each failure.
func newFailovers(t testing.TB, seed, bytes uint64) *failovers {
	t.Helper()
	ours(t)
	f := &failovers{t: t, rng: rand.New(rand.NewPCG(seed, seed)), seed: 1000, sets: map[nixlapi.Op]map[uint64][]*worker.Xfer{}}
	f.a, f.b = rails(t, failoverMbit, failoverMbit)
	f.p = onRails(t, f.a, f.b, "log", "info", "data_port", failoverPorts, "tcp_threads", "4") // idle connections of a silent rail
	f.mine, f.his = f.p.buffers(bytes)
	for _, op := range []nixlapi.Op{nixlapi.Write, nixlapi.Read} {
		f.sets[op] = map[uint64][]*worker.Xfer{}
		for _, size := range failoverSizes {
			for off := uint64(0); off < bytes; off += size {
				x := f.p.ini.Xfer(worker.XferSpec{Op: op, Local: f.mine.Span(off, size), Remote: f.his.Span(off, size), Peer: "bob"})
				f.sets[op][size] = append(f.sets[op][size], x)
			}
		}
	}
	f.both()
	return f
}

// both waits until both rails carry bytes.
func (f *failovers) both() {
	f.t.Helper()
	x := f.sets[nixlapi.Write][64<<20][0]
	require.True(f.t, eventually(limit, func() bool {
		before := []uint64{f.a.sent("rail0"), f.a.sent("rail1")}
		x.Do(limit)
		return f.a.sent("rail0")-before[0] > 8<<20 && f.a.sent("rail1")-before[1] > 8<<20
	}), "a rail that works again carries nothing\n%s", f.p.ini.Output())
}

// one lets a rail fail at a random time during transfers of a random size, and compares all bytes.
func (f *failovers) one(kind string, op nixlapi.Op) failure {
	f.t.Helper()
	size := failoverSizes[f.rng.IntN(len(failoverSizes))]
	rail := f.rng.IntN(2)
	name, other := fmt.Sprint("rail", rail), fmt.Sprint("rail", 1-rail)
	from, src, dst := f.a, f.mine, f.his
	if op == nixlapi.Read {
		from, src, dst = f.b, f.his, f.mine
	}
	f.seed++
	src.Fill(f.seed)
	set := f.sets[op][size]
	var more []int
	for _, x := range set[1:] {
		more = append(more, x.ID())
	}
	sent := func() (works, all uint64) {
		one := from.sent(other)
		all = one + from.sent(name)
		if kind == railError { // the rail itself works, and is used again at once
			return all, all
		}
		return one, all
	}
	loop := set[0].LoopAsync(worker.LoopArgs{N: len(set), Turns: more, Times: true, Timeout: long})
	over := make(chan worker.LoopResult, 1)
	go func() { over <- loop.Wait() }()
	_, first := sent()
	began := time.Now()
	require.True(f.t, eventually(limit, func() bool { _, n := sent(); return n-first > 1<<20 }), "nothing moves")
	failAt := began.Add(time.Duration(20+f.rng.IntN(200)) * time.Millisecond)
	var before, after movement
	for time.Now().Before(failAt) {
		_, n := sent()
		before.note(time.Now(), n)
	}
	busy := runnable()
	n, _ := sent()
	base := n
	failed, mend := f.fail(kind, rail, name)
	after.note(failed, n)
	var r worker.LoopResult
	for done := false; !done; {
		select {
		case r = <-over:
			done = true
		default:
			n, _ = sent()
			after.note(time.Now(), n)
		}
	}
	ended := time.Now()
	after.end(ended, n)
	mend()
	require.Equal(f.t, len(set), r.Done, "%s of %d bytes with %s of %s: %s\n%s\n%s", op, size, kind, name, r.Status, f.p.ini.Output(), f.p.tgt.Output())
	dst.Want(f.seed)
	f.both()
	rate := float64(n-base) / (ended.Sub(failed) - after.longest).Seconds() / 1e6
	return failure{Kind: kind, Op: op.String(), At: failed, Size: size, Gap: after.longest, Before: before.longest, Slowest: time.Duration(slices.Max(r.Lat)),
		Runnable: busy, Rate: rate}
}

// runnable is the number of threads of the machine that run or could run.
func runnable() (n int) {
	text, _ := os.ReadFile("/proc/loadavg")
	var load [3]float64
	_, _ = fmt.Sscanf(string(text), "%f %f %f %d/", &load[0], &load[1], &load[2], &n)
	return n
}

// movement finds the longest time in which a counter of bytes stood still.
type movement struct {
	at      time.Time // when it moved last
	bytes   uint64
	longest time.Duration
}

// note takes a sample. Less than 16 KiB are heartbeats and handshakes.
func (m *movement) note(now time.Time, n uint64) {
	if m.at.IsZero() || n-m.bytes > 16<<10 {
		m.end(now, n)
		m.at, m.bytes = now, n
	}
	time.Sleep(500 * time.Microsecond)
}

func (m *movement) end(now time.Time, n uint64) {
	if !m.at.IsZero() {
		m.longest = max(m.longest, now.Sub(m.at))
	}
}

// fail lets a rail fail. began is before the failure: the kernel may take milliseconds to return. mend repairs the rail.
func (f *failovers) fail(kind string, rail int, name string) (began time.Time, mend func()) {
	f.t.Helper()
	end := f.rng.IntN(2)
	began = time.Now()
	switch kind {
	case railDown:
		h := []*host{f.a, f.b}[end]
		h.cut(name)
		return began, func() {
			h.restore(name)
			require.True(f.t, eventually(limit, func() bool { return f.a.carries(name) && f.b.carries(name) }))
		}
	case railError:
		return f.cutData([]*worker.Agent{f.p.ini, f.p.tgt}[end], rail), func() {}
	}
	which := 1 + f.rng.IntN(3) // 1: a's packets, 2: b's, 3: both
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
func (f *failovers) cutData(at *worker.Agent, rail int) (began time.Time) {
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
		op := []nixlapi.Op{nixlapi.Write, nixlapi.Read}[i%2]
		r := f.one([]string{railDown, railError, railSilent}[i%3], op)
		t.Logf("%s, %s of %d bytes: gap %v, slowest transfer %v", r.Kind, r.Op, r.Size, r.Gap, r.Slowest)
	}
	require.NoError(t, f.p.ini.Exit())
	require.NoError(t, f.p.tgt.Exit())
}
