package engine

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/session"
	"gorail/backend/stats"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// ports discovers fake devices as ports that leave the host. Some are down: they wait, and do not open.
type ports struct {
	provider.Provider
	mu   sync.Mutex
	down map[string]bool
}

func (p *ports) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	found, err := afar{p.Provider}.Discover(ctx, f)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range found {
		if found[i].Subnet = "ib:fe80"; p.down[found[i].Name] {
			found[i].Waits, found[i].Mbps = "the port is DOWN", 0
		}
	}
	return found, err
}

func (p *ports) Open(d provider.Device) (provider.Rail, error) {
	if d.Waits != "" {
		return nil, fmt.Errorf("%w: %s: %s", provider.ErrUnusable, d.Name, d.Waits)
	}
	return p.Provider.Open(d)
}

// onPorts is onWide, where ports of the next agent are down. up brings one of them up.
func onPorts(t testing.TB, each, most int, down ...string) (h *harness, up func(a *agent, name string)) {
	h = onWide(t, each, most, fake.SecuredCaps())
	p := &ports{down: map[string]bool{}}
	for _, name := range down {
		p.down[name] = true
	}
	h.wrap = func(of provider.Provider) provider.Provider {
		p.Provider = of
		return p
	}
	return h, func(a *agent, name string) {
		p.mu.Lock()
		delete(p.down, name)
		p.mu.Unlock()
		a.rails.Nudge(name)
	}
}

// on reports that memory of an agent is registered on one of its rails.
func (m *memory) on(rail int) bool {
	return m.owner.regions.Regions.Get(m.md.region).Rails.Load()&(1<<rail) != 0
}

// routes are the links that have moved bytes in the last post.
func (x *request) routes() iter.Seq[transfer.Route] {
	t := x.record()
	return func(yield func(transfer.Route) bool) {
		for _, r := range t.Peer().View().Routes {
			if t.Slot().Share(r.Link) > 0 && !yield(r) {
				return
			}
		}
	}
}

func (a *agent) stateOf(rail int) string {
	s, err := a.Snapshot()
	require.NoError(a.t, err)
	return string(s.Rails[rail].State)
}

// A device of a wide machine is down when its engine is made, and comes up later. Memory that is registered from then on is on it. Memory of before
// keeps its rails, and transfers with both go on.
func TestWideLate(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"ours", "theirs"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			h, up := onPorts(t, 6, 3, "fake6", "fake9")
			open := func() *agent { return h.agent(side) }
			late := open()
			h.wrap = func(of provider.Provider) provider.Provider { return &ports{Provider: of} }
			p := &pair{a: late, b: h.agent("other")}
			if side == "theirs" {
				p.a, p.b = p.b, p.a
			}
			require.Len(t, late.rails.List, 12)
			require.True(t, h.log.has("left_out", "fake6: the port is DOWN; joins when it comes up"), h.log)
			require.Equal(t, string(stats.Down), late.stateOf(6))
			loadBoth(p.a, p.b)
			before := late.on(1).memory(4 << 20)
			require.Equal(t, []bool{false, true, true, false, true}, []bool{before.on(6), before.on(7), before.on(8), before.on(9), before.on(10)})
			transferred := func(own *memory) (over map[int]bool) {
				p.mine, p.theirs = own, p.b.on(1).memory(4<<20).seenBy(p.a)
				if side == "theirs" {
					p.mine, p.theirs = p.a.on(1).memory(4<<20), own.seenBy(p.a)
				}
				x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
				defer x.release()
				over = map[int]bool{}
				until(t, "links for it are up", func() bool {
					x.run("")
					p.same()
					for r := range x.routes() {
						over[map[string]int{"ours": r.Rail.Index, "theirs": r.Peer}[side]] = true
					}
					return over[7] && over[8] && (over[6] || !own.on(6))
				})
				return over
			}
			require.NotContains(t, transferred(before), 6)
			up(late, "fake6")
			until(t, "it is up", func() bool {
				return late.stateOf(6) != string(stats.Down) && late.rails.For(rails.Place{Node: 1})&(1<<6) != 0
			})
			after := late.memory(4 << 20)
			require.True(t, after.on(6))
			require.True(t, after.on(7))
			require.False(t, before.on(6))
			require.Contains(t, transferred(after), 6)
			require.NotContains(t, transferred(before), 6)
			require.False(t, late.rails.List[9].Opened())
			require.True(t, h.log.has("rail joined", "fake6"), h.log)
		})
	}
}

// All rails of memory are down. A device that comes up then gets the memory, and its transfers go on, in both directions.
func TestWideLateAlone(t *testing.T) {
	t.Parallel()
	h, up := onPorts(t, 4, 2, "fake5", "fake7")
	late := h.agent("ann")
	h.wrap = func(of provider.Provider) provider.Provider { return &ports{Provider: of} }
	p := &pair{a: late, b: h.agent("bob")}
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.on(1).memory(1<<20), p.b.on(1).memory(1<<20).seenBy(p.a)
	back := p.mine.seenBy(p.b)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	defer x.release()
	x.run("")
	p.same()
	for i := range 8 {
		if i != 5 && i != 7 {
			late.railChanged(fmt.Sprint("fake", i), false)
			if r := late.prov.Rail(fmt.Sprint("fake", i)); r != nil {
				r.Stall()
				defer r.Release()
			}
		}
	}
	require.False(t, p.mine.on(5))
	p.mine.fill(2)
	x.post("")
	up(late, "fake5")
	until(t, "the memory is on the device that has come up", func() bool { return p.mine.on(5) })
	require.Equal(t, errcode.Success, errcode.Status(x.wait()))
	p.same()
	p.mine.fill(4)
	x.run("")
	p.same()
	require.Positive(t, p.a.connected("bob").count(func(l *session.Link) bool { return l.Rail.Index == 5 && l.Proved }))
	own := p.b.memory(1 << 20).fill(3)
	y := p.b.whole(transfer.Write, own, back)
	y.run("")
	y.release()
	require.Equal(t, own.b, p.mine.b)
}

// Devices of one class have limits of their own: each rail keeps to them. One of another kind is left out, with one warning, and the next nearest takes its
// place.
func TestWideCaps(t *testing.T) {
	t.Parallel()
	h, _ := onPorts(t, 6, 3)
	small, other := fake.SecuredCaps(), sharedCaps()
	small.MaxMsg, small.MaxSend, small.IOVLimit, small.TxDepth, small.RxDepth, small.KeySize = 40<<10, 32<<10, 1, 32, 32, 6
	small.MaxMR = 2 << 20
	h.links[7].Caps, h.links[8].Caps = small, other
	a := h.agent("ann")
	h.wrap = func(of provider.Provider) provider.Provider { return &ports{Provider: of} }
	h.links[8].Caps = fake.SecuredCaps()
	p := &pair{a: a, b: h.agent("bob")}
	loadBoth(p.a, p.b)
	large := p.a.on(1).memory(4 << 20)
	p.mine, p.theirs = p.a.on(1).memory(2<<20), p.b.on(1).memory(2<<20).seenBy(p.a)
	on := func(m *memory) (list []bool) {
		for i := 6; i < 11; i++ {
			list = append(list, m.on(i))
		}
		return list
	}
	require.Equal(t, []bool{true, true, false, true, false}, on(p.mine))
	require.Equal(t, []bool{true, false, false, true, false}, on(large), "larger than the limit of a device")
	for range 3 {
		p.a.memory(4 << 20)
	}
	require.Equal(t, 1, h.log.lines("memory not registered on a rail", "fake7", "the memory is larger than the device's limit of 2097152 bytes"), h.log)
	require.Equal(t, 1, h.log.lines("rail not used: its device did not open", "fake8", "another kind"), h.log)
	p.worksOver(t, 6, 7, 9)
	x := p.a.whole(transfer.Write, p.mine.fill(2), p.theirs)
	defer x.release()
	until(t, "the rail with less takes a share", func() bool {
		x.run("")
		p.same()
		for r := range x.routes() {
			if r.Rail.Index == 7 {
				return true
			}
		}
		return false
	})
	require.Zero(t, h.log.count("prepared before"))
}

// Sessions of wide machines have one link on a pair of rails. Both sides say so if an option asks for more.
func TestWideQPs(t *testing.T) {
	t.Parallel()
	h := onWide(t, 4, 2, fake.SecuredCaps())
	a, b := h.agent("ann", "qps_per_rail", "4"), h.agent("bob", "qps_per_rail", "4", "max_rails", "8")
	require.Equal(t, 1, h.log.lines("level=WARN", "option qps_per_rail has no effect: a session of a machine", "qps_per_rail=4"), h.log)
	loadBoth(a, b)
	p := &pair{a: b, b: a, mine: b.memory(1 << 20), theirs: a.memory(1 << 20).seenBy(b)}
	p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run("")
	p.same()
	require.Equal(t, 1, h.log.lines("level=WARN", "option qps_per_rail has no effect for this peer", "peer=ann"), h.log)
}
