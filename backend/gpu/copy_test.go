package gpu_test

import (
	"bytes"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// scatter moves n pieces of odd sizes and addresses between two GPUs of this process, and compares the result.
func (r *rig) scatter(device, peer int, write bool, n int, how gpu.How) {
	r.Helper()
	rnd := rand.New(rand.NewSource(int64(n)*7 + int64(how)))
	const room = 4 * mib
	local, far := r.app.Alloc(device, cuda.Device, room), r.app.Alloc(peer, cuda.Device, room)
	defer r.app.Free(device, cuda.Device, local)
	defer r.app.Free(peer, cuda.Device, far)
	from, to := noise(1, room), noise(2, room)
	s, err := r.drv.Share(r.what(far, room))
	require.NoError(r, err)
	m, importer, err := r.drv.Map(s, device)
	require.NoError(r, err)
	require.False(r, importer)
	defer func() { require.NoError(r, m.Close()) }()

	ops := r.drv.Ops(n)
	require.NotNil(r, ops)
	defer r.drv.FreeOps(ops)
	const named = 0x500000000000 // the peer's address of its memory
	for i, at := 0, uint64(0); i < n; i++ {
		size := uint64(rnd.Intn(3 * room / n / 2))
		gap := uint64(rnd.Intn(room / n / 4))
		if i%7 == 3 {
			size = 0
		}
		src := uint64(rnd.Intn(room - int(size)))
		if at+gap+size > room {
			gap, size = 0, 0
		}
		at += gap
		copy(to[at:at+size], from[src:])
		if write {
			ops[i] = gpu.Op{Local: local + src, Remote: named + at, Len: size, RemoteRegion: uint32(i%3) * 5000}
		} else {
			ops[i] = gpu.Op{Local: local + at, Remote: named + src, Len: size, RemoteRegion: uint32(i%3) * 5000}
		}
		at += size
	}
	table, err := r.drv.Table(device)
	require.NoError(r, err)
	defer table.Free()
	for i := range uint32(3) {
		require.NoError(r, table.Set(i*5000, m.At(far)-named))
	}
	before := noise(2, room)
	if write {
		r.app.Write(device, local, from)
		r.app.Write(peer, far, before)
	} else {
		r.app.Write(peer, far, from)
		r.app.Write(device, local, before)
	}
	l, err := r.drv.Stream(device, peer)
	require.NoError(r, err)
	defer l.Close()
	j, err := l.Job()
	require.NoError(r, err)
	defer func() { require.NoError(r, j.Free()) }()
	r.run(j, gpu.Work{Ops: ops, Write: write, Table: table, Delta: 12345, How: how}) // with a table, Delta is not used
	got := r.app.Read(peer, far, room)
	if !write {
		got = r.app.Read(device, local, room)
	}
	pattern.Same(r, to, got, "unexpected bytes")
}

// TestScatter: all methods, few pieces and many, both directions, one GPU and two.
func TestScatter(t *testing.T) {
	r := open(t)
	for _, how := range []gpu.How{gpu.Auto, gpu.Kernel, gpu.Engine} {
		for _, n := range []int{1, 2, 5, 128, 129, 2000} {
			for _, write := range []bool{true, false} {
				r.scatter(0, 1, write, n, how)
				r.scatter(1, 1, write, n, how)
			}
		}
	}
	c := r.drv.Counts()
	require.NotZero(t, c.Launches)
	require.NotZero(t, c.EngineCopies)
}

// TestWhichWay: many pieces take one launch. Single and large pieces take copy engines. The limit for large depends on the
// destination.
func TestWhichWay(t *testing.T) {
	r := open(t)
	a, b, host := r.alloc(0, cuda.Device, 40*mib), r.alloc(0, cuda.Device, 40*mib), r.alloc(0, cuda.Host, 40*mib)
	for _, c := range []struct {
		to          uint64
		peer        int
		n, launches int
		size        uint64
	}{{b, 0, 1, 0, 4096}, {b, 0, 2, 1, 4096}, {b, 0, 500, 1, 4096}, {b, 0, 8, 1, 5 * mib}, {b, 0, 2, 0, 20 * mib},
		{b, 1, 40, 1, mib}, {host, gpu.ToHost, 40, 0, mib}, {host, gpu.ToHost, 500, 1, 4096}} {
		j, ops := r.job(r.stream(0, c.peer)), r.drv.Ops(c.n)
		for i := range ops {
			ops[i] = gpu.Op{Local: a + uint64(i)*c.size, Remote: c.to + uint64(i)*c.size, Len: c.size}
		}
		launches, copies := r.lib.Count("launches"), r.lib.Count("copies")
		r.run(j, gpu.Work{Ops: ops, Write: true})
		for end := time.Now().Add(time.Minute); c.launches > r.lib.Count("launches")-launches && time.Now().Before(end); { // a kernel was late
			r.run(j, gpu.Work{Ops: ops, Write: true})
		}
		require.Equal(t, c.launches, r.lib.Count("launches")-launches, "%d x %d to %d", c.n, c.size, c.peer)
		if c.launches == 0 {
			require.GreaterOrEqual(t, r.lib.Count("copies")-copies, c.n)
		}
		r.drv.FreeOps(ops)
	}
}

// TestRepost: a job is posted repeatedly, but not while it is in progress.
func TestRepost(t *testing.T) {
	r := open(t)
	a, b := r.alloc(0, cuda.Device, mib), r.alloc(1, cuda.Device, mib)
	s, err := r.drv.Share(r.what(b, mib))
	require.NoError(t, err)
	m, _, err := r.drv.Map(s, 0)
	require.NoError(t, err)
	defer m.Close()
	for _, how := range []gpu.How{gpu.Kernel, gpu.Engine} {
		j := r.job(r.stream(0, 1))
		ops := r.drv.Ops(8)
		for i := range ops {
			ops[i] = gpu.Op{Local: a + uint64(i)*1000, Remote: uint64(i) * 1000, Len: 1000}
		}
		w := gpu.Work{Ops: ops, Write: true, Delta: m.At(b), How: how}
		for round := range 5 {
			in := noise(int64(round), 8000)
			r.app.Write(0, a, in)
			r.lib.Set("hold", 1)
			require.NoError(t, j.Post(w))
			require.ErrorIs(t, j.Post(w), gpu.Busy)
			require.ErrorIs(t, j.Free(), gpu.Busy)
			for range 200 {
				ended, err := j.Poll()
				require.NoError(t, err)
				require.False(t, ended)
			}
			r.lib.Set("hold", 0)
			require.NoError(t, finish(t, j))
			pattern.Same(t, in, r.app.Read(1, b, 8000))
		}
		r.drv.FreeOps(ops)
	}
}

// TestCancel: work in progress ends soon, the rest does not start, and the job can be posted again.
func TestCancel(t *testing.T) {
	for name, how := range map[string]gpu.How{"kernel": gpu.Kernel, "engine": gpu.Engine} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			const n = 5000
			a, b := r.alloc(0, cuda.Device, 8*mib), r.alloc(0, cuda.Device, 8*mib)
			j := r.job(r.stream(0, 0))
			ops := r.drv.Ops(n)
			defer r.drv.FreeOps(ops)
			for i := range ops {
				ops[i] = gpu.Op{Local: a + uint64(i)*1024, Remote: b + uint64(i)*1024, Len: 1024}
			}
			r.app.Write(0, a, bytes.Repeat([]byte{1}, n*1024))
			w := gpu.Work{Ops: ops, Write: true, How: how}
			r.lib.Set("op", 1000) // the kernel would take five seconds
			require.NoError(t, j.Post(w))
			j.Cancel()
			require.ErrorIs(t, finish(t, j), gpu.Cancelled)
			require.Zero(t, r.app.Read(0, b+(n-1)*1024, 1024)[0], "the last operation was done")
			r.lib.Set("op", 0)
			j.Cancel() // of an idle job
			r.run(j, w)
			require.Equal(t, byte(1), r.app.Read(0, b+(n-1)*1024, 1024)[0])
		})
	}
}

// TestLost: if CUDA ends, jobs end with Lost, and no call hangs.
func TestLost(t *testing.T) {
	for name, how := range map[string]gpu.How{"kernel": gpu.Kernel, "engine": gpu.Engine} {
		t.Run(name, func(t *testing.T) {
			lib := cuda.Build(t)
			d, err := gpu.Open(lib.Path)
			require.NoError(t, err)
			app := cuda.NewApp(t, lib.Path)
			a := app.Alloc(0, cuda.Device, mib)
			l, err := d.Stream(0, 0)
			require.NoError(t, err)
			j, err := l.Job()
			require.NoError(t, err)
			ops := d.Ops(4)
			for i := range ops {
				ops[i] = gpu.Op{Local: a + uint64(i)*4096, Remote: a + mib/2 + uint64(i)*4096, Len: 4096}
			}
			lib.Set("hold", 1)
			require.NoError(t, j.Post(gpu.Work{Ops: ops, Write: true, How: how}))
			lib.Kill(cuda.IllegalAddress)
			require.ErrorIs(t, finish(t, j), gpu.Lost)
			require.ErrorIs(t, j.Post(gpu.Work{Ops: ops, Write: true, How: how}), gpu.Lost)
			require.NoError(t, j.Free())
			l.Close()
			require.NoError(t, d.Close())
		})
	}
}

// TestTables: region indices belong to one core, so two tables of one GPU are independent. A table of another GPU, or without
// entries, is refused.
func TestTables(t *testing.T) {
	r := open(t)
	a, b := r.alloc(0, cuda.Device, mib), r.alloc(0, cuda.Device, mib)
	var tables []*gpu.Table
	for _, device := range []int{0, 0, 1} {
		table, err := r.drv.Table(device)
		require.NoError(t, err)
		defer table.Free()
		tables = append(tables, table)
	}
	require.ErrorIs(t, r.drv.Close(), gpu.Busy)
	j, ops := r.job(r.stream(0, 0)), r.drv.Ops(200)
	defer r.drv.FreeOps(ops)
	for i := range ops {
		ops[i] = gpu.Op{Local: a + uint64(i)*1024, Remote: uint64(i) * 1024, Len: 1024, RemoteRegion: 9}
	}
	require.ErrorIs(t, j.Post(gpu.Work{Ops: ops, Write: true, Table: tables[0]}), gpu.BadShare)
	require.NoError(t, tables[0].Set(9, b))
	require.NoError(t, tables[1].Set(9, b+mib/2))
	require.NoError(t, tables[2].Set(9, b))
	require.ErrorIs(t, j.Post(gpu.Work{Ops: ops, Write: true, Table: tables[2]}), gpu.BadShare)
	for i, table := range tables[:2] {
		in := noise(int64(i), 200*1024)
		r.app.Write(0, a, in)
		r.run(j, gpu.Work{Ops: ops, Write: true, Table: table})
		pattern.Same(t, in, r.app.Read(0, b+uint64(i)*mib/2, 200*1024))
	}
}

// TestBehindCopyEngine: a kernel that waits for a copy engine's copy on its stream does not wait for the application's kernels.
func TestBehindCopyEngine(t *testing.T) {
	r := open(t)
	const n = 64
	here, there := r.alloc(0, cuda.Device, cuda.Granule), r.alloc(0, cuda.Device, cuda.Granule)
	stream := r.stream(0, 0)
	large, list := r.job(stream), r.job(stream)
	ops, one := r.drv.Ops(n), r.drv.Ops(1)
	t.Cleanup(func() { r.drv.FreeOps(ops); r.drv.FreeOps(one) })
	for i := range ops {
		ops[i] = gpu.Op{Local: here + uint64(i)*4096, Remote: there + uint64(i)*4096, Len: 1024}
	}
	one[0] = gpu.Op{Local: here, Remote: there, Len: 1024}
	r.lib.Set("hold", 1)
	require.NoError(t, large.Post(gpu.Work{Ops: one, Write: true, How: gpu.Engine}))
	require.NoError(t, list.Post(gpu.Work{Ops: ops, Write: true}))
	require.Equal(t, 1, r.lib.Count("launches"))
	for held, polls := time.Now(), 0; time.Since(held) < 20*time.Millisecond || polls < 200; polls++ {
		ended, err := list.Poll()
		require.NoError(t, err)
		require.False(t, ended)
	}
	r.lib.Set("hold", 0)
	require.NoError(t, finish(t, large))
	require.NoError(t, finish(t, list))
	r.run(list, gpu.Work{Ops: ops, Write: true})
	require.Equal(t, 2, r.lib.Count("launches"))
}

// TestBusyGPU: a kernel waits, as it does while the application's kernels hold all SMs. Short lists take the copy engine for a while then.
func TestBusyGPU(t *testing.T) {
	r := open(t)
	const n, size = 64, cuda.Granule
	here, there := r.alloc(0, cuda.Device, size), r.alloc(0, cuda.Device, size)
	j := r.job(r.stream(0, 0))
	ops := r.drv.Ops(n)
	t.Cleanup(func() { r.drv.FreeOps(ops) })
	for i := range ops {
		ops[i] = gpu.Op{Local: here + uint64(i)*4096, Remote: there + uint64(i)*4096, Len: 1024}
	}
	launches := func() int { return r.lib.Count("launches") }
	pending := func() {
		ended, err := j.Poll()
		require.NoError(t, err)
		require.False(t, ended)
	}
	r.run(j, gpu.Work{Ops: ops, Write: true})
	require.Equal(t, 1, launches())
	r.lib.Set("hold", 1)
	require.NoError(t, j.Post(gpu.Work{Ops: ops, Write: true, How: gpu.Kernel}))
	for held := time.Now(); time.Since(held) < 20*time.Millisecond; {
		pending()
	}
	busy := time.Now()
	for range 64 { // one of them looks at the clock
		pending()
	}
	r.lib.Set("hold", 0)
	require.NoError(t, finish(t, j))
	before := launches()
	r.run(j, gpu.Work{Ops: ops, Write: true})
	if time.Since(busy) < 50*time.Millisecond { // a starved host may be past it
		require.Equal(t, before, launches(), "a copy engine makes the copy")
	}
	before = launches()
	r.run(j, gpu.Work{Ops: ops, Write: true, How: gpu.Kernel})
	require.Equal(t, before+1, launches())
	for launches() == before+1 { // the kernel is tried again
		require.Less(t, time.Since(busy), time.Minute)
		r.run(j, gpu.Work{Ops: ops, Write: true})
	}
}
