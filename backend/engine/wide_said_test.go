package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/transfer"
)

// All of a small transfer is posted, its notification, too, when the peer's rail goes silent for longer than rail_timeout. A link over the same rail of
// ours begins meanwhile. The transfer ends well when the rail moves again.
func TestWideSaid(t *testing.T) {
	t.Parallel()
	h, _ := onPorts(t, 4, 2)
	h.wrap = func(of provider.Provider) provider.Provider { return &ports{Provider: of} }
	p := &pair{a: h.agent("ann", "devices", "fake0", "rail_timeout", "200ms"), b: h.agent("bob")}
	loadBoth(p.a, p.b)
	first := p.a.connected("bob").links()[0]
	until(t, "the first link works", func() bool { return first.Proved })
	p.mine, p.theirs = p.a.memory(4<<10), p.b.on(1).memory(4<<10).seenBy(p.a)
	silent := p.b.prov.Rail(p.b.rails.List[first.Peer].Device().Name)
	silent.Stall()
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	defer x.release()
	x.post("said")
	until(t, "another link works", func() bool {
		return p.a.connected("bob").atWork() > 1
	})
	slot := x.record().Slot()
	within(time.Second, func() bool { code, _ := slot.Err(); return code != 0 }) // it may begin anew: what counts is its end
	silent.Release()
	require.Equal(t, errcode.Success, errcode.Status(x.wait()), h.log)
	p.same()
}
