package rdma

import (
	"fmt"
	"testing"
	"time"

	"gorail/test/rdma/bed"
)

// guests gives tests time for a busy machine.
const guests = 30 * time.Minute

// whole skips what `go test -short` leaves out: CI runs a part of these tests, of each kind of test one.
func whole(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short")
	}
}

// verbs is a guest in which GORAIL uses rxe or siw through libibverbs.
func verbs(kind bed.Kind, rails int) bed.Guest {
	return bed.Guest{Kind: kind, Rails: rails, Limit: guests, Memory: 4096, Env: []string{"GORAIL_PROVIDER=verbs"}}
}

// TestVerbsConform: the provider's own tests, and what it asks the device.
func TestVerbsConform(t *testing.T) {
	for _, kind := range []bed.Kind{bed.RXE, bed.SIW} {
		t.Run(string(kind), func(t *testing.T) {
			g := verbs(kind, 1)
			g.Env = append(g.Env, "GORAIL_TEST_VERBS=1")
			suite(t, g, "backend/provider/verbs", "^(TestConform|TestMemoryHere)$")
			if kind == bed.RXE { // iWARP has no RNR: a message without a receive ends the connection
				suite(t, g, "backend/provider/verbs", "^(TestNotReady|TestQueueFull)$")
				suite(t, g, "backend/engine", "^TestWrongKey$")
			}
		})
	}
}

// TestVerbsMemlock: root without the right to lock what it likes.
func TestVerbsMemlock(t *testing.T) {
	whole(t)
	const inside = "test/rdma/inside"
	g, command := prepare(t, verbs(bed.RXE, 1), inside, "^TestMemlock$")
	r, err := g.Run(append([]string{"setpriv", "--bounding-set=-ipc_lock", "prlimit", "--memlock=16777216"}, command...)...)
	report(t, r, err, inside, "TestMemlock")
}

// TestEndToEndVerbs: agents on verbs, on every device that there is: two a rail. lists_test.go has what runs, and what doesn't and why.
// One guest at a time: two side by side on two processors take three times as long each.
func TestEndToEndVerbs(t *testing.T) {
	for kind, lists := range map[bed.Kind]map[int][]string{
		bed.RXE: {1: most, 2: several, 4: few},
		bed.SIW: {1: several, 2: few},
	} {
		for rails, run := range lists {
			t.Run(fmt.Sprintf("%s/rails=%d", kind, rails), func(t *testing.T) {
				if !(kind == bed.RXE && rails == 2 || kind == bed.SIW && rails == 1) {
					whole(t)
				}
				suite(t, verbs(kind, rails), "test/e2e", exactly(run))
			})
		}
	}
}

// TestVerbsSlicesAndLinks: memory in slices, and several queue pairs a rail.
func TestVerbsSlicesAndLinks(t *testing.T) {
	whole(t)
	for _, rails := range []int{1, 2} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) { suite(t, verbs(bed.RXE, rails), "test/e2e", "^(TestSlices|TestLinks)$") })
	}
}

// TestVerbsStopped: processes that stand still for longer than a queue pair retries.
func TestVerbsStopped(t *testing.T) {
	whole(t)
	g := verbs(bed.RXE, 2)
	g.Env = append(g.Env, "GORAIL_STOP=9s", "GORAIL_STOP_APART=1")
	suite(t, g, "test/e2e", "^TestStoppedPeers$")
}

// TestVerbsBetweenHosts: an agent on A's devices and one on B's; a rail that goes down and comes back.
func TestVerbsBetweenHosts(t *testing.T) {
	for _, rails := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) {
			if rails != 2 {
				whole(t)
			}
			suite(t, verbs(bed.RXE, rails), "test/rdma/inside", "^(TestBetweenHosts|TestRailDown|TestPortLate)$")
		})
	}
}

// TestVerbsTwoHosts: the same with a kernel for each host; tests at A drive agents at B.
func TestVerbsTwoHosts(t *testing.T) {
	whole(t)
	for kind, more := range map[bed.Kind]string{bed.RXE: "|TestAddressChange", bed.SIW: ""} {
		t.Run(string(kind), func(t *testing.T) {
			suitePair(t, verbs(kind, 3), "test/rdma/inside", "^(TestTwoHosts|TestPeerKilled|TestPeerRailSilent|TestPeerRailDown"+more+")$")
		})
	}
}

// TestVerbsSourceReused: the same, with rails that stay whole: hundreds of transfers take long where a rail's frames pile up.
func TestVerbsSourceReused(t *testing.T) {
	whole(t)
	for kind, rails := range map[bed.Kind]int{bed.RXE: 2, bed.SIW: 1} {
		t.Run(string(kind), func(t *testing.T) { suitePair(t, verbs(kind, rails), "test/rdma/inside", "^TestSourceReused$") })
	}
}

// TestEndToEndTCP: the end-to-end tests run in a guest as on a machine (libfabric's native tcp over its loopback).
func TestEndToEndTCP(t *testing.T) {
	whole(t)
	suite(t, bed.Guest{Limit: guests, Env: []string{"GORAIL_PROVIDER=tcp"}}, "test/e2e", exactly(scenarios))
}

// TestEndToEndRXM: over verbs on rxe with libfabric's rxm, the shared-endpoint kind, named by the user. Without
// FI_UNIVERSE_SIZE rxm asks for a longer completion queue than rxe has.
func TestEndToEndRXM(t *testing.T) {
	whole(t)
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guests, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm", "FI_UNIVERSE_SIZE=8"}},
		"test/e2e", exactly(onRXM))
}

// TestBetweenHosts: an agent on A's devices and one on B's, in one guest with two rails between them.
func TestBetweenHosts(t *testing.T) {
	whole(t)
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guests, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm", "FI_UNIVERSE_SIZE=8"}},
		"test/rdma/inside", "TestBetweenHosts")
}
