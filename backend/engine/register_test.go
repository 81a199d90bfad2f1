package engine

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/wire"
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
	require.Len(t, r.RailKeys([16]byte{}), 4)
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
			require.Equal(t, status.ErrBackend, status.Of(err))
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
	until(t, "Close has begun", func() bool { return a.life.Closed() })
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
