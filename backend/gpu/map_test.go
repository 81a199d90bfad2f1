package gpu_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

func share(b []byte) gpu.Share { return *(*gpu.Share)(b) }

// TestMapIPC: memory of another process, mapped once for each local GPU, written and read by both methods.
func TestMapIPC(t *testing.T) {
	r := open(t)
	p := startPeer(t, r.lib.Path)
	got := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	s := share(got.Share)
	require.Zero(t, s.Pieces())
	var maps []*gpu.Map
	for range 3 {
		m, importer, err := r.drv.Map(s, 0)
		require.NoError(t, err)
		require.False(t, importer)
		state, err := m.State()
		require.NoError(t, err)
		require.Equal(t, gpu.MapReady, state)
		maps = append(maps, m)
	}
	require.Equal(t, 1, r.lib.Count("ipc_opens"))
	other, _, err := r.drv.Map(s, 1)
	require.NoError(t, err)
	require.Equal(t, 2, r.lib.Count("ipc_opens"))
	require.NotEqual(t, maps[0].At(got.At), other.At(got.At))
	require.NoError(t, other.Close())

	local := r.alloc(0, cuda.Device, mib)
	j := r.job(r.stream(0, 1))
	for i, how := range []gpu.How{gpu.Kernel, gpu.Engine} {
		in := noise(int64(i), 60000)
		r.app.Write(0, local, in)
		ops := r.drv.Ops(6)
		for k := range ops {
			ops[k] = gpu.Op{Local: local + uint64(k)*10000, Remote: got.At + uint64(5-k)*10001, Len: 10000}
		}
		w := gpu.Work{Ops: ops, Write: true, Delta: maps[0].At(got.At) - got.At, How: how}
		r.run(j, w)
		there := p.ask(ask{Do: "read", Device: 1, At: got.At, Size: 70000}).Data
		for k := range 6 {
			pattern.Same(t, in[k*10000:(k+1)*10000], there[(5-k)*10001:(5-k)*10001+10000])
		}
		r.app.Write(0, local, make([]byte, 60000))
		w.Write = false
		r.run(j, w)
		pattern.Same(t, in, r.app.Read(0, local, 60000))
		r.drv.FreeOps(ops)
	}
	for _, m := range maps {
		require.Equal(t, 1, r.lib.Count("ipc_maps"))
		require.NoError(t, m.Close())
	}
	require.Zero(t, r.lib.Count("ipc_maps"))

	p.ask(ask{Do: "free", Device: 1, At: got.At})
	_, _, err = r.drv.Map(s, 0)
	require.ErrorIs(t, err, gpu.Refused)
	require.ErrorContains(t, err, "CUDA_ERROR_NOT_PERMITTED")
	again := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	require.Equal(t, got.At, again.At, "the same address")
	_, _, err = r.drv.Map(s, 0)
	require.ErrorIs(t, err, gpu.Refused, "the old handle is never good for the new memory")
	m, _, err := r.drv.Map(share(again.Share), 0)
	require.NoError(t, err)

	// Freed and allocated again while the old memory is still mapped: the new memory gets its own mapping.
	p.ask(ask{Do: "free", Device: 1, At: again.At})
	third := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	require.Equal(t, got.At, third.At)
	fresh, _, err := r.drv.Map(share(third.Share), 0)
	require.NoError(t, err)
	require.NotEqual(t, m.At(got.At), fresh.At(got.At))
	in := noise(7, 4096)
	r.app.Write(0, local, in)
	ops := r.drv.Ops(1)
	defer r.drv.FreeOps(ops)
	ops[0] = gpu.Op{Local: local, Remote: got.At, Len: 4096}
	r.run(j, gpu.Work{Ops: ops, Write: true, Delta: fresh.At(got.At) - got.At})
	pattern.Same(t, in, p.ask(ask{Do: "read", Device: 1, At: got.At, Size: 4096}).Data)
	require.NoError(t, m.Close())
	require.NoError(t, fresh.Close())
}

// addPieces adds the pieces of a mapping, step at a time.
func addPieces(t *testing.T, p *peer, m *gpu.Map, at, size uint64, pieces, step int) {
	for first := 0; first < pieces; first += step {
		n := min(step, pieces-first)
		sizes := p.ask(ask{Do: "pieces", At: at, Size: size, First: first, N: n}).Sizes
		require.NoError(t, m.Add(p.take(n), sizes))
	}
}

// TestMapVMM: memory of several handles becomes one range. One of its users adds the pieces.
func TestMapVMM(t *testing.T) {
	r := open(t)
	p := startPeer(t, r.lib.Path)
	const pieces = 5
	got := p.ask(ask{Do: "alloc", Kind: "vmm", Device: 1, N: pieces, Size: cuda.Granule})
	before := descriptors(t)
	s := share(got.Share)
	require.Equal(t, pieces, s.Pieces())
	m, importer, err := r.drv.Map(s, 0)
	require.NoError(t, err)
	require.True(t, importer)
	second, importer, err := r.drv.Map(s, 0)
	require.NoError(t, err)
	require.False(t, importer)
	state, _ := second.State()
	require.Equal(t, gpu.MapOpening, state)
	addPieces(t, p, m, got.At, pieces*cuda.Granule, pieces, 2)
	state, err = second.State()
	require.NoError(t, err)
	require.Equal(t, gpu.MapReady, state)
	require.NoError(t, m.Close())
	require.Equal(t, before+pieces, descriptors(t), "the imitation's own, one for each handle mapped")

	local := r.alloc(0, cuda.Device, 3*cuda.Granule)
	in := noise(5, 3*cuda.Granule)
	r.app.Write(0, local, in)
	ops := r.drv.Ops(3)
	defer r.drv.FreeOps(ops)
	for k := range ops {
		ops[k] = gpu.Op{Local: local + uint64(k)*cuda.Granule, Remote: got.At + 12345 + uint64(k)*cuda.Granule, Len: cuda.Granule}
	}
	r.run(r.job(r.stream(0, 1)), gpu.Work{Ops: ops, Write: true, Delta: second.At(got.At) - got.At, How: gpu.Kernel})
	pattern.Same(t, in, p.ask(ask{Do: "read", Device: 1, At: got.At + 12345, Size: 3 * cuda.Granule}).Data)
	require.NoError(t, second.Close())
	require.Zero(t, r.lib.Count("vmm_maps"))
	require.Zero(t, r.lib.Count("handles"))
}

// TestMapVMMWrong: invalid descriptors, wrong sizes, or an importer that gives up end the mapping for all its users.
func TestMapVMMWrong(t *testing.T) {
	r := open(t)
	p := startPeer(t, r.lib.Path)
	got := p.ask(ask{Do: "alloc", Kind: "vmm", Device: 1, N: 2, Size: cuda.Granule})
	pieces := func(first, n int) ([]int32, []uint64) {
		a := p.ask(ask{Do: "pieces", At: got.At, Size: 2 * cuda.Granule, First: first, N: n})
		return p.take(n), a.Sizes
	}
	for name, c := range map[string]struct {
		add func(m *gpu.Map) error
		why gpu.Why
	}{
		"size": {func(m *gpu.Map) error {
			fds, sizes := pieces(0, 1)
			sizes[0] = 2 * cuda.Granule
			return m.Add(fds, sizes)
		}, gpu.Refused},
		"more": {func(m *gpu.Map) error {
			fds, sizes := pieces(0, 2)
			more, s := pieces(0, 1)
			return m.Add(append(fds, more...), append(sizes, s...))
		}, gpu.BadShare},
		"short": {func(m *gpu.Map) error {
			fds, sizes := pieces(0, 2)
			sizes[1] = cuda.Granule / 2
			return m.Add(fds, sizes)
		}, gpu.BadShare},
		"file": {func(m *gpu.Map) error {
			fd, err := syscall.Open("/dev/null", syscall.O_RDWR, 0)
			require.NoError(t, err)
			return m.Add([]int32{int32(fd)}, []uint64{cuda.Granule})
		}, gpu.Refused},
		"gives up": {func(m *gpu.Map) error {
			m.Fail(gpu.NoFDs)
			return gpu.NoFDs
		}, gpu.NoFDs},
	} {
		t.Run(name, func(t *testing.T) {
			m, importer, err := r.drv.Map(share(got.Share), 0)
			require.NoError(t, err)
			require.True(t, importer)
			second, _, err := r.drv.Map(share(got.Share), 0)
			require.NoError(t, err)
			before := descriptors(t)
			require.ErrorIs(t, c.add(m), c.why)
			state, why := second.State()
			require.Equal(t, gpu.MapFailed, state)
			require.ErrorIs(t, why, c.why)
			_, _, err = r.drv.Map(share(got.Share), 0)
			require.ErrorIs(t, err, c.why)
			require.NoError(t, m.Close())
			require.NoError(t, second.Close())
			require.Zero(t, r.lib.Count("vmm_maps"))
			require.Zero(t, r.lib.Count("handles"))
			require.Zero(t, r.lib.Count("reservations"))
			require.Equal(t, before, descriptors(t))
		})
	}
}

// TestMapOwn: memory of this process is used at its own address. VMM memory for another GPU is mapped again.
func TestMapOwn(t *testing.T) {
	r := open(t)
	dev, vmm := r.alloc(1, cuda.Device, mib), r.vmm(1, 3, cuda.Granule, true)
	for name, c := range map[string]struct {
		at, size uint64
		device   int
		same     bool
	}{"device, same": {dev, mib, 1, true}, "device, other": {dev, mib, 0, true}, "vmm, same": {vmm, 3 * cuda.Granule, 1, true},
		"vmm, other": {vmm, 3 * cuda.Granule, 0, false}} {
		s, err := r.drv.Share(r.what(c.at, c.size))
		require.NoError(t, err, name)
		m, importer, err := r.drv.Map(s, c.device)
		require.NoError(t, err, name)
		require.False(t, importer, name)
		require.Equal(t, c.same, m.At(c.at) == c.at, name)
		in := noise(9, c.size/2)
		local := r.app.Alloc(c.device, cuda.Device, c.size)
		r.app.Write(c.device, local, in)
		ops := r.drv.Ops(1)
		ops[0] = gpu.Op{Local: local, Remote: c.at + c.size/4, Len: c.size / 2}
		r.run(r.job(r.stream(c.device, 1)), gpu.Work{Ops: ops, Write: true, Delta: m.At(c.at) - c.at, How: gpu.Kernel})
		pattern.Same(t, in, r.app.Read(1, c.at+c.size/4, c.size/2), name)
		r.drv.FreeOps(ops)
		r.app.Free(c.device, cuda.Device, local)
		require.NoError(t, m.Close(), name)
	}
}

// TestMapRefused: no access between the GPUs, and invalid shares.
func TestMapRefused(t *testing.T) {
	r := open(t)
	at := r.alloc(1, cuda.Device, mib)
	s, err := r.drv.Share(r.what(at, mib))
	require.NoError(t, err)
	r.lib.Set("peers", 0)
	_, _, err = r.drv.Map(s, 0)
	require.ErrorIs(t, err, gpu.NoPeer)
	r.lib.Set("peers", 1)
	for name, c := range map[string]struct {
		word int
		why  gpu.Why
	}{"version": {0, gpu.BadShare}, "base": {1, gpu.Torn}, "size": {2, gpu.Torn}, "buffer": {3, gpu.Changed}} {
		lie := s // a share of our memory, changed by a peer
		lie[c.word*8+1]++
		_, _, err = r.drv.Map(lie, 0)
		require.ErrorIs(t, err, c.why, name)
	}
	p := startPeer(t, r.lib.Path)
	theirs := share(p.ask(ask{Do: "alloc", Device: 1, Size: mib}).Share)
	theirs[18]++ // 64 KiB more than the allocation
	_, _, err = r.drv.Map(theirs, 0)
	require.ErrorIs(t, err, gpu.BadShare)
	require.Zero(t, r.lib.Count("ipc_maps"))
	var none gpu.Share
	_, _, err = r.drv.Map(none, 0)
	require.ErrorIs(t, err, gpu.BadShare)
}

// TestPeerKilled: a mapping stays valid until it is unmapped, as on real GPUs (docs/gpu.md).
func TestPeerKilled(t *testing.T) {
	r := open(t)
	p := startPeer(t, r.lib.Path)
	got := p.ask(ask{Do: "alloc", Device: 1, Size: mib})
	m, _, err := r.drv.Map(share(got.Share), 0)
	require.NoError(t, err)
	p.kill()
	local := r.alloc(0, cuda.Device, mib)
	ops := r.drv.Ops(3)
	defer r.drv.FreeOps(ops)
	for k := range ops {
		ops[k] = gpu.Op{Local: local, Remote: got.At + uint64(k)*4096, Len: 4096}
	}
	for _, how := range []gpu.How{gpu.Kernel, gpu.Engine} {
		r.run(r.job(r.stream(0, 1)), gpu.Work{Ops: ops, Write: true, Delta: m.At(got.At) - got.At, How: how})
	}
	require.NoError(t, m.Close())
	_, _, err = r.drv.Map(share(got.Share), 0)
	require.ErrorIs(t, err, gpu.Refused)
}

// TestFabric: memory with only a fabric handle, of another process and of this one. If it cannot be shared, the error has the
// reason.
func TestFabric(t *testing.T) {
	t.Setenv("GORAIL_TEST_GPU_FABRIC", "1")
	r := open(t)
	r.lib.Set("fabric", 1)
	p := startPeer(t, r.lib.Path)
	const size = 2 * cuda.Granule
	got := p.ask(ask{Do: "alloc", Kind: "fabric", Device: 1, N: 1, Size: size})
	local := r.alloc(0, cuda.Device, size)
	in := noise(1, size)
	r.app.Write(0, local, in)
	j, ops := r.job(r.stream(0, 1)), r.drv.Ops(300)
	defer r.drv.FreeOps(ops)
	write := func(m *gpu.Map, at uint64) {
		for i := range ops {
			ops[i] = gpu.Op{Local: local + uint64(i)*10000, Remote: at + uint64(i)*10000, Len: 9000}
		}
		r.run(j, gpu.Work{Ops: ops, Write: true, Delta: m.At(at) - at})
	}
	m, importer, err := r.drv.Map(share(got.Share), 0)
	require.NoError(t, err)
	require.False(t, importer)
	write(m, got.At)
	there := p.ask(ask{Do: "read", Device: 1, At: got.At, Size: size}).Data
	pattern.Same(t, in[20000:29000], there[20000:29000])
	again, _, err := r.drv.Map(share(got.Share), 0)
	require.NoError(t, err)
	require.Equal(t, 1, r.lib.Count("imports"))
	require.NoError(t, again.Close())
	require.NoError(t, m.Close())

	own := r.app.FabricVMM(1, 1, size)
	defer r.app.FreeVMM(1, 1, size, own)
	is := r.what(own, size)
	require.True(t, is.Fabric())
	s, err := r.drv.Share(is)
	require.NoError(t, err)
	m, _, err = r.drv.Map(s, 0)
	require.NoError(t, err)
	write(m, own)
	pattern.Same(t, in[20000:29000], r.app.Read(1, own, size)[20000:29000])
	require.NoError(t, m.Close())

	r.lib.Fail("MemExportToShareableHandle", 1, cuda.NotPermitted)
	_, err = r.drv.Share(is)
	require.ErrorContains(t, err, "CUDA_ERROR_NOT_PERMITTED")
	two := r.app.FabricVMM(1, 2, size)
	defer r.app.FreeVMM(1, 2, size, two)
	require.ErrorIs(t, r.what(two, 2*size).NotShared, gpu.Fabrics)
	require.NoError(t, r.what(two, size).NotShared)
	r.lib.Set("fabric", 0)
	require.ErrorIs(t, r.what(own, size).NotShared, gpu.NoHandle)
	_, _, err = r.drv.Map(share(got.Share), 0)
	require.ErrorIs(t, err, gpu.Refused)
}
