package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/test/fake"
)

// The log has the path to a peer, and each change of the path.
func TestPathChanges(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(64 << 10)
	p.allUp(2)
	require.True(t, h.log.has("peer connected", "agent=ann", "peer=bob", "session=initiator", "engine="+p.b.blob.Engine.String(), "path=DRAM:fake/fake0,fake/fake1"))
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	p.b.rail().Down(syscall.EIO)
	until(t, "the rail is out", func() bool {
		x.run()
		return h.log.has("path to peer changed", "agent=ann", "peer=bob", "from=DRAM:fake/fake0,fake/fake1 to=DRAM:fake/fake1 ")
	})
	p.b.rail().Up()
	until(t, "the rail is back", func() bool {
		return h.log.has("path to peer changed", "agent=ann", "from=DRAM:fake/fake1 to=DRAM:fake/fake0,fake/fake1 ")
	})
	x.run()
	p.same()
}
