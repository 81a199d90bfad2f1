package engine

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/transfer"
	"gorail/test/fake"
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

// TestPathNames: the log names the peer's rail that carried a transfer, also where the peer has a rail before it that no link uses.
func TestPathNames(t *testing.T) {
	t.Parallel()
	h := onRails(t, 1, fake.TCPCaps())
	h.log.debug = true
	h.links = []fake.Link{{Name: "far", Subnet: "b", Caps: fake.TCPCaps()}, {Name: "near", Subnet: "a", Caps: fake.TCPCaps()}}
	p := &pair{b: h.agent("bob")}
	h.links = []fake.Link{{Name: "own", Subnet: "a", Caps: fake.TCPCaps()}}
	p.a = h.agent("ann")
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.memory(1<<20), p.b.memory(1<<20).seenBy(p.a)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run()
	p.same()
	x.release()
	require.True(t, h.log.has(`msg="transfer ended"`, "fake/own>fake/near:1048576"), h.log)
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

// A rail that completes something, or has nothing in flight, is not looked at. A lost carrier is reported once.
func TestStall(t *testing.T) {
	var s stall
	looks, lost := 0, true
	look := func(completions, inFlight uint64) bool {
		var c core.Tally
		c.Completions, c.InFlight = completions, inFlight
		return s.look(c, func() bool { looks++; return lost })
	}
	require.False(t, look(5, 100), "the first look")
	require.False(t, look(6, 100), "it moves")
	require.False(t, look(6, 0), "idle")
	require.Zero(t, looks)
	require.True(t, look(6, 100))
	require.False(t, look(6, 100), "reported")
	require.Equal(t, 2, looks)
	require.False(t, look(7, 0), "fenced")
	require.True(t, look(7, 100), "again")
	lost = false
	require.False(t, look(7, 100))
}

// The carrier of an RDMA device is that of its interface, not of an interface of the device's name.
func TestInterfaceOf(t *testing.T) {
	require.Equal(t, "eth3", interfaceOf(provider.Device{Fabric: "verbs", Name: "mlx5_0", Net: "eth3"}))
	require.Equal(t, "eth0", interfaceOf(provider.Device{Fabric: "tcp", Name: "eth0"}))
	require.False(t, lostCarrier("no-such-interface"))
	require.False(t, lostCarrier("lo"))
}

// A rail fails while it has hundreds of operations in flight. The transfer's retries count the failure once, so the transfer
// ends well.
func TestRailDownManyInFlight(t *testing.T) {
	t.Parallel()
	const n, piece = 450, 130 << 10
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(n*piece, "window_min", "64MiB", "rail_timeout", "1m", "chunk_max", "1MiB", "chunk_min", "512KiB")
	p.allUp(2)
	p.b.railNo(0).Stall()
	p.b.railNo(1).Stall()
	var l, r []Desc
	for i := range n { // backwards: no descriptors merge
		l, r = append(l, p.mine.desc((n-1-i)*piece, piece)), append(r, p.theirs.desc((n-1-i)*piece, piece))
	}
	p.mine.fill(1)
	x := p.a.prep(transfer.Write, l, r, "bob").post()
	most := 0
	until(t, "one rail has more than 210 operations in flight", func() bool {
		x.check()
		for i, l := range p.a.connected("bob").links() {
			if l.Core.Stats().InflightOps > 210 {
				most = i
				return true
			}
		}
		return false
	})
	p.a.railNo(most).Down(syscall.ENETDOWN)
	p.b.railNo(0).Release()
	p.b.railNo(1).Release()
	require.Equal(t, done, x.wait())
	p.same()
}

// Small transfers leave a rail to another peer's large transfer while others are idle.
func TestSmallBesideLargeOfAnotherPeer(t *testing.T) {
	t.Parallel()
	h := onRails(t, 4, fake.TCPCaps())
	p := h.pair(16<<20, "rail_timeout", "10m")
	p.allUp(4)
	c := h.agent("carl", "rail_timeout", "10m")
	loadBoth(p.a, c)
	until(t, "all links to carl work", func() bool { return p.a.connected("carl").atWork() == 4 })
	large := p.a.whole(transfer.Write, p.mine, c.memory(16<<20).seenBy(p.a))
	large.run()
	p.a.railNo(2).Stall()
	large.post()
	until(t, "bytes to carl are in flight on the stalled rail alone", func() bool {
		var busy []int
		for _, l := range p.a.connected("carl").links() {
			if l.Count().InFlight > 0 {
				busy = append(busy, l.Rail.Index)
			}
		}
		return len(busy) == 1 && busy[0] == 2
	})
	used := p.used(16)
	p.a.railNo(2).Release()
	large.wait()
	require.NotContains(t, used, "fake2")
	require.Len(t, used, 3)
}

// Small transfers use all links of a rail, also if one is a little faster: a peer may have a device of its own behind each.
func TestSmallOnUnequalLinks(t *testing.T) {
	t.Parallel()
	const links = 4
	p := onLinks(t, links, fake.TCPCaps()).pair(1<<20, "rail_timeout", "10m")
	p.allUp(links)
	r := p.a.connected("bob")
	p.a.railNo(0).Stall()
	var all []*request
	for i := range 8 * links {
		for j, l := range r.links() { // the session sets measured ones now and then
			l.Core.SetWeight(1000 - 10*uint64(j))
		}
		x := p.a.prep(transfer.Write, []Desc{p.mine.desc(i<<10, 1<<10)}, []Desc{p.theirs.desc(i<<10, 1<<10)}, "bob")
		x.post()
		all = append(all, x)
		until(t, "it is in flight", func() bool { // a progress thread may post it: what is queued counts for no link yet
			sum := 0
			for _, l := range r.links() {
				sum += int(l.Count().InFlight)
			}
			return sum == len(all)
		})
	}
	for _, l := range r.links() {
		require.Positive(t, l.Count().InFlight, "link %d", l.Num)
	}
	p.a.railNo(0).Release()
	for _, x := range all {
		require.Equal(t, done, x.wait())
		x.release()
	}
}
