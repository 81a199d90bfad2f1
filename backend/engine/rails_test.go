package engine

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

func (p *pair) allUp(n int) {
	p.a.t.Helper()
	until(p.a.t, "all links work", func() bool { return p.a.connected("bob").atWork() == n })
}

// railNo is the agent's fake rail n, which a test scripts.
func (a *agent) railNo(n int) *fake.Rail { return a.prov.Rail(fmt.Sprint("fake", n)) }

// A large transfer uses all rails. A small transfer uses one rail, and small transfers take the rails in turn.
func TestShares(t *testing.T) {
	t.Parallel()
	for op := range 2 {
		h := onRails(t, 4, fake.TCPCaps())
		p := h.pair(16 << 20)
		p.allUp(4)
		x := p.a.whole(op, p.mine.fill(1), p.theirs.fill(2))
		x.run("all")
		p.same()
		var sum uint64
		for i, n := range x.shares() {
			require.Positive(h, n, "rail %d", i)
			sum += n
		}
		require.EqualValues(h, 16<<20, sum)
		used := map[int]bool{}
		for i := range 8 {
			y := p.a.prep(op, []Desc{p.mine.desc(i*4096, 4096)}, []Desc{p.theirs.desc(i*4096, 4096)}, "bob")
			y.run("")
			for k, n := range y.shares() {
				require.True(h, n == 0 || n == 4096, "a small transfer stays on one rail")
				used[k] = used[k] || n > 0
			}
		}
		require.Len(h, used, 4)
		n := 0
		for _, u := range used {
			if u {
				n++
			}
		}
		require.Equal(h, 4, n)
	}
}

// A stalled rail holds up only its bytes in flight. After rail_timeout its link is fenced, and other rails move those bytes.
func TestStalledRail(t *testing.T) {
	t.Parallel()
	h := onRails(t, 3, fake.TCPCaps())
	p := h.pair(8<<20, "rail_timeout", "30ms")
	p.allUp(3)
	for i := range 3 {
		n := i
		p.b.railNo(n).Stall()
		for op := range 2 {
			p.a.whole(op, p.mine.fill(uint64(n)), p.theirs.fill(9)).run("past it")
			p.same()
		}
		until(h, "the other rails work", func() bool { return p.a.connected("bob").atWork() == 2 }) // a starved one may have been fenced, too
		p.b.railNo(n).Release()
		p.allUp(3)
	}
	p.b.expect("ann:past it", "ann:past it", "ann:past it", "ann:past it", "ann:past it", "ann:past it")
}

// A device goes down at the target, and the initiator sees nothing of it. The target asks for a fence, so that nothing waits for rail_timeout.
func TestTargetsDeviceDown(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(8<<20, "rail_timeout", "1h")
	p.allUp(2)
	for op := range 2 {
		p.b.railNo(1).Stall()
		x := p.a.whole(op, p.mine.fill(uint64(op)), p.theirs.fill(9)).post("past it")
		p.b.railChanged("fake1", false)
		require.Equal(h, done, x.wait())
		p.same()
		p.b.railNo(1).Release()
		p.b.railChanged("fake1", true)
		p.allUp(2)
		p.b.expect("ann:past it")
	}
	one := onRails(t, 1, fake.TCPCaps())
	q := one.pair(4096)
	q.b.railChanged("fake0", false)
	q.a.whole(transfer.Write, q.mine.fill(1), q.theirs).run("")
	q.same()
	require.Zero(t, q.a.rails.List[0].Fences.Load(), "no other link could do the work")
}

// A rail is stalled with a full window. Transfers that have posted nothing there do not wait for that rail.
func TestPastAFullRail(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	h := onRails(t, 3, fake.TCPCaps())
	p := h.pair(size, "rail_timeout", "1m", "chunk_max", "128KiB", "window_min", "1MiB", "window_max", "1MiB")
	p.allUp(3)
	for i := range 3 {
		p.mine.fill(uint64(i))
		p.b.railNo(i).Stall()
		link := p.a.connected("bob").links()[i].Core
		var stuck []*request
		for s := link.Stats(); s.InflightBytes < s.Window; s = link.Stats() {
			stuck = append(stuck, p.a.whole(transfer.Write, p.mine, p.theirs).post(""))
			until(h, "the unfinished bytes are all in flight on that rail", func() bool {
				left := uint64(0)
				for _, x := range stuck {
					x.check()
					left += size - x.record().Slot().Done()
				}
				return left == link.Stats().InflightBytes
			})
		}
		for range 3 {
			p.a.whole(transfer.Write, p.mine, p.theirs).run("")
		}
		p.b.railNo(i).Release()
		for _, x := range stuck {
			require.Equal(h, done, x.wait())
		}
		p.same()
	}
}

// A rail goes down during a transfer. No transfer fails, and no notification and no byte is lost. The rail is used again when it
// is up.
func TestRailDown(t *testing.T) {
	t.Parallel()
	h := onRails(t, 3, fake.TCPCaps())
	p := h.pair(8<<20, "rail_timeout", "30ms")
	p.allUp(3)
	var want []string
	for round := range 12 {
		end := []*agent{p.a, p.b}[round/3%2]
		for i := range 3 {
			p.a.railNo(i).Script(fake.Script{PerPoll: 2})
		}
		x := p.a.whole(round%2, p.mine.fill(uint64(round)), p.theirs.fill(uint64(round)+100)).post(fmt.Sprint(round))
		for i := range 5 {
			require.NoError(h, p.a.Notify("bob", []byte(fmt.Sprint(round, ".", i))))
		}
		until(h, "1 MiB has been moved", func() bool { return x.check() != inProg || x.record().Slot().Done() > 1<<20 })
		end.railNo(round % 3).Down(syscall.ENETDOWN)
		require.Equal(h, done, x.wait())
		p.same()
		end.railNo(round % 3).Up()
		p.allUp(3)
		x.release()
		want = append(want, "ann:"+fmt.Sprint(round))
		for i := range 5 {
			want = append(want, "ann:"+fmt.Sprint(round, ".", i))
		}
		until(h, "all notifications arrive", func() bool { return len(p.b.take()) >= len(want) })
		require.ElementsMatch(h, want, p.b.got)
	}
}

// One side has three rails, the other has one.
func TestUnequalRails(t *testing.T) {
	t.Parallel()
	h := onRails(t, 3, fake.TCPCaps())
	a := h.agent("ann")
	h.links = h.links[:1]
	b := h.agent("bob")
	loadBoth(a, b)
	own := b.memory(4 << 20)
	p := &pair{a: a, b: b, mine: a.memory(4 << 20), theirs: own.seenBy(a)}
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run("many to one")
	p.same()
	b.expect("ann:many to one")
	back := p.mine.seenBy(b)
	b.whole(transfer.Read, own.fill(2), back).run("one to many")
	p.same()
	a.expect("bob:one to many")
}
