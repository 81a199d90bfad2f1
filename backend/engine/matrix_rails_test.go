package engine

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
	imitation "gorail/test/verbs"
)

// One rail of a session fails to connect. Memory that only this rail reaches is staged over the other rails.
func TestMatrixRailNotUp(t *testing.T) {
	t.Parallel()
	h := withMemory(t, 2)
	a, b := h.agent("ann"), h.agent("bob")
	h.lacks("reg_dmabuf_mr", 1)
	mine := h.gpu(a, 0, small, 0)
	h.lacks("reg_dmabuf_mr", 1)
	theirs := h.gpu(b, 1, small, 0)
	h.lib.Fail("modify_rtr", 1, syscall.EIO) // bob's endpoint on hca0
	require.NoError(t, a.LoadConn("bob", apart{alone: true}.conn(b)))
	r := a.connected("bob")
	until(t, "the other rail works", func() bool { return r.atWork() == 1 })
	require.True(t, h.log.has("rail not used for a peer", "rail=verbs/hca0", "peer=bob"))
	h.moves(a, b, mine, theirs)
	require.Positive(t, a.staging.Counts().Transfers)
}

// Only one rail has the GPU memory of both sides registered. It goes down during a transfer or before it. The transfer is
// staged over the other rail then. Transfers are no longer staged when the first rail is back.
func TestMatrixRailAway(t *testing.T) {
	t.Parallel()
	for _, under := range []bool{false, true} {
		for op := range 2 {
			t.Run(fmt.Sprintf("under=%v, op %d", under, op), func(t *testing.T) {
				h := withMemory(t, 2)
				a, b := h.pairApart(apart{alone: true})
				h.lacks("reg_dmabuf_mr", 0)
				mine := h.gpu(a, 0, small, 0)
				h.lacks("reg_dmabuf_mr", 0)
				theirs := h.gpu(b, 1, small, 0)
				r := a.connected("bob")
				until(t, "both rails work", func() bool { return r.atWork() == 2 })
				x := a.prep(op, []Desc{mine.desc(0, small)}, []Desc{theirs.seenBy(a).desc(0, small)}, "bob")
				moves := func(how string) {
					t.Helper()
					from, to := mine, theirs
					if op == transfer.Read {
						from, to = to, from
					}
					want := from.fill()
					x.post(how)
					if how == "under" {
						h.lib.Event(1, imitation.PortErr, 1)
						h.lib.Set("delay", 0)
					}
					require.Equal(t, status.Success, status.Code(x.wait()))
					b.expect("ann:" + how)
					pattern.Same(t, want, to.bytes())
				}
				moves("first")
				require.Zero(t, a.staging.Counts().Transfers)
				h.lib.FailMany("modify_rtr", 1, 1<<30, syscall.EIO) // the rail stays down
				if under {
					h.lib.Set("delay", 1<<30)
					moves("under")
				} else {
					h.lib.Event(1, imitation.PortErr, 1)
					until(t, "one link has stopped", func() bool { return r.atWork() == 1 })
				}
				moves("away")
				require.Positive(t, a.staging.Counts().Transfers)
				h.lib.Fail("modify_rtr", 0, 0)
				h.lib.Event(1, imitation.PortActive, 1)
				until(t, "both rails work again", func() bool { return r.atWork() == 2 })
				before := a.staging.Counts().Transfers
				moves("back")
				require.Equal(t, before, a.staging.Counts().Transfers)
			})
		}
	}
}
