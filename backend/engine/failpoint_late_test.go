//go:build failpoints

package engine

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/failpoint"
	"gorail/test/fake"
)

// TestFailpointsAtTheEnd: memory is short when a session ends. A notification that Go has put in order comes all the same, once,
// and the next session goes on behind it.
func TestFailpointsAtTheEnd(t *testing.T) {
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	t.Cleanup(func() { failpoint.Arm("core_notif_in", 0, 0) })
	for range rounds(5, 50) {
		require.NoError(t, a.Notify("bob", []byte("before")))
		b.expect("ann:before")
		failpoint.ArmAll("core_notif_in", syscall.ENOMEM)
		long := strings.Repeat("long", 30_000) // in fragments, which Go puts together
		require.NoError(t, a.Notify("bob", []byte(long)))
		until(t, "the delivery has failed", func() bool { return failpoint.Passes("core_notif_in") > 0 })
		a.connected("bob").fail("a test")
		tried := failpoint.Passes("core_notif_in")
		until(t, "the session ends meanwhile", func() bool { return failpoint.Passes("core_notif_in") > tried+10 })
		failpoint.Arm("core_notif_in", 0, 0)
		require.NoError(t, a.Notify("bob", []byte("after")))
		b.expect("ann:"+long, "ann:after")
	}
	require.False(t, h.log.has("notifications lost"), h.log.String())
}
