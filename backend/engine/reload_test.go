package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
)

// A peer is disconnected and loaded again in every way that an application has, for every kind of memory, over each carrier. Afterwards
// transfers in both directions move all bytes, and no bounce buffers are left over. The end-to-end test TestVRAMReload has processes.
func TestVRAMReload(t *testing.T) {
	t.Parallel()
	const host = -1
	memories := map[string][][2]int{"host": {{host, host}}, "VRAM": {{0, 1}}, "mixed": {{host, 1}, {0, host}, {1, 0}, {host, host}}}
	verbs := func(dmabuf int) func(t *testing.T) (*harness, *gpus) {
		return func(t *testing.T) (*harness, *gpus) {
			h := onGPUDevices(t, 2)
			h.lib.Set("dmabuf", dmabuf)
			return h.harness, &gpus{h.app, t, h.cuda}
		}
	}
	on := func(open func(t testing.TB) *harness) func(t *testing.T) (*harness, *gpus) {
		return func(t *testing.T) (*harness, *gpus) { h := open(t); return h, h.withGPUs() }
	}
	for _, c := range []struct {
		carrier string
		open    func(t *testing.T) (*harness, *gpus)
		size    int
	}{
		{"shared memory", on(onHost), 2 << 20}, {"tcp", on(onTCP), 200 << 10}, {"tcp, staged", on(onTCP), 2 << 20},
		{"verbs", verbs(1), 2 << 20}, {"verbs, staged", verbs(0), 2 << 20},
	} {
		for name, pairs := range memories {
			if testing.Short() && name != "mixed" { // has host memory and VRAM
				continue
			}
			t.Run(c.carrier+"/"+name, func(t *testing.T) {
				t.Parallel()
				h, g := c.open(t)
				r := &reloaded{harness: h, gpus: g, pairs: pairs, size: c.size, a: h.agent("ann")}
				for _, m := range pairs {
					r.mine = append(r.mine, g.block(r.a, m[0], c.size))
				}
				r.serve()
				for range rounds(2, 20) {
					r.whileDelivering()
				}
				r.afterwards()
				for range rounds(2, 20) {
					for op := range 2 {
						r.inFlight(op, true)
						r.inFlight(op, false)
					}
				}
				for _, closed := range []bool{false, true} {
					r.anotherEngine(closed)
					r.whileDelivering()
				}
			})
		}
	}
}

// reloaded is an agent whose peer is disconnected and loaded again.
type reloaded struct {
	*harness
	gpus         *gpus
	pairs        [][2]int // the devices here and there of each descriptor pair
	size         int
	a, b         *agent
	mine, theirs []*block
	seen         []*block // theirs, as a sees them
}

// serve makes the peer and its memory, and loads both.
func (r *reloaded) serve() {
	r.b, r.theirs = r.agent("bob"), nil
	for _, m := range r.pairs {
		r.theirs = append(r.theirs, r.gpus.block(r.b, m[1], r.size))
	}
	r.load()
}

func (r *reloaded) load() {
	require.NoError(r, r.a.LoadConn("bob", r.b.Conn()))
	r.seen = nil
	for _, m := range r.theirs {
		r.seen = append(r.seen, m.seenBy(r.a))
	}
}

func (r *reloaded) request(op int) *request {
	var local, remote []Desc
	for i := range r.mine {
		local, remote = append(local, r.mine[i].desc(0, r.size)), append(remote, r.seen[i].desc(0, r.size))
	}
	return r.a.prep(op, local, remote, "bob")
}

// moves transfers all memory in both directions, with notifications.
func (r *reloaded) moves() {
	for op := range 2 {
		for i := range r.mine {
			r.mine[i].fill(uint64(i))
			r.theirs[i].fill(uint64(100 + i))
		}
		from, to := r.mine, r.theirs
		if op == transfer.Read {
			from, to = to, from
		}
		var want [][]byte
		for _, m := range from {
			want = append(want, m.bytes())
		}
		x := r.request(op)
		x.run("moved")
		x.release()
		r.b.expect("ann:moved")
		for i := range to {
			require.Equal(r, want[i], to[i].bytes())
		}
	}
}

// whileDelivering loads the peer while the old session waits for the peer to confirm its notifications. The same session goes on, with its
// bounce buffers.
func (r *reloaded) whileDelivering() {
	until(r, "the application gets the old session again", func() bool {
		r.moves()
		before, rings := r.a.initiators.Of("bob"), r.b.staging.PeerRings()
		require.NoError(r, r.a.Disconnect("bob"))
		r.load()
		same := r.a.initiators.Of("bob") == before
		r.moves()
		if now := r.b.staging.PeerRings(); now != rings { // the first moves may have found all memory mapped
			require.Equal(r, 0, rings)
			require.Equal(r, 1, now)
		}
		return same
	})
}

// forgotten waits until the session has ended on both sides, with its bounce buffers.
func (r *reloaded) forgotten(b *agent) {
	until(r, "the session ends", func() bool {
		return r.a.initiators.Leaving() == 0 && len(b.targets.All()) == 0 && b.staging.PeerRings() == 0
	})
}

func (r *reloaded) afterwards() {
	require.NoError(r, r.a.Disconnect("bob"))
	r.forgotten(r.b)
	r.load()
	r.moves()
}

// inFlight disconnects the peer during a transfer. The transfer ends because of that, and a READ writes nothing more. The peer is loaded at
// once, or when the session has ended.
func (r *reloaded) inFlight(op int, atOnce bool) {
	x := r.request(op).post()
	require.NoError(r, r.a.Disconnect("bob"))
	var after [][]byte
	for i, m := range r.mine {
		m.fill(uint64(200 + i))
		after = append(after, m.bytes())
	}
	if atOnce {
		r.load()
	} else {
		r.forgotten(r.b)
	}
	if x.wait() != done {
		x.fails(errcode.ErrBackend) // of errcode.Disconnected
	}
	x.release()
	for i, m := range r.mine {
		pattern.Same(r, after[i], m.bytes())
	}
	if !atOnce {
		r.load()
	}
	r.moves()
}

// anotherEngine replaces the peer by another engine of the same name. closed: the old one has ended.
func (r *reloaded) anotherEngine(closed bool) {
	old := r.b
	if closed {
		require.NoError(r, old.Close())
	}
	r.serve()
	r.moves()
	if !closed {
		r.forgotten(old)
	}
}

// The peer's bounce buffers end with the connection: after a failure, with a peer that is gone, and after the disconnection. What the agent
// has loaded stays until the agent removes the peer.
func TestRingsEndWithConnection(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *reloaded){
		"suspended": func(r *reloaded) { r.a.remote("bob").fail("on purpose") },
		"lost":      func(r *reloaded) { require.NoError(r, r.b.Close()) },
		"closed":    func(r *reloaded) { require.NoError(r, r.a.Disconnect("bob")) },
	} {
		t.Run(name, func(t *testing.T) {
			h := onTCP(t)
			g := h.withGPUs()
			r := &reloaded{harness: h, gpus: g, pairs: [][2]int{{0, 1}}, size: 2 << 20, a: h.agent("ann")}
			r.mine = []*block{g.block(r.a, 0, r.size)}
			r.serve()
			peer := r.a.remote("bob")
			require.Equal(t, 1, peer.inside().Regions)
			for range 2 {
				r.moves()
				require.Equal(t, 2, peer.inside().Regions)
				require.Equal(t, 1, r.b.staging.PeerRings())
				if end(r); name != "suspended" {
					break
				}
				until(t, "the bounce buffers end", func() bool { return peer.inside().Regions == 1 && r.b.staging.PeerRings() == 0 })
			}
			left := map[string]int{"suspended": 1, "lost": 1, "closed": 0}[name]
			until(t, "the bounce buffers end", func() bool { return peer.inside().Regions == left && r.b.staging.PeerRings() == 0 })
		})
	}
}
