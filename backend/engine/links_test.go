package engine

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// Several links of one rail share a transfer, as rails do. Counters of rails count their rail once.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, rails := range []int{1, 2} {
		t.Run(fmt.Sprint("rails=", rails), func(t *testing.T) {
			h := onRails(t, rails, fake.TCPCaps())
			for i := range h.links {
				h.links[i].Mbps = 1000
			}
			p := h.pair(16<<20, "qps_per_rail", "3")
			p.allUp(3 * rails)
			for op := range 2 {
				x := p.a.whole(op, p.mine.fill(uint64(op)), p.theirs.fill(9))
				until(t, "all links have a share", func() bool { // a busy host may stop some for a moment
					x.run("n")
					p.same()
					return !slices.Contains(x.shares(), 0)
				})
				paths := x.record().Slot().Paths()
				require.Len(t, paths, rails, "%v", paths)
				sum := uint64(0)
				for _, w := range paths {
					sum += w.Bytes
				}
				require.EqualValues(t, 16<<20, sum)
				x.release()
			}
			r := p.a.connected("bob")
			require.Len(t, r.Path(), rails)
			require.EqualValues(t, 334, r.Weight(r.links()[0]), "a third of the rail's speed")
			require.True(t, h.log.has("peer connected", "session=initiator", fmt.Sprint("links=", 3*rails)))
			s, err := p.a.Snapshot()
			require.NoError(t, err)
			require.Len(t, s.Rails, rails)
			require.Len(t, s.Peers[0].Links, 3*rails)
			var moved uint64
			for i, l := range s.Peers[0].Links {
				require.Equal(t, i, l.Number)
				if l.Index == 0 {
					moved += l.BytesWritten
				}
			}
			require.Positive(t, moved)
			require.Equal(t, moved, s.Rails[0].BytesWritten, "the rail's bytes are the sum of its links' bytes")
		})
	}
}

// One link of a rail breaks. Only that link is fenced. The other links take its batches.
func TestOneLinkBreaks(t *testing.T) {
	t.Parallel()
	for _, op := range []int{0, 1} {
		h := onLinks(t, 3, placing())
		h.log.debug = true
		p := h.pair(8 << 20)
		p.allUp(3)
		for round := range 4 {
			fences := p.a.rails.List[0].Fences.Load()
			x := p.a.whole(op, p.mine.fill(uint64(round)), p.theirs.fill(77))
			p.a.rail().Script(fake.Script{FailAt: 9, FailErrno: syscall.EIO, FailBreaks: true, PerPoll: 4})
			x.run(fmt.Sprint("after ", round))
			p.same()
			p.b.expect(fmt.Sprint("ann:after ", round))
			require.Equal(t, fences+1, p.a.rails.List[0].Fences.Load())
			p.a.rail().Script(fake.Script{})
			p.allUp(3)
			x.release()
		}
		broken := 0
		for _, l := range p.a.connected("bob").links() {
			if l.Epoch > 0 {
				broken++
			}
		}
		require.Positive(t, broken)
		require.False(t, h.log.has("control connection suspected"), "the rail works")
	}
}

// The kernel reports that a device is down. Its links are fenced if the session has links over another device. Else none is
// fenced, because the session has no other links.
func TestLinksDeviceDown(t *testing.T) {
	t.Parallel()
	for _, rails := range []int{1, 2} {
		h := onRails(t, rails, fake.TCPCaps())
		p := h.pair(4096, "qps_per_rail", "3")
		p.allUp(3 * rails)
		p.a.railChanged("fake0", false)
		settled(p.a, p.a.connected("bob"))
		require.EqualValues(t, 3*(rails-1), p.a.rails.List[0].Fences.Load())
		p.a.railChanged("fake0", true)
		p.allUp(3 * rails)
		p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run("")
		p.same()
	}
}
