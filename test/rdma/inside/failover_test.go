package inside

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gorail/test/failover"
	"gorail/test/worker"
)

// envFailures is the environment variable for the number of failures of TestFailover.
const envFailures = "GORAIL_FAILURES"

// verbsRails are rails 0 and 1 of a guest that is both hosts. alice has the initiator's ends, bob the target's. Implements failover.Rails.
type verbsRails struct {
	place
	alice, bob *worker.Agent
	counters   [2][2]*os.File // bytes sent: by host, rail
}

// newFailovers starts the agents and prepares the transfers. The initiator sleeps between polls: the guest has one CPU.
func newFailovers(t testing.TB, seed uint64) *failover.Runner {
	t.Helper()
	const bytes = 32 << 20
	r := &verbsRails{place: need(t, 2)}
	for i, host := range []string{"A", "B"} {
		for rail := range r.counters[i] {
			f, err := os.Open(fmt.Sprintf("/sys/class/net/%s/statistics/tx_bytes", r.net(host, rail)))
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			r.counters[i][rail] = f
		}
	}
	var a, b *worker.Buf
	r.alice, r.bob, a, b = r.connect(bytes, "log", "info")
	return failover.New(t, failover.Config{Rails: r, Ini: r.alice, Tgt: r.bob, Mine: a, His: b, Bytes: bytes,
		Loads: []failover.Load{{Size: 64 << 10}, {Size: 512 << 10}, {Size: 4 << 20}, {Size: 16 << 20}, {Size: 8 << 20, Small: 28}},
		Nap:   500 * time.Microsecond, Limit: limit, Long: 2 * limit, Seed: seed})
}

// Sent implements failover.Rails.
func (r *verbsRails) Sent(target bool, rail int) (uint64, error) {
	host := 0
	if target {
		host = 1
	}
	var text [32]byte
	n, err := r.counters[host][rail].ReadAt(text[:], 0)
	if n == 0 {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text[:n])), 10, 64)
}

// Fail implements failover.Rails.
func (r *verbsRails) Fail(kind string, rail int, rng *rand.Rand) (began time.Time, mend func()) {
	r.t.Helper()
	end := rng.IntN(2)
	host := []string{"A", "B"}[end]
	switch kind {
	case failover.Error:
		began = failQPs(r.t, []*worker.Agent{r.alice, r.bob}[end].Pid(), fmt.Sprint(r.kind, host, rail))
		return began, func() {}
	case failover.Down:
		l, err := netlink.LinkByName(r.net(host, rail))
		require.NoError(r.t, err)
		began = time.Now()
		require.NoError(r.t, netlink.LinkSetDown(l))
		return began, func() {
			require.NoError(r.t, netlink.LinkSetUp(l))
			require.True(r.t, eventually(func() bool { return r.active("A", rail) && r.active("B", rail) }), "the ports stay down")
		}
	}
	which := 1 + rng.IntN(3) // 1: A's packets, 2: B's, 3: both
	began = time.Now()
	r.lose(which, rail, nobody)
	return began, func() { r.lose(which, rail, 0) }
}

// active returns true if a port is active. It follows its interface a moment later.
func (r *verbsRails) active(host string, rail int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s%s%d/ports/1/state", r.kind, host, rail))
	require.NoError(r.t, err)
	return strings.Contains(string(text), "ACTIVE")
}

// nobody is the last byte of a hardware address that no interface has.
const nobody = 99

// lose sends A's (1), B's (2) or both hosts' packets (3) of a rail to a hardware address with this last byte; 0: to the other host's,
// as rails.sh does.
func (r *verbsRails) lose(which, rail int, last byte) {
	r.t.Helper()
	for i, host := range []string{"A", "B"} {
		if which&(1<<i) == 0 {
			continue
		}
		l, err := netlink.LinkByName(r.net(host, rail))
		require.NoError(r.t, err)
		other := byte(2 - i) // of the peer's addresses
		to := net.HardwareAddr{2, 0, 0, byte(rail), 0, other}
		if last != 0 {
			to[5] = last
		}
		require.NoError(r.t, netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP: net.IPv4(10, 0, byte(rail), other).To4(), HardwareAddr: to}))
	}
}

// TestFailover lets a rail fail at random moments of transfers, in each of three ways: the queue pairs of one end fail, an interface goes
// down, packets are lost. Every transfer succeeds and every byte is right. BenchmarkFailover measures the gaps.
func TestFailover(t *testing.T) {
	n := 40
	if testing.Short() {
		n = 12
	}
	if v, err := strconv.Atoi(os.Getenv(envFailures)); err == nil {
		n = v
	}
	f := newFailovers(t, 7)
	for i := range n {
		r := f.One(failover.Kinds[i%3], failover.Ops[i%2])
		t.Logf("%s, %s of %s: gap %v, before %v, echo %v", r.Kind, r.Op, r.Load, r.Gap, r.Before, r.Echo)
	}
	require.NoError(t, f.Ini.Exit())
	require.NoError(t, f.Tgt.Exit())
}

// BenchmarkFailover is TestFailover with a table of the gaps: tools/bench-failover-rdma.sh runs it in a guest with shaped rails.
func BenchmarkFailover(b *testing.B) {
	f := newFailovers(b, uint64(time.Now().UnixNano()))
	var all []failover.Failure
	for i := range b.N {
		all = append(all, f.One(failover.Kinds[i%3], failover.Ops[i/3%2]))
		r := all[i]
		fmt.Printf("%d: %s, %s of %s: gap %v, before %v, slowest %v, echo %v, %.1f MB/s\n", i, r.Kind, r.Op, r.Load, r.Gap, r.Before, r.Slowest, r.Echo, r.Rate)
	}
	require.NoError(b, f.Ini.Exit())
	require.NoError(b, f.Tgt.Exit())
	fmt.Print(failover.Table(all, 0))
	b.ReportMetric(0, "ns/op")
}
