package rdma

import (
	"testing"

	"gorail/test/rdma/bed"
)

// TestEndToEndTCP: the end-to-end tests run in a guest as on a machine (libfabric's native tcp over its loopback).
func TestEndToEndTCP(t *testing.T) {
	suite(t, bed.Guest{}, "test/e2e", `^(TestNotifAlone|TestSizes|TestRepost)$`)
}

// TestEndToEndRXM: over verbs on rxe with libfabric's rxm, the shared-endpoint kind, named by the user.
func TestEndToEndRXM(t *testing.T) {
	suite(t, bed.Guest{Kind: bed.RXE, Rails: 1, Env: []string{"GORAIL_PROVIDER=verbs;ofi_rxm"}},
		"test/e2e", `^(TestNotifAlone|TestSizes)$`)
}
