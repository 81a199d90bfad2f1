package engine

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/fake"
)

// limited is memory that peers may use as meta says.
func (a *agent) withAccess(n int, meta ...string) *memory {
	m := &memory{owner: a, b: drive.Alloc(n)}
	m.register(meta...)
	return m
}

// denied posts a request that the peer's memory does not allow, before its keys are known or after.
func (r *request) denied(what string) {
	r.a.t.Helper()
	if _, err := r.Post("never"); err != nil {
		require.Equal(r.a.t, errcode.ErrNotAllowed, errcode.StatusOf(err))
		require.ErrorContains(r.a.t, err, what)
		return
	}
	r.fails(errcode.ErrNotAllowed)
}

// forge makes an engine believe that it has this access to a peer's region.
func (a *agent) forge(id uint64, mine option.Rights) {
	g := a.regions.Regions.Get(id)
	a.remote(g.Peer.(*transfer.Peer).Name).change(func() { g.Access = mine })
}

// TestAccess: a transfer that the peer's registration does not allow is refused before anything is posted, the first one and later
// ones, staged ones too; what is allowed works beside it, on the same links.
func TestAccess(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		const n = 3 << 20 // three slices
		p := &pair{a: h.agent("ann"), b: h.agent("bob", "remote_access", "read", "mr_max", "1MiB")}
		loadBoth(p.a, p.b)
		p.mine = p.a.memory(n)
		byOption, byMeta := p.b.withAccess(n), p.b.withAccess(n, "tag=7", "remote_access=write")
		both := p.b.withAccess(n, "remote_access=both")
		for i, c := range []struct {
			m       *memory
			allowed []int
			what    string
		}{{byOption, []int{transfer.Read}, "remote_access=read"}, {byMeta, []int{transfer.Write}, "remote_access=write"}, {both, []int{transfer.Read, transfer.Write}, ""}} {
			there := c.m.seenBy(p.a)
			for op, bad := range []int{transfer.Read: transfer.Read, transfer.Write: transfer.Write} {
				if slices.Contains(c.allowed, bad) {
					continue
				}
				p.mine.fill(uint64(10 * i))
				there.fill(uint64(10*i + 1))
				mine, theirs := bytes.Clone(p.mine.b), bytes.Clone(there.b)
				r := p.a.whole(bad, p.mine, there)
				for range 3 {
					r.denied(c.what)
				}
				r.release()
				require.True(h, bytes.Equal(mine, p.mine.b) && bytes.Equal(theirs, there.b), "op %d moved bytes", op)
			}
			for _, op := range c.allowed {
				p.mine.fill(uint64(10*i + 2))
				there.fill(uint64(10*i + 3))
				p.a.whole(op, p.mine, there).run("done")
				pattern.Same(h, p.mine.b, there.b)
				p.b.expect("ann:done")
			}
		}
		require.NoError(h, p.a.Notify("bob", []byte("alone")))
		p.b.expect("ann:alone")
		s, err := p.a.Snapshot()
		require.NoError(h, err)
		require.Zero(h, s.Peers[0].Fences, "no link broke")
		p.b.withAccess(4096, "remote_access=write").seenBy(p.a)
	})
}

// TestAccessForged: an initiator that posts what it was told not to fails, and what else it does goes on. The devices enforce that.
// Not so shared memory, whose initiator copies by itself, and a READ on verbs, where WRITEs are proved by a READ.
func TestAccessForged(t *testing.T) {
	t.Parallel()
	sideBySide(t, func(h *harness) {
		p := h.pair(1 << 20)
		p.a.whole(transfer.Write, p.mine, p.theirs).run()
		for _, peers := range []option.Rights{option.PeersRead, option.PeersWrite} {
			op := transfer.Write
			if peers == option.PeersWrite {
				op = transfer.Read
			}
			if h.lib != nil && op == transfer.Read {
				continue
			}
			m := p.b.withAccess(1<<20, option.RemoteAccess+"="+peers.String()).seenBy(p.a)
			m.fill(5)
			p.mine.fill(6)
			mine, theirs := bytes.Clone(p.mine.b), bytes.Clone(m.b)
			r := p.a.whole(op, p.mine, m)
			r.denied(peers.String())
			p.a.forge(m.md.region, option.PeersBoth)
			r.post()
			r.fails(errcode.ErrBackend)
			r.release()
			require.True(h, bytes.Equal(mine, p.mine.b) && bytes.Equal(theirs, m.b))
			p.a.whole(transfer.Write, p.mine, p.theirs).run("goes on")
			p.b.expect("ann:goes on")
			p.same()
		}
	}, map[string]func(t testing.TB) *harness{
		"fake-tcp": func(t testing.TB) *harness { return onFake(t, fake.TCPCaps()) },
		"fake-efa": func(t testing.TB) *harness { return onFake(t, fake.EFACaps()) },
		"verbs":    func(t testing.TB) *harness { return onVerbs(t, 1) },
		"ofi":      onOFI,
	})
}

// TestAccessStaged: the owner of GPU memory refuses copies that the access does not allow, also for an initiator that does not.
func TestAccessStaged(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	g := h.withGPUs()
	p := &pair{a: h.agent("ann"), b: h.agent("bob")}
	loadBoth(p.a, p.b)
	for _, peers := range []option.Rights{option.PeersRead, option.PeersWrite} {
		op := transfer.Write
		if peers == option.PeersWrite {
			op = transfer.Read
		}
		const n = 1 << 20
		mine, theirs := g.block(p.a, -1, n), g.block(p.b, 1, n, option.RemoteAccess+"="+peers.String())
		seen := theirs.seenBy(p.a)
		mine.fill(1)
		theirs.fill(2)
		before := [][]byte{mine.bytes(), theirs.bytes()}
		was, err := p.b.Snapshot()
		require.NoError(t, err)
		r := p.a.prep(op, []Desc{mine.desc(0, n)}, []Desc{seen.desc(0, n)}, "bob")
		r.denied(peers.String())
		s, err := p.b.Snapshot()
		require.NoError(t, err)
		require.Equal(t, was.Staged.Copies, s.Staged.Copies, "nothing was asked for")
		p.a.forge(seen.md.region, option.PeersBoth)
		r.post()
		r.fails(errcode.ErrBackend)
		r.release()
		require.True(t, bytes.Equal(before[0], mine.bytes()) && bytes.Equal(before[1], theirs.bytes()))
		p.a.forge(seen.md.region, peers)
		allowed := transfer.Read
		if op == transfer.Read {
			allowed = transfer.Write
		}
		p.a.prep(allowed, []Desc{mine.desc(0, n)}, []Desc{seen.desc(0, n)}, "bob").run()
		pattern.Same(t, mine.bytes(), theirs.bytes())
		require.NoError(t, p.b.Deregister(theirs.md.region))
	}
	require.NoError(t, p.a.Close())
	require.NoError(t, p.b.Close())
}

// TestAccessOfOneRange: a range has one access at a time, a misspelt one is refused, and another one may follow a deregistration.
func TestAccessOfOneRange(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096)
	m := p.b.withAccess(8192, "remote_access=read")
	again, err := p.b.Register(m.addr(), 8192, 0, 0, []byte("remote_access=read"))
	require.NoError(t, err)
	require.Equal(t, m.md.region, again)
	_, err = p.b.Register(m.addr(), 8192, 0, 0, nil)
	require.Equal(t, errcode.ErrNotAllowed, errcode.StatusOf(err))
	require.ErrorContains(t, err, "remote_access=read")
	_, err = p.b.Register(m.addr(), 4096, 0, 0, []byte("remote_access=raed"))
	require.Equal(t, errcode.ErrInvalidParam, errcode.StatusOf(err))
	require.ErrorContains(t, err, `"raed"`)
	there := m.seenBy(p.a)
	p.a.whole(transfer.Write, p.mine, there).denied("remote_access=read")
	for range 2 {
		require.NoError(t, p.b.Deregister(m.md.region))
	}
	m.register()
	p.a.whole(transfer.Write, p.mine, there).run()
	pattern.Same(t, p.mine.b, m.b[:4096])
	own := p.a.withAccess(4096, "remote_access=read")
	require.NoError(t, p.a.LoadConn("ann", p.a.Conn()))
	p.a.prep(transfer.Write, []Desc{p.mine.desc(0, 4096)}, []Desc{own.desc(0, 4096)}, "ann").denied("remote_access=read")
	p.a.prep(transfer.Read, []Desc{p.mine.desc(0, 4096)}, []Desc{own.desc(0, 4096)}, "ann").run()
}

// TestSharedKeys: a small range has the key of the registration around it if both have the same access, and never with
// shared_keys=off.
func TestSharedKeys(t *testing.T) {
	t.Parallel()
	for option, shared := range map[string]bool{"on": true, "off": false} {
		h := onFake(t, fake.EFACaps())
		a := h.agent("ann", "shared_keys", option)
		big := a.memory(1 << 20)
		key := func(addr, length uint64, meta string) wire.RailKey {
			id, err := a.Register(addr, length, 0, region.DRAM, []byte(meta))
			require.NoError(t, err)
			keys := a.regions.RailKeys(a.regions.Regions.Get(id), [16]byte{})
			require.Len(t, keys, 1)
			require.Equal(t, addr, keys[0].Base)
			return keys[0]
		}
		around := key(big.addr(), 1<<20, "").Key
		require.Equal(t, shared, key(big.addr()+4096, 4096, "").Key == around)
		readable := key(big.addr()+8192, 4096, "remote_access=read").Key
		require.NotEqual(t, around, readable)
		require.Equal(t, shared, key(big.addr()+8192, 100, "remote_access=read").Key == readable)
	}
}

// BenchmarkSharedKeys registers 10,000 ranges of 4 KiB of one allocation that is registered as a whole.
func BenchmarkSharedKeys(b *testing.B) {
	const n, size = 10_000, 4096
	for _, option := range []string{"on", "off"} {
		b.Run(option, func(b *testing.B) {
			a := onOFI(b).agent("ann", "shared_keys", option)
			whole := a.memory(n * size)
			ids := make([]uint64, n)
			for b.Loop() {
				for i := range ids {
					var err error
					ids[i], err = a.Register(whole.addr()+uint64(i)*size, size, 0, region.DRAM, nil)
					require.NoError(b, err)
				}
				b.StopTimer()
				for _, id := range ids {
					require.NoError(b, a.Deregister(id))
				}
				b.StartTimer()
			}
		})
	}
}
