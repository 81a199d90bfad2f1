package tcp

import (
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/test/cuda"
	"gorail/test/drive"
)

// note registers n ranges that no peer knows.
func (n *node) note(count int) (list []provider.MR) {
	for range count {
		m, err := n.rail.Register(drive.Addr(n.mem), page, 0, option.PeersBoth)
		require.NoError(n.t, err)
		list = append(list, m)
	}
	return list
}

func (n *node) tabled() int { return int(n.rail.c.Counters().Regions) }

func closeAll(t *testing.T, list []provider.MR) {
	for _, m := range list {
		require.NoError(t, m.Close())
	}
}

// TestEnterAll: a region enters the table when it is asked for, once, and never after its end.
func TestEnterAll(t *testing.T) {
	n, other := newNode(t, page, nil), newNode(t, page, nil)
	m := n.note(4)
	require.NoError(t, m[3].Close())
	require.Zero(t, n.tabled(), "nobody has asked")
	require.NoError(t, other.rail.EnterAll(m))
	require.Zero(t, n.tabled()+other.tabled(), "regions of another rail")

	for range 2 {
		require.NoError(t, n.rail.EnterAll([]provider.MR{m[0], m[1], m[0], m[3]}))
		require.Equal(t, 2, n.tabled())
	}
	require.Zero(t, keyOf(m[3]), "it was closed before")
	keys := map[uint64]bool{0: true}
	for _, of := range m[:3] { // the last has not entered yet
		require.False(t, keys[keyOf(of)])
		keys[keyOf(of)] = true
		require.Equal(t, keyOf(of), keyOf(of))
	}
	require.Equal(t, 3, n.tabled())
	require.NotEqual(t, m[0].Base(), m[1].Base())

	n.rail.mu.Lock() // a region in the table tells its key without this lock
	base := m[0].Base()
	n.rail.mu.Unlock()
	require.Equal(t, m[0].Base(), base)

	closeAll(t, m)
	closeAll(t, m) // has no effect
	require.NoError(t, n.rail.EnterAll(m))
	require.Zero(t, n.tabled())
	require.Zero(t, keyOf(m[0]))
}

// TestEnterAllWhileClosing: what is closed while it is to enter, or has just entered, is not in the table afterwards, and others are.
func TestEnterAllWhileClosing(t *testing.T) {
	n := newNode(t, page, nil)
	for range 100 {
		m, stays, begun := n.note(512), n.note(3), make(chan struct{})
		require.NoError(t, n.rail.EnterAll(stays[:1]))
		var both sync.WaitGroup
		both.Go(func() { close(begun); _ = n.rail.EnterAll(m) })
		both.Go(func() {
			<-begun
			for i := 0; i < 1000 && n.tabled() == 1; i++ { // EnterAll has not begun, or is at it
			}
			for i := range m {
				_ = m[len(m)-1-i].Close()
			}
		})
		both.Wait()
		require.Equal(t, 1, n.tabled())
		require.NoError(t, n.rail.EnterAll(stays))
		places := map[uint64]bool{}
		for _, of := range stays {
			places[of.Base()] = true
		}
		require.Len(t, places, len(stays), "another's entry was given back")
		closeAll(t, stays)
		require.Zero(t, n.tabled())
		require.Zero(t, n.rail.regions.Load())
	}
}

// TestTableFull: a region without room in the table has no key, and gets one once there is room. The error names the limit.
func TestTableFull(t *testing.T) {
	n := newNode(t, page, nil)
	m := n.note(2)
	fill, numbers := make([]sock.Entry, 1<<16), make([]uint32, 0, sock.MaxRegions)
	for len(numbers) < sock.MaxRegions-1 {
		list := fill[:min(len(fill), sock.MaxRegions-1-len(numbers))]
		for i := range list {
			list[i] = sock.Entry{Addr: drive.Addr(n.mem), Length: page, Key: 1}
		}
		n.rail.c.Register(list)
		for _, e := range list {
			require.NoError(t, e.Err)
			numbers = append(numbers, e.Number)
		}
	}
	err := n.rail.EnterAll(m)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, err, provider.ErrRegister)
	require.ErrorContains(t, err, "the table of at most 1048576 regions")
	require.NotZero(t, keyOf(m[0]), "there was room for one")
	require.Zero(t, keyOf(m[1]))
	require.NoError(t, m[0].Close())
	require.NoError(t, n.rail.EnterAll(m))
	require.NotZero(t, keyOf(m[1]))
	closeAll(t, m)
	for _, number := range numbers {
		require.NoError(t, n.rail.c.Deregister(number))
	}
}

// TestCloseAwaitsCopies: the end of GPU memory that no peer knows waits for the GPU's copy of it, a second at most. Without a copy under way it
// asks nobody.
func TestCloseAwaitsCopies(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	const size = 64 << 10
	at := app.Alloc(0, cuda.Device, size)
	a, b := newNodeOf(t, page, Options{CUDAPath: lib.Path}), newNode(t, size, nil)
	t.Cleanup(func() { app.Free(0, cuda.Device, at) })
	there := b.register(0, size, option.PeersBoth)
	from, _ := join(t, a, b)
	onGPU := func() provider.MR {
		m, err := a.rail.RegisterVRAM(at, size, 0, option.PeersBoth)
		require.NoError(t, err)
		return m
	}
	write := func(m provider.MR) (ended func() bool) {
		id := a.id()
		seg := drive.Seg{Local: at, Desc: m.Desc(), Remote: there.Base(), Len: size, Key: keyOf(there)}
		require.NoError(t, a.d.RMA(from.Core(), drive.Write, id, seg))
		return func() bool { b.poll(); _, ok := a.done[id]; return ok }
	}
	posted := func() int { return lib.Count("copies") + lib.Count("launches") }
	t.Cleanup(func() { lib.Set("hold", 0) })

	for _, ends := range []bool{false, true} {
		m, before := onGPU(), posted()
		lib.Set("hold", 1)
		ended := write(m)
		a.until("the copy is posted", func() bool { return posted() > before })
		closed := make(chan error, 1)
		go func() { closed <- m.Close() }()
		if ends {
			lib.Set("hold", 0)
			require.NoError(t, <-closed)
		} else {
			require.ErrorIs(t, <-closed, syscall.EBUSY)
			lib.Set("hold", 0)
		}
		a.until("the WRITE", ended)
	}

	const regions = 200
	var list []provider.MR
	for range regions {
		list = append(list, onGPU())
	}
	a.until("a WRITE", write(list[0]))
	before := runtime.NumCgoCall()
	closeAll(t, list)
	require.Less(t, runtime.NumCgoCall()-before, int64(regions/2), "calls of the C rail")
	require.Zero(t, a.tabled())
}

// TestFreedMemoryIsNoBounceBuffer: the application has freed memory that is registered, and the driver gives its address to us. A peer that then asks
// for keys reads nothing there, while our own bounce buffers can be read.
func TestFreedMemoryIsNoBounceBuffer(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	const size = 64 << 10
	a, b := newNodeOf(t, page, Options{CUDAPath: lib.Path}), newNode(t, size, nil)
	to := b.register(0, size, option.PeersBoth)
	_, from := join(t, a, b)
	vram := func(at uint64) provider.MR {
		m, err := a.rail.RegisterVRAM(at, size, 0, option.PeersBoth)
		require.NoError(t, err)
		return m
	}
	read := func(m provider.MR) syscall.Errno {
		id := b.id()
		require.NoError(t, b.d.RMA(from.Core(), drive.Read, id, drive.Seg{Local: drive.Addr(b.mem), Desc: to.Desc(), Remote: m.Base(), Len: size, Key: keyOf(m)}))
		b.until("a READ", func() bool { a.poll(); _, ok := b.done[id]; return ok })
		return b.done[id].Err
	}

	at := app.Alloc(0, cuda.Device, size)
	theirs := vram(at)
	require.NoError(t, theirs.Same())
	app.Free(0, cuda.Device, at)
	driver, err := a.rail.bounces.gpus.Open()
	require.NoError(t, err)
	again, err := driver.VRAM(0, size)
	require.NoError(t, err)
	require.Equal(t, at, again)
	ours := vram(at)
	require.Zero(t, read(ours))
	require.NotZero(t, read(theirs))
	closeAll(t, []provider.MR{theirs, ours})
	require.NoError(t, driver.FreeVRAM(0, at))
}

// TestRegisterAfterClose: a closed rail takes no memory, and loads no driver that nobody closes.
func TestRegisterAfterClose(t *testing.T) {
	lib := cuda.Build(t)
	app := cuda.NewApp(t, lib.Path)
	at := app.Alloc(0, cuda.Device, page)
	r := openLo(t, Options{CUDAPath: lib.Path})
	m, err := r.RegisterVRAM(at, page, 0, option.PeersBoth)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, r.Close())
	_, err = r.RegisterVRAM(at, page, 0, option.PeersBoth)
	require.ErrorIs(t, err, provider.ErrRegister)
	require.ErrorContains(t, err, "closed")
	_, err = r.Register(drive.Addr(drive.Alloc(page)), page, 0, option.PeersBoth)
	require.ErrorIs(t, err, provider.ErrRegister)
	require.Zero(t, keyOf(m))
	app.Free(0, cuda.Device, at)
}
