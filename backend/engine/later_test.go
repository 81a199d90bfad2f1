package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/access"
	"gorail/backend/errcode"
	"gorail/backend/provider/fake"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/transfer"
	"gorail/internal/pattern"
)

// onLater runs a test over rails whose registrations may wait. Nothing ends the wait but a use of the memory.
func onLater(t *testing.T, body func(h *harness, wait func(*agent))) {
	wait := func(a *agent) { a.regions.After = func(time.Duration, func()) {} }
	for name, on := range map[string]func(testing.TB) *harness{"tcp": onTCP, "sm": onHost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body(on(t), wait)
		})
	}
}

// onRailsNow is how many registrations the rails have.
func (a *agent) onRailsNow() (n int) {
	for _, rl := range a.rails.List {
		for peers := access.Rights(0); peers <= access.Both; peers++ {
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
		until(h, "the peer's request registers them", func() bool { return bob.onRailsNow() == bob.onRailsOf(n) })
		for i := range n {
			ann.prep(transfer.Write, []Desc{mine[i].desc(0, 4096)}, []Desc{theirs[i].desc(0, 4096)}, "bob").run("")
			pattern.Same(h, mine[i].b, theirs[i].b)
			require.Equal(h, ann.onRailsOf(n), ann.onRailsNow(), "the first transfer registers all")
		}
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
