package rdma

import (
	"testing"
	"time"

	"gorail/test/rdma/bed"
)

// scenarios are end-to-end tests that take seconds in a guest; TestSizes takes a minute there.
const scenarios = `^(TestNotifAlone|TestNotifAfterData|TestZeroLength)$`

// guests gives tests time for a busy machine.
const guests = 5 * time.Minute

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
