package rdma

import (
	"fmt"
	"testing"
	"time"

	"gorail/test/rdma/bed"
)

// scenarios are end-to-end tests that take seconds in a guest; TestSizes takes a minute there.
const scenarios = `^(TestNotifAlone|TestNotifAfterData|TestZeroLength)$`

// guests gives tests time for a busy machine.
const guests = 5 * time.Minute

// verbs is a guest in which GORAIL uses rxe through libibverbs.
func verbs(rails int) bed.Guest {
	return bed.Guest{Kind: bed.RXE, Rails: rails, Limit: guests, Memory: 4096, Env: []string{"GORAIL_PROVIDER=verbs"}}
}

// TestVerbsConform: the provider's own tests.
func TestVerbsConform(t *testing.T) {
	g := verbs(1)
	g.Env = append(g.Env, "GORAIL_TEST_VERBS=1")
	suite(t, g, "backend/provider/verbs", "^TestConform$")
}

// TestEndToEndVerbs: agents on verbs, on every device that there is: two a rail. TestTransferTimeout is not among them, since the
// device of a stopped peer serves it; what runs in gigabytes or counts descriptors is not for guests.
func TestEndToEndVerbs(t *testing.T) {
	const most = `^(TestNotifAlone|TestNotifAfterData|TestZeroLength|TestLoopback|TestTwoAgentsOneProcess|TestBothDirections|TestOverlapping|TestReload|TestReloadInFlight|TestRestart|TestKillIdle|TestKillInitiator|TestStopped|TestReleaseManyInFlight|TestDeregisterInFlight|TestDeregisterLocalInFlight)$`
	for rails, run := range map[int]string{1: most, 2: scenarios, 4: scenarios} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) { suite(t, verbs(rails), "test/e2e", run) })
	}
}

// TestVerbsBetweenHosts: an agent on A's devices and one on B's; a rail that goes down and comes back.
func TestVerbsBetweenHosts(t *testing.T) {
	for _, rails := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) {
			suite(t, verbs(rails), "test/rdma/inside", "^(TestBetweenHosts|TestRailDown)$")
		})
	}
}

// TestEndToEndTCP: the end-to-end tests run in a guest as on a machine (libfabric's native tcp over its loopback).
func TestEndToEndTCP(t *testing.T) {
	suite(t, bed.Guest{Limit: guests, Env: []string{"GORAIL_PROVIDER=tcp"}}, "test/e2e", scenarios)
}

// TestEndToEndRXM: over verbs on rxe with libfabric's rxm, the shared-endpoint kind, named by the user. Without
// FI_UNIVERSE_SIZE rxm asks for a longer completion queue than rxe has.
func TestEndToEndRXM(t *testing.T) {
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guests, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm", "FI_UNIVERSE_SIZE=8"}},
		"test/e2e", scenarios)
}

// TestBetweenHosts: an agent on A's devices and one on B's, in one guest with two rails between them.
func TestBetweenHosts(t *testing.T) {
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 2, Limit: guests, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm", "FI_UNIVERSE_SIZE=8"}},
		"test/rdma/inside", "TestBetweenHosts")
}
