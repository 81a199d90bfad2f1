package engine

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/topo"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
	"gorail/test/fake"
)

// wires are network interfaces that a test brings up. Each is the interface of one fake device.
type wires struct {
	ports  bool           // ports of RDMA devices instead of network interfaces
	shards map[string]int // rails of a device, by its name; 0: one

	mu sync.Mutex
	up map[string]bool
}

const wireNet = "10.99.0.0/24"

// newWires replaces the kernel's interfaces. Agent a has the interfaces a0 and a1, agent b has b0 and b1.
func newWires(h *harness, down ...string) *wires {
	w := &wires{up: map[string]bool{}}
	for _, name := range []string{"a0", "a1", "b0", "b1"} {
		w.up[name] = !slices.Contains(down, name)
	}
	h.wrap = func(p provider.Provider) provider.Provider { return wired{p, w} }
	return w
}

func (w *wires) list(agent string) (list []topo.Interface) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, up := range w.up {
		if name[:1] != agent {
			continue
		}
		i := topo.Interface{Name: name, Up: up}
		if name[1] == '1' {
			i.Addrs = []netip.Prefix{netip.MustParsePrefix("10.99.0." + string('1'+name[0]-'a') + "/24")}
		}
		list = append(list, i)
	}
	return list
}

// raise brings an agent's interface up.
func (w *wires) raise(a *agent, name string) {
	w.mu.Lock()
	w.up[name] = true
	w.mu.Unlock()
	a.rails.Nudge(name)
}

// wired discovers the devices whose interfaces are up, none of them a loopback device. With ports it also discovers the other
// devices, and these wait.
type wired struct {
	provider.Provider
	w *wires
}

func (p wired) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	found, err := p.Provider.Discover(ctx, f)
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if !p.w.ports {
		found = slices.DeleteFunc(found, func(d provider.Device) bool { return !p.w.up[d.Name] })
	}
	for i := range found {
		found[i].Loopback, found[i].Hardware, found[i].Shards = false, p.w.ports, p.w.shards[found[i].Name]
		if !p.w.up[found[i].Name] {
			found[i].Waits = "the port is DOWN"
		}
	}
	return found, err
}

// wiredPair is two agents, each with two rails and a buffer.
func wiredPair(h *harness, w *wires, n int) *pair {
	side := func(name string) *agent {
		h.nets = func() []topo.Interface { return w.list(name) }
		h.links = []fake.Link{{Name: name + "0", Caps: h.caps}, {Name: name + "1", Caps: h.caps, Subnet: wireNet}}
		return h.agent(name)
	}
	p := &pair{a: side("a"), b: side("b")}
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.memory(n), p.b.memory(n).seenBy(p.a)
	return p
}

// onOneRail runs a transfer over the one rail that is up. It requires a log line that gives why as the reason of the other.
func (p *pair) onOneRail(h *harness, why string) (x *request, r *remote) {
	require.True(h, h.log.has("left_out", "1: "+why+"; joins when it comes up"), h.log)
	x = p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run("first")
	p.same()
	r = p.a.connected("b")
	require.Equal(h, 1, r.atWork())
	return x, r
}

// A rail's interface is down when its engine is made, and comes up later. The rail joins the session that is there. A transfer
// that was prepared before uses it, with memory that was registered before. Regions are registered and deregistered meanwhile.
func TestLateRail(t *testing.T) {
	t.Parallel()
	for name, down := range map[string][]string{"ours": {"a1"}, "theirs": {"b1"}, "both": {"a1", "b1"}, "both, theirs first": {"b1", "a1"}} {
		t.Run(name, func(t *testing.T) {
			h := onFake(t, fake.SecuredCaps())
			w := newWires(h, down...)
			p := wiredPair(h, w, 16<<20)
			x, r := p.onOneRail(h, "link is down")

			var churn sync.WaitGroup
			stop := make(chan struct{})
			for _, a := range []*agent{p.a, p.b} {
				churn.Go(func() {
					for k := uint64(1); ; k++ {
						select {
						case <-stop:
							return
						default:
						}
						id, err := a.Register(p.mine.addr()+k%512*4096, 4096, 0, 0, nil)
						if err == nil {
							err = a.Deregister(id)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			sides := map[byte]*agent{'a': p.a, 'b': p.b}
			for _, name := range down {
				w.raise(sides[name[0]], name)
				p.mine.fill(uint64(name[0]))
				x.run("while it joins")
				p.same()
			}
			until(t, "both rails take a share", func() bool {
				x.run("again")
				return r.atWork() == 2 && x.shares()[1] > 0 && x.shares()[0] > 0
			})
			close(stop)
			churn.Wait()
			p.mine.fill(7)
			x.run("last")
			p.same()

			fresh, there := p.a.memory(4<<20), p.b.memory(4<<20).seenBy(p.a)
			y := p.a.whole(transfer.Read, fresh, there.fill(9))
			y.run()
			pattern.Same(t, there.b, fresh.b)
			s, err := p.a.Snapshot()
			require.NoError(t, err)
			require.Equal(t, "a1", s.Rails[1].Device)
			require.EqualValues(t, "up", s.Rails[1].State)
			require.Positive(t, s.Rails[1].BytesWritten)
			require.Zero(t, s.Rails[1].Errors)
		})
	}
}

// The port of an RDMA device is down when its engine is made, and comes up later.
func TestLatePort(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	w := newWires(h, "a1")
	w.ports = true
	p := wiredPair(h, w, 16<<20)
	x, r := p.onOneRail(h, "the port is DOWN")
	w.raise(p.a, "a1")
	until(t, "the late rail takes a share", func() bool { x.run("again"); return r.atWork() == 2 && x.shares()[1] > 0 })
	p.mine.fill(2)
	x.run("both")
	p.same()
}

// A device of a peer with more shards than ours comes up late. Our rails have key slots for it, since the peer numbers further shards behind
// all devices.
func TestLateRailBesideShards(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.SecuredCaps())
	h.params = []string{"max_rails", "2", "tcp_threads", "1"}
	w := newWires(h, "b1")
	w.shards = map[string]int{"b0": 8}
	side := func(name string, params ...string) *agent {
		h.nets = func() []topo.Interface { return w.list(name) }
		h.links = []fake.Link{{Name: name + "0", Caps: h.caps}, {Name: name + "1", Caps: h.caps, Subnet: wireNet}}
		return h.agent(name, params...)
	}
	p := &pair{a: side("a"), b: side("b", "tcp_threads", "8")}
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.memory(16<<20), p.b.memory(16<<20).seenBy(p.a)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run("first")
	w.raise(p.b, "b1")
	r := p.a.connected("b")
	until(t, "the late rail takes a share", func() bool { x.run("again"); return r.atWork() == 2 && x.shares()[1] > 0 })
	p.mine.fill(2)
	x.run("both")
	p.same()
}

// The one device goes down for a moment. Its shards do not take each other for rails that could do the work: no link is fenced.
func TestDeviceOfShardsGoesDown(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.SecuredCaps())
	h.params = []string{"tcp_threads", "3"}
	w := newWires(h, "a1", "b1")
	w.shards = map[string]int{"a0": 3, "b0": 3}
	p := wiredPair(h, w, 1<<20)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run("first")
	r := p.a.connected("b")
	until(t, "all shards work", func() bool { return r.atWork() == 3 })
	p.a.railChanged("a0", false)
	p.b.railChanged("b0", false)
	for i := range uint64(100) { // meanwhile both have handled the event
		p.mine.fill(i)
		x.run("again")
		p.same()
	}
	require.False(t, h.log.has("fencing a link"), h.log.String())
	require.Equal(t, 3, r.atWork())
}

// A region is deregistered while the late rail's keys are under way. A transfer to that region fails.
func TestLateRailDeregister(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	w := newWires(h, "b1")
	p := wiredPair(h, w, 1<<20)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	x.run()
	r := p.a.connected("b")
	var own, all []*memory
	for range 200 {
		own = append(own, p.b.memory(4096))
		all = append(all, own[len(own)-1].seenBy(p.a))
	}
	p.a.whole(transfer.Write, p.a.memory(4096), all[0]).run()
	w.raise(p.b, "b1")
	for _, m := range own {
		require.NoError(t, p.b.Deregister(m.md.region))
	}
	until(t, "both links work", func() bool { return r.atWork() == 2 })
	p.a.whole(transfer.Write, p.a.memory(4096), all[0]).post().fails(errcode.ErrBackend)
	p.mine.fill(3)
	x.run()
	p.same()
}

// A transfer waits for the first answer over a rail that is silent. It goes over the other rail, which joins later.
func TestLateRailWaiting(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.SecuredCaps())
	w := newWires(h, "b1")
	side := func(name string) *agent {
		h.nets = func() []topo.Interface { return w.list(name) }
		h.links = []fake.Link{{Name: name + "0", Caps: h.caps}, {Name: name + "1", Caps: h.caps, Subnet: wireNet}}
		return h.agent(name, "xfer_timeout", "10s")
	}
	p := &pair{a: side("a"), b: side("b")}
	silent := p.a.prov.Rail("a0")
	silent.Stall()
	defer silent.Release()
	loadBoth(p.a, p.b)
	p.mine, p.theirs = p.a.memory(1<<20), p.b.memory(1<<20).seenBy(p.a)
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	defer x.release()
	x.post("said")
	until(t, "the transfer is posted", func() bool { return x.record().Slot().InFlight() })
	w.raise(p.b, "b1")
	require.Equal(t, done, x.wait())
	p.same()
}
