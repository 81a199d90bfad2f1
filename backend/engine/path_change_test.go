package engine

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
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

// A rail that goes down and up all the time gives a line a second. The line counts the changes that have none.
func TestPathFlaps(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(64 << 10)
	p.allUp(2)
	begun := time.Now()
	for i := 0; time.Since(begun) < 2500*time.Millisecond || h.log.sum("suppressed=") < 5; i++ {
		require.Less(t, time.Since(begun), patience)
		p.a.railChanged("fake0", i%2 == 1)
		works := func() int {
			n := 0
			for _, r := range p.a.initiators.Of("bob").Peer().View().Routes {
				if r.Working {
					n++
				}
			}
			return n
		}
		until(t, "the change is known", func() bool { return works() == 1+i%2 })
	}
	// Each agent logs for its own session: a target asks the initiator to fence.
	for _, agent := range []string{"agent=ann", "agent=bob"} {
		require.LessOrEqual(t, h.log.lines("path to peer changed", agent), 2+int(time.Since(begun)/time.Second), agent)
	}
	for _, line := range []string{"rail in use", "link renewed", "fencing a link", "rail down"} {
		require.LessOrEqual(t, h.log.count(line), 30+int(time.Since(begun)/time.Second), line)
	}
}
