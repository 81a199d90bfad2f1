//go:build failpoints

package engine

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/failpoint"
)

// TestNotifsOfHalfAConnection: on one host an initiator may be connected, and send, while the target cannot map the
// initiator's memory. What was accepted comes once and in order, whether the link is fenced again or the session ends.
func TestNotifsOfHalfAConnection(t *testing.T) {
	const maps = 6 // of a connection's two ends
	h := onHost(t)
	a, b := h.agent("ann"), h.agent("bob")
	loadBoth(a, b)
	t.Cleanup(func() { failpoint.Arm("shm_map", 0, 0) })
	var want []string
	for round := range rounds(10, 100) * maps {
		send := func(text string) {
			text = fmt.Sprint(text, " ", round)
			require.NoError(t, a.Notify("bob", []byte(text)))
			want = append(want, "ann:"+text)
		}
		send("before")
		r := a.connected("bob")
		failpoint.Arm("shm_map", 1+round%maps, syscall.ENOMEM)
		r.fenceAll("a test")
		send("first")
		send("second")
		until(t, "memory is mapped again", func() bool { return failpoint.Passes("shm_map") > round%maps })
		if round/maps%2 == 0 {
			r.fail("a test")
		}
		send("after")
		b.expect(want...)
		want = nil
	}
}
