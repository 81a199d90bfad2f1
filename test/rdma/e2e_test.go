package rdma

import (
	"fmt"
	"os"
	"testing"
	"time"

	"gorail/test/rdma/bed"
)

// guestLimit is the time limit of a guest, long enough for a busy machine.
const guestLimit = 30 * time.Minute

// skipShort skips the test with `go test -short`. CI runs with -short: one test of each kind.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped with -short")
	}
}

// verbs returns a guest in which GORAIL uses rxe through libibverbs.
func verbs(rails int) bed.Guest {
	return bed.Guest{Kind: bed.RXE, Rails: rails, Limit: guestLimit, Memory: 4096, Env: []string{"GORAIL_PROVIDER=verbs"}}
}

// TestVerbsConform: the provider's own tests on rxe devices.
func TestVerbsConform(t *testing.T) {
	g := verbs(1)
	g.Env = append(g.Env, "GORAIL_TEST_VERBS=1")
	suite(t, g, "backend/provider/verbs", "^(TestConform|TestMemoryHere|TestNotReady|TestQueueFull)$")
	suite(t, g, "backend/engine", "^TestWrongKey$")
}

// TestVerbsMemlock: root without CAP_IPC_LOCK, with RLIMIT_MEMLOCK of 16 MiB.
func TestVerbsMemlock(t *testing.T) {
	skipShort(t)
	const inside = "test/rdma/inside"
	g, command := prepare(t, verbs(1), inside, "^TestMemlock$")
	r, err := g.Run(append([]string{"setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=16777216"}, command...)...)
	report(t, r, err, inside, "TestMemlock")
}

// TestEndToEndVerbs: agents on verbs use all devices, two for each rail. lists_test.go lists the tests that run, and the others with the
// reason. Guests run one at a time: two guests side by side on two CPUs take three times as long each.
func TestEndToEndVerbs(t *testing.T) {
	for rails, run := range map[int][]string{1: most, 2: several, 4: few} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) {
			if rails != 2 {
				skipShort(t)
			}
			suite(t, verbs(rails), "test/e2e", exactly(run))
		})
	}
}

// TestVerbsSlicesAndLinks: memory registered in slices, and several queue pairs on a rail.
func TestVerbsSlicesAndLinks(t *testing.T) {
	skipShort(t)
	for _, rails := range []int{1, 2} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) { suite(t, verbs(rails), "test/e2e", "^(TestSlices|TestLinks)$") })
	}
}

// TestVerbsStopped: processes are stopped for longer than a queue pair retries.
func TestVerbsStopped(t *testing.T) {
	skipShort(t)
	g := verbs(2)
	g.Env = append(g.Env, "GORAIL_STOP=9s", "GORAIL_STOP_APART=1")
	suite(t, g, "test/e2e", "^TestStoppedPeers$")
}

// TestVerbsBetweenHosts: one agent uses A's devices, the other B's. A rail goes down and recovers; another comes up late. Agents release,
// deregister, forget and are killed.
func TestVerbsBetweenHosts(t *testing.T) {
	for _, rails := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) {
			if rails != 2 {
				skipShort(t)
			}
			suite(t, verbs(rails), "test/rdma/inside", "^(TestBetweenHosts|TestRailDown|TestPortLate|TestHistory)$")
		})
	}
}

// TestVerbsFailover: one of two rails fails again and again, in each of three ways. GORAIL_FAILURES sets the number of failures.
func TestVerbsFailover(t *testing.T) {
	g := verbs(2)
	g.Rate = failoverRate
	if n := os.Getenv("GORAIL_FAILURES"); n != "" {
		g.Env = append(g.Env, "GORAIL_FAILURES="+n)
		g.Limit = 4 * guestLimit
	}
	var args []string
	if testing.Short() {
		args = append(args, "-test.short")
	}
	suite(t, g, "test/rdma/inside", "^TestFailover$", args...)
}

// failoverRate is less than a guest can send, so that a rail carries bytes all the time.
const failoverRate = "200mbit"

// TestVerbsTwoHosts: each host is a guest with its own kernel. Tests at A control agents at B.
func TestVerbsTwoHosts(t *testing.T) {
	skipShort(t)
	suitePair(t, verbs(3), "test/rdma/inside", "^(TestTwoHosts|TestPeerKilled|TestPeerRailSilent|TestPeerRailDown|TestAddressChange)$")
}

// TestVerbsAddresses: as TestVerbsTwoHosts. Addresses are replaced, taken away and brought back at either end, during transfers and while idle.
func TestVerbsAddresses(t *testing.T) {
	skipShort(t)
	suitePair(t, verbs(3), "test/rdma/inside", "^TestAddress(Replaced|BothEnds|None)$")
}

// TestVerbsSourceReused: as TestVerbsTwoHosts, without failing rails, because hundreds of transfers take long where a rail's frames
// pile up.
func TestVerbsSourceReused(t *testing.T) {
	skipShort(t)
	suitePair(t, verbs(2), "test/rdma/inside", "^TestSourceReused$")
}

// TestEndToEndTCP: end-to-end tests in a guest, with tcp over the guest's loopback.
func TestEndToEndTCP(t *testing.T) {
	skipShort(t)
	suite(t, bed.Guest{Limit: guestLimit, Env: []string{"GORAIL_PROVIDER=tcp"}}, "test/e2e", exactly(scenarios))
}

// TestEndToEndRXM: end-to-end tests on rxe with libfabric's verbs;ofi_rxm, which has shared endpoints. The user names the provider.
// Without FI_UNIVERSE_SIZE rxm requests a longer completion queue than rxe supports.
func TestEndToEndRXM(t *testing.T) {
	skipShort(t)
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guestLimit, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm", "FI_UNIVERSE_SIZE=8"}},
		"test/e2e", exactly(onRXM))
}

// TestBetweenHosts: one agent uses A's devices, the other B's, in one guest with two rails, with libfabric's rxm.
func TestBetweenHosts(t *testing.T) {
	skipShort(t)
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guestLimit, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm", "FI_UNIVERSE_SIZE=8"}},
		"test/rdma/inside", "TestBetweenHosts")
}
