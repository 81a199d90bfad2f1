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

	"gorail/test/history/play"
)

// envFailures is the environment variable for the number of failures of TestFailover.
const envFailures = "GORAIL_FAILURES"

// verbsRails are rails 0 and 1 of a guest that is both hosts. alice has A's ends, bob B's. Implements play.Rails.
type verbsRails struct {
	place
	round    *play.Round
	counters [2][2]*os.File // bytes sent: by host, rail
}

// newFailovers starts two agents that transfer and notify both ways all the time.
func newFailovers(t testing.TB, seed uint64) *verbsRails {
	t.Helper()
	r := &verbsRails{place: need(t, 2)}
	for i, host := range []string{"A", "B"} {
		for rail := range r.counters[i] {
			f, err := os.Open(fmt.Sprintf("/sys/class/net/%s/statistics/tx_bytes", r.net(host, rail)))
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			r.counters[i][rail] = f
		}
	}
	r.round = &play.Round{T: t, Env: r.env, Provider: "verbs", Seed: seed, Dir: t.TempDir(), Cast: play.Cast[:2], Rng: rand.New(rand.NewPCG(seed, 0)), Calm: true,
		Params: func(i int) map[string]string { return map[string]string{"devices": r.kind + []string{"A*", "B*"}[i]} }}
	r.round.Open()
	return r
}

// Sent implements play.Rails.
func (r *verbsRails) Sent(rail int) (sent [2]uint64, err error) {
	for host := range sent {
		var text [32]byte
		n, err := r.counters[host][rail].ReadAt(text[:], 0)
		if n == 0 {
			return sent, err
		}
		if sent[host], err = strconv.ParseUint(strings.TrimSpace(string(text[:n])), 10, 64); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// Fail implements play.Rails.
func (r *verbsRails) Fail(kind string, rail int, rng *rand.Rand) (began time.Time, mend func()) {
	r.t.Helper()
	end := rng.IntN(2)
	host := []string{"A", "B"}[end]
	switch kind {
	case play.Error:
		began = failQPs(r.t, r.round.Actors[end].Pid(), fmt.Sprint(r.kind, host, rail))
		return began, func() {}
	case play.Down:
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

// TestFailover: a rail fails at random moments of transfers and notifications both ways, in each of three ways: the queue pairs of one end
// fail, an interface goes down, packets are lost. Every transfer succeeds, every byte is right, and each notification arrives once: package
// history looks. A rail that is mended carries bytes again. BenchmarkFailover measures the gaps.
func TestFailover(t *testing.T) {
	n := 40
	if testing.Short() {
		n = 12
	}
	if v, err := strconv.Atoi(os.Getenv(envFailures)); err == nil {
		n = v
	}
	r := newFailovers(t, 7)
	for i := range n {
		t.Logf("%+v", r.round.FailRail(r, play.Kinds[i%3], limit))
	}
	r.round.Close()
}

// TestHistory: agents move bytes and notifications, deregister, release and forget while transfers are in flight, and are killed and started
// again. Package history says what must hold.
func TestHistory(t *testing.T) {
	p := need(t, 1)
	r := &play.Round{T: t, Env: p.env, Provider: "verbs", Seed: 1, Dir: t.TempDir(), Cast: play.Cast[:2], Rng: rand.New(rand.NewPCG(1, 0)),
		Params: func(i int) map[string]string {
			return map[string]string{"devices": p.kind + []string{"A*", "B*"}[i], "xfer_timeout": "5s", "cancel_timeout": "1s"}
		}}
	r.Open()
	for i := range 4 {
		r.Pause(3 * time.Second)
		r.Kill(i%2, time.Duration(r.Rng.IntN(300))*time.Millisecond)
	}
	r.Pause(3 * time.Second)
	r.Close()
}

// BenchmarkFailover is TestFailover with a table of the gaps: tools/bench-failover-rdma.sh runs it in a guest with shaped rails.
func BenchmarkFailover(b *testing.B) {
	r := newFailovers(b, uint64(time.Now().UnixNano()))
	var all []play.Gap
	for i := range b.N {
		all = append(all, r.round.FailRail(r, play.Kinds[i%3], limit))
		fmt.Printf("%d: %+v\n", i, all[i])
	}
	r.round.Close()
	fmt.Print(play.Table(all))
	b.ReportMetric(0, "ns/op")
}
