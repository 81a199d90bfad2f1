//go:build failpoints

package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/failpoint"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// TestFailpointsCodes: what the system refuses gives these codes. Failpoints are the process's, so nothing runs beside it.
func TestFailpointsCodes(t *testing.T) {
	for _, c := range []struct {
		code  *errcode.Code
		point string
		errno syscall.Errno
		call  func(h *harness, arm func()) error
	}{
		{errcode.CoreNotMade, "core_new", syscall.ENOMEM, makes},
		{errcode.CoreNotMade, "core_thread", syscall.EAGAIN, makes},
		{errcode.CoreNotMade, "engine_events_fd", syscall.EMFILE, makes},
		{errcode.RailNotMade, "core_rail", syscall.ENOMEM, makes},
		{errcode.NoRegionEntry, "core_region", syscall.ENOMEM, func(h *harness, arm func()) error {
			a := h.agent("ann")
			arm()
			_, err := a.Register(1<<40, 4096, 0, 0, nil)
			return err
		}},
		{errcode.NoTransferMemory, "core_ops", syscall.ENOMEM, func(h *harness, arm func()) error {
			p := h.pair(4096)
			arm()
			_, _, err := p.a.Prep(transfer.Write, []Desc{p.mine.desc(0, 8)}, []Desc{p.theirs.desc(0, 8)}, "bob")
			return err
		}},
		{errcode.NotifRefused, "core_notif_out", syscall.ENOMEM, func(h *harness, arm func()) error {
			p := h.pair(4096)
			p.a.connected("bob")
			arm()
			return p.a.Notify("bob", []byte("n"))
		}},
	} {
		t.Run(c.point, func(t *testing.T) {
			h := onFake(t, fake.TCPCaps())
			t.Cleanup(func() { failpoint.Arm(c.point, 0, 0) })
			err := c.call(h, func() { failpoint.ArmAll(c.point, c.errno) })
			failpoint.Arm(c.point, 0, 0)
			require.Error(t, err)
			require.Equal(t, c.code.String(), errcode.Of(err).String(), err)
		})
	}
}

func makes(h *harness, arm func()) error {
	arm()
	_, err := h.open("ann")
	return err
}
