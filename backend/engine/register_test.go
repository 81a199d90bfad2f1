package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/internal/pattern"
	"gorail/test/drive"
	"gorail/test/fake"
)

func pinning() fake.Caps {
	caps := fake.TCPCaps()
	caps.PinsMemory = true
	return caps
}

// Rails that pin memory register a range in parallel. In this test the first rail waits until the last has begun.
func TestRegisterSideBySide(t *testing.T) {
	t.Parallel()
	h := onRails(t, 4, pinning())
	a := h.agent("ann")
	begun := make(chan struct{})
	a.railNo(3).OnRegister(func(uint64, uint64) error { close(begun); return nil })
	for i := range 3 {
		a.railNo(i).OnRegister(func(uint64, uint64) error { <-begun; return nil })
	}
	m := a.memory(1 << 20)
	r := a.regions.Regions.Get(m.md.region)
	require.EqualValues(t, 1<<4-1, r.Rails.Load())
	require.Len(t, a.regions.RailKeys(r, [16]byte{}), 4)
}

// A rail that refuses memory does not fail the registration. If all rails refuse, the error of Prep names the first. A panic counts
// as a refusal.
func TestRegisterRefused(t *testing.T) {
	t.Parallel()
	for _, caps := range []fake.Caps{pinning(), fake.TCPCaps()} {
		h := onRails(t, 3, caps)
		p := h.pair(1 << 20)
		p.allUp(3)
		full := errors.New("memory lock limit")
		a := p.a
		a.railNo(0).OnRegister(func(uint64, uint64) error { return full })
		a.railNo(1).OnRegister(func(uint64, uint64) error { panic("boom") })
		some := a.memory(2 << 20)
		r := a.regions.Regions.Get(some.md.region)
		require.EqualValues(t, 1<<2, r.Rails.Load())
		require.NoError(t, r.Refused)
		require.True(t, h.log.has("memory not registered", "fake/fake0", full.Error()))
		require.True(t, h.log.has("memory not registered", "fake/fake1", "boom"))
		x := a.prep(transfer.Write, []Desc{some.fill(3).desc(0, 1<<20)}, []Desc{p.theirs.desc(0, 1<<20)}, "bob")
		x.run("")
		require.Equal(t, []uint64{0, 0, 1 << 20}, x.shares())

		a.railNo(2).OnRegister(func(uint64, uint64) error { return errors.New("the last one") })
		none := a.memory(3 << 20)
		for range 3 { // the same reason each time
			_, _, err := a.Prep(transfer.Write, []Desc{none.desc(0, 4096)}, []Desc{p.theirs.desc(0, 4096)}, "bob")
			require.Equal(t, errcode.ErrBackend, errcode.StatusOf(err))
			require.ErrorContains(t, err, "rail fake/fake0: ")
			require.ErrorIs(t, err, full)
		}
		for i := range 3 {
			a.railNo(i).OnRegister(nil)
		}
		require.NoError(t, a.Deregister(none.md.region))
		none.register()
		a.prep(transfer.Write, []Desc{none.desc(0, 4096)}, []Desc{p.theirs.desc(0, 4096)}, "bob").run("")
	}
}

// A registration takes long. Registrations of other ranges and key requests of peers do not wait for it. A second registration
// of the same range waits.
func TestRegisterSlowly(t *testing.T) {
	t.Parallel()
	for _, caps := range []fake.Caps{pinning(), fake.TCPCaps()} {
		h := onRails(t, 2, caps)
		p := h.pair(1 << 20)
		p.allUp(2)
		b, slow := p.b, drive.Alloc(2<<20)
		begun, goOn := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		b.railNo(1).OnRegister(func(addr, _ uint64) error {
			if addr == drive.Addr(slow) && !once.Swap(true) {
				close(begun)
				<-goOn
			}
			return nil
		})
		ids := make(chan uint64)
		register := func() {
			id, err := b.Register(drive.Addr(slow), uint64(len(slow)), 0, 0, nil)
			require.NoError(t, err)
			ids <- id
		}
		go register()
		<-begun
		go register()
		rng := wire.Range{Addr: drive.Addr(slow), Len: uint64(len(slow))}
		claim := wire.Claim{Range: rng}
		until(t, "the second registration waits", func() bool {
			list := b.regions.All()
			r := list[slices.IndexFunc(list, func(r *region.Region) bool { return r.Range == rng })]
			claim = r.Claim
			return r.Registrations(b.regions) == 2
		})
		other := b.memory(4096).seenBy(p.a)
		p.a.prep(transfer.Write, []Desc{p.mine.desc(0, 4096)}, []Desc{other.desc(0, 4096)}, "bob").run("meanwhile")
		in := b.targets.Latest().In()
		known := func() bool {
			entries, _ := b.targets.KeysWanted(in, []wire.Claim{claim})
			return entries[0].Known
		}
		require.False(t, known())
		require.Empty(t, ids)
		close(goOn)
		id := <-ids
		require.Equal(t, id, <-ids)
		require.True(t, known())
		require.NoError(t, b.Deregister(id))
		require.NoError(t, b.Deregister(id))
		require.Error(t, b.Deregister(id))
	}
}

// Close waits for a registration that is under way. A registration after Close fails.
func TestRegisterAndClose(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	a := h.agent("ann")
	begun, goOn := make(chan struct{}), make(chan struct{})
	a.railNo(1).OnRegister(func(uint64, uint64) error { close(begun); <-goOn; return nil })
	mem := drive.Alloc(4096)
	registered, closed := make(chan error), make(chan struct{})
	go func() {
		_, err := a.Register(drive.Addr(mem), 4096, 0, 0, nil)
		registered <- err
	}()
	<-begun
	go func() { _ = a.Close(); close(closed) }()
	until(t, "Close has begun", func() bool { return a.life.Ending() })
	select {
	case <-closed:
		t.Fatal("Close has not waited for the registration")
	default:
	}
	close(goOn)
	require.NoError(t, <-registered)
	<-closed
	_, err := a.Register(drive.Addr(mem), 4096, 0, 0, nil)
	require.Error(t, err)
}

// A region may have no bytes. A transfer over it succeeds, with its notification. Other operations of the same transfer succeed,
// too.
func TestRegisterNoBytes(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(4096)
		here, there := &memory{owner: p.a, b: p.mine.b[:0]}, &memory{owner: p.b, b: p.theirs.b[:0]}
		here.register()
		there.register()
		far := there.seenBy(p.a)
		for i, x := range []*request{
			p.a.prep(transfer.Write, []Desc{here.desc(0, 0)}, []Desc{far.desc(0, 0)}, "bob"),
			p.a.prep(transfer.Read, []Desc{p.mine.desc(0, 0)}, []Desc{far.desc(0, 0)}, "bob"),
			p.a.prep(transfer.Write, []Desc{p.mine.desc(0, 4096), here.desc(0, 0)}, []Desc{p.theirs.desc(0, 4096), far.desc(0, 0)}, "bob"),
		} {
			p.mine.fill(uint64(i))
			text := fmt.Sprint("empty ", i)
			x.run(text)
			p.b.expect("ann:" + text)
			x.release()
		}
		p.same()
		require.False(t, h.log.has("could not register"))
		require.NoError(t, p.b.Deregister(there.md.region))
	})
}

// TestRegisterNoBytesOfGPU: TestRegisterNoBytes for memory of GPUs.
func TestRegisterNoBytesOfGPU(t *testing.T) {
	t.Parallel()
	for name, on := range map[string]func(testing.TB) *harness{"tcp": onTCP, "sm": onHost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := on(t)
			g := h.withGPUs()
			a, b := h.agent("ann"), h.agent("bob")
			loadBoth(a, b)
			mine, theirs := g.block(a, 0, 4096), g.block(b, 1, 4096)
			empty := func(of *block) *block {
				e := *of
				id, err := e.owner.Register(e.addr, 0, uint64(e.dev), region.VRAM, nil)
				require.NoError(t, err)
				e.n, e.md = 0, &metaObject{region: id}
				return &e
			}
			here, there := empty(mine), empty(theirs)
			far, farEmpty := theirs.seenBy(a), there.seenBy(a)
			mine.fill(1)
			x := a.prep(transfer.Write, []Desc{here.desc(0, 0), mine.desc(0, 4096)}, []Desc{farEmpty.desc(0, 0), far.desc(0, 4096)}, "bob")
			x.run("a piece of no bytes")
			b.expect("ann:a piece of no bytes")
			x.release()
			pattern.Same(t, mine.bytes(), theirs.bytes())
			require.False(t, h.log.has("could not register"))
			require.NoError(t, b.Deregister(there.md.region))
			require.NoError(t, a.Deregister(here.md.region))
		})
	}
}

// onLater runs a test over rails whose registrations may wait. Nothing ends the wait but a use of the memory.
func onLater(t *testing.T, body func(h *harness, wait func(*agent))) {
	wait := func(a *agent) { a.regions.After = func(time.Duration, func()) {} }
	for name, on := range map[string]func(testing.TB) *harness{"tcp": onTCP, "sm": onHost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := on(t)
			if h.tcp {
				h.wrap = func(p provider.Provider) provider.Provider { return tabledProvider{p} }
			}
			body(h, wait)
		})
	}
}

// tabledProvider is a provider whose rails count what enters their tables.
type tabledProvider struct{ provider.Provider }

type tabledRail struct {
	provider.Rail
	mu  sync.Mutex
	has map[provider.MR]bool
}

func (p tabledProvider) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return &tabledRail{Rail: r, has: map[provider.MR]bool{}}, err
}

func (r *tabledRail) EnterAll(list []provider.MR) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range list {
		r.has[m] = true
	}
	return r.Rail.(provider.Enterer).EnterAll(list)
}

// tabled is how many registrations have entered the tables of rails; without such rails it is want.
func (a *agent) tabled(want int) (n int) {
	for _, rl := range a.rails.List {
		r, is := rl.Inner().(*tabledRail)
		if !is {
			return want
		}
		r.mu.Lock()
		n += len(r.has)
		r.mu.Unlock()
	}
	return n
}

// onRailsNow is how many registrations the rails have.
func (a *agent) onRailsNow() (n int) {
	for _, rl := range a.rails.List {
		for peers := option.Rights(0); peers <= option.PeersBoth; peers++ {
			live, retired := rl.Cache(peers).Len()
			n += live + retired
		}
	}
	return n
}

// onRailsOf is how many registrations the rails have of n ranges.
func (a *agent) onRailsOf(n int) int { return n * len(a.rails.List) }

// several registers n small ranges of one mapping.
func (a *agent) several(n int) (list []*memory) {
	const size = 4096
	all := drive.Alloc(n * size)
	for i := range n {
		m := &memory{owner: a, b: all[i*size:][:size]}
		m.register()
		list = append(list, m)
	}
	return list
}

// Memory is registered on the rails when it is used: by a transfer of ours, by a key request of a peer, by the end of the engine, or a
// moment later.
func TestRegisterLater(t *testing.T) {
	t.Parallel()
	onLater(t, func(h *harness, wait func(*agent)) {
		const n = 100
		ann, bob := h.agent("ann"), h.agent("bob")
		wait(ann)
		wait(bob)
		loadBoth(ann, bob)
		mine, theirs := ann.several(n), bob.several(n)
		require.Zero(h, ann.onRailsNow())
		require.Zero(h, bob.onRailsNow())
		for i := range n {
			mine[i].fill(uint64(i))
			theirs[i] = theirs[i].seenBy(ann)
		}
		require.Zero(h, bob.tabled(0))
		until(h, "the peer's request registers them", func() bool { return bob.onRailsNow() == bob.onRailsOf(n) })
		until(h, "the peer's requests enter them in tables", func() bool { return bob.tabled(bob.onRailsOf(n)) == bob.onRailsOf(n) })
		for i := range n {
			ann.prep(transfer.Write, []Desc{mine[i].desc(0, 4096)}, []Desc{theirs[i].desc(0, 4096)}, "bob").run("")
			pattern.Same(h, mine[i].b, theirs[i].b)
			require.Equal(h, ann.onRailsOf(n), ann.onRailsNow(), "the first transfer registers all")
		}
		require.Zero(h, ann.tabled(0), "no peer has asked for keys")
		for i := range n {
			require.NoError(h, ann.Deregister(mine[i].md.region))
		}
		require.Zero(h, ann.onRailsNow())
		ann.several(n) // the end of the engine finds them waiting
		require.Zero(h, ann.onRailsNow())
	})
}

// A registration that waits ends like any other, and counts like any other.
func TestRegisterLaterEnds(t *testing.T) {
	t.Parallel()
	onLater(t, func(h *harness, wait func(*agent)) {
		a := h.agent("ann")
		wait(a)
		m := a.several(3)
		again, err := a.Register(m[0].addr(), uint64(len(m[0].b)), 0, 0, nil)
		require.NoError(h, err)
		require.Equal(h, m[0].md.region, again, "the same range")
		blob, err := a.RegionBlob(again)
		require.NoError(h, err)
		require.Equal(h, m[0].blob, blob)
		known, err := a.Known(m[1].addr(), 8, 0, 0)
		require.NoError(h, err)
		require.True(h, known)
		require.Zero(h, a.onRailsNow())

		_, err = a.Register(m[1].addr(), uint64(len(m[1].b)), 0, 0, []byte("remote_access=read"))
		require.Equal(h, errcode.AccessConflict, errcode.Of(err), "an error of a registration is its own, also of one that would wait")
		_, err = a.Register(0, 8, 0, 0, nil)
		require.Equal(h, errcode.BadRange, errcode.Of(err))

		require.NoError(h, a.Deregister(m[0].md.region))
		require.NoError(h, a.Deregister(m[0].md.region))
		require.Equal(h, errcode.UnknownRegion, errcode.Of(a.Deregister(m[0].md.region)))
		require.NoError(h, a.Deregister(m[1].md.region))
		require.NoError(h, a.Deregister(m[2].md.region))
		require.Zero(h, a.onRailsNow())
		require.Zero(h, a.regions.Regions.Len())
	})
}

// Without a use, the wait ends by itself.
func TestRegisterLaterAlone(t *testing.T) {
	t.Parallel()
	onLater(t, func(h *harness, _ func(*agent)) {
		a := h.agent("ann")
		a.several(50)
		until(h, "all are registered", func() bool { return a.onRailsNow() == a.onRailsOf(50) })
		a.several(1)
		until(h, "the next one is registered", func() bool { return a.onRailsNow() == a.onRailsOf(51) })
	})
}

// A rail that pins memory, or of which we know nothing, gets it at once. So does a rail whose peers map files: the application may
// close the file as soon as it is registered.
func TestRegisterAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("fake", func(t *testing.T) {
		h := onFake(t, fake.TCPCaps())
		a := h.agent("ann")
		a.several(1)
		require.Equal(t, a.onRailsOf(1), a.onRailsNow())
	})
	t.Run("file", func(t *testing.T) {
		h := onHost(t)
		a := h.agent("ann")
		a.regions.After = func(time.Duration, func()) {}
		fd, err := unix.MemfdCreate("gorail-test-later", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(fd, 1<<20))
		b, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
		_, err = a.Register(drive.Addr(b), 1<<20, 0, 0, nil)
		require.NoError(t, err)
		require.Equal(t, a.onRailsOf(1), a.onRailsNow())
	})
}

// TestRegisterTableFull: peers reach memory that a rail's table has no room for over other rails.
func TestRegisterTableFull(t *testing.T) {
	t.Parallel()
	h := onRails(t, 2, fake.TCPCaps())
	h.wrap = func(p provider.Provider) provider.Provider { return fullProvider{p} }
	p := h.pair(1 << 20)
	p.allUp(2)
	for op, want := range map[int][]uint64{transfer.Write: {0, 1 << 20}, transfer.Read: {0, 1 << 20}} {
		x := p.a.whole(op, p.mine.fill(1), p.theirs.fill(2))
		x.run("")
		p.same()
		require.Equal(t, want, x.shares())
		x.release()
	}
	require.False(t, h.log.has("fencing a link"), "there was no try to use a key that is none")
	require.Equal(t, 1, h.log.lines("level=WARN", "memory not registered on a rail for peers", "rail=fake/fake0", errFull.Error()))
}

// fullProvider is a provider of which rail fake0 lets nothing enter its table.
type fullProvider struct{ provider.Provider }

type fullRail struct{ provider.Rail }

type fullMR struct{ provider.MR }

var errFull = errors.New("the table is full")

func (p fullProvider) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	if d.Name == "fake0" && err == nil {
		return fullRail{r}, nil
	}
	return r, err
}

func (r fullRail) Register(addr, length, key uint64, peers option.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	return fullMR{mr}, err
}

func (fullRail) EnterAll([]provider.MR) error  { return errFull }
func (fullMR) Key(provider.Salt) (none uint64) { return 0 }

// busyProvider is a provider whose regions fail to close, because a process may still access them.
type busyProvider struct{ provider.Provider }

type busyRail struct{ provider.Rail }

type busyMR struct{ provider.MR }

var errBusy = errors.New("a process is stopped in the middle of a copy")

func (p busyProvider) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return busyRail{r}, err
}

func (r busyRail) Register(addr, length, key uint64, peers option.Rights) (provider.MR, error) {
	mr, err := r.Rail.Register(addr, length, key, peers)
	return busyMR{mr}, err
}

func (m busyMR) Close() error { return errors.Join(m.MR.Close(), errBusy) }
