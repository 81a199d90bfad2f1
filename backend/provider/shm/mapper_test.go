package shm

import (
	"context"
	"encoding/binary"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/ipc"
)

// fakeMap is a mapping whose state a test sets.
type fakeMap struct {
	state  atomic.Int32
	why    gpu.Why
	added  int
	closed int
}

func (m *fakeMap) Add(fds []int32, _ []uint64) error {
	for _, fd := range fds {
		closeFDs(int(fd))
	}
	if m.added += len(fds); m.added == 3 {
		m.state.Store(int32(gpu.MapReady))
	}
	return nil
}

func (m *fakeMap) Fail(why gpu.Why) {
	m.why = why
	m.state.Store(int32(gpu.MapFailed))
}

func (m *fakeMap) State() (gpu.MapState, error) {
	s := gpu.MapState(m.state.Load())
	if s == gpu.MapFailed {
		return s, m.why
	}
	return s, nil
}

func (m *fakeMap) At(addr uint64) uint64 { return addr + 4096 }
func (m *fakeMap) Close() error          { m.closed++; return nil }

// fakeGPUs is a driver whose Map returns the next of maps.
type fakeGPUs struct {
	own      bool
	maps     []*fakeMap
	importer bool
	err      error
	asked    int

	proofs    []gpu.Proof // that MapProved got
	provedErr error
}

func (d *fakeGPUs) Find([16]byte) int    { return 1 }
func (d *fakeGPUs) Owns(*gpu.Share) bool { return d.own }
func (d *fakeGPUs) MapProved(_ gpu.Share, _ int, p gpu.Proof) (mapped, error) {
	d.proofs = append(d.proofs, p)
	if d.provedErr != nil {
		return nil, d.provedErr
	}
	return d.maps[0], nil
}

func (d *fakeGPUs) Map(gpu.Share, int) (mapped, bool, error) {
	if d.err != nil {
		return nil, false, d.err
	}
	d.asked++
	return d.maps[d.asked-1], d.importer, nil
}

// shareOf describes memory in that number of pieces; 0: no other process can map it.
func shareOf(pieces int) (s gpu.Share) {
	if pieces > 0 {
		binary.NativeEndian.PutUint32(s[4:], 2) // GR_GPU_SHARE_FDS
		binary.NativeEndian.PutUint32(s[64:], uint32(pieces))
	}
	return s
}

// TestMappingRefused: memory that no other process can map is refused. So is a peer's claim that its memory is this
// process's own: copies would go to an address of the peer's choice.
func TestMappingRefused(t *testing.T) {
	require.Equal(t, 3, func() int { s := shareOf(3); return s.Pieces() }())
	d := &fakeGPUs{}
	for _, c := range []struct {
		p    mapping
		want error
	}{
		{mapping{ImportInfo: cma.ImportInfo{Self: true, Device: 1, Peer: 1}}, nil},
		{mapping{ImportInfo: cma.ImportInfo{Self: true, Device: 0, Peer: 1}}, gpu.BadShare},
		{mapping{ImportInfo: cma.ImportInfo{Self: true, Device: 0, Peer: 1, Why: gpu.Pool}}, gpu.Pool},
		{mapping{ImportInfo: cma.ImportInfo{Device: 1, Peer: 1, Why: gpu.Pool}}, gpu.Pool},
		{mapping{ImportInfo: cma.ImportInfo{Share: shareOf(3)}, driver: &fakeGPUs{own: true}}, gpu.BadShare},
		{mapping{ImportInfo: cma.ImportInfo{Share: shareOf(3)}, driver: &fakeGPUs{err: gpu.NoPeer}}, gpu.NoPeer},
	} {
		if c.p.driver == nil {
			c.p.driver = d
		}
		require.Equal(t, c.want, c.p.open())
		require.Nil(t, c.p.at)
	}
	require.Zero(t, d.asked)
}

// A task that never ends, because the driver waits for a GPU, does not hold up endpoints for ever.
func TestMapperWaitIsBounded(t *testing.T) {
	m := &mapper{}
	m.idle.L = &m.mu
	m.ran(0, time.Now())
	require.False(t, m.waitFor(1, time.Millisecond))
	waited := make(chan bool, 2)
	for range 2 {
		go func() { waited <- m.waitFor(2, time.Hour) }()
	}
	m.ran(1, time.Time{})
	m.ran(1, time.Time{})
	require.True(t, <-waited)
	require.True(t, <-waited)
	require.True(t, m.waitFor(2, time.Millisecond))
}

// TestMappingPieces: the pieces come from their owner. A wrong process at the owner's socket fails the mapping.
func TestMappingPieces(t *testing.T) {
	s, err := ipc.ServeDescriptors(&ipc.Host{}, ipc.Token{}, func(_ uint64, _, n int) (fds []int, sizes []uint64, why int) {
		for range n {
			fds, sizes = append(fds, dup(t)), append(sizes, 1)
		}
		return fds, sizes, 0
	})
	require.NoError(t, err)
	for _, pid := range []int{os.Getpid(), os.Getpid() + 1} {
		m := &fakeMap{}
		p := mapping{ImportInfo: cma.ImportInfo{Share: shareOf(3), Owner: ipc.MemoryOwner{Place: s.Place(), Host: &ipc.Host{}, Pid: pid}}, driver: &fakeGPUs{maps: []*fakeMap{m}, importer: true}}
		require.NoError(t, p.open())
		require.True(t, p.opening())
		err := p.await(context.Background(), nil)
		if pid == os.Getpid() {
			require.NoError(t, err)
			require.Equal(t, 3, m.added)
		} else {
			require.Equal(t, gpu.BadShare, err)
			require.Equal(t, gpu.BadShare, m.why)
		}
		p.unmap()
		require.Equal(t, 1, m.closed)
	}
	s.Close()
}

func dup(t *testing.T) int {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	return fd
}

// TestMappingShared: another importer fetches the pieces; when it is cancelled, we open the mapping again.
func TestMappingShared(t *testing.T) {
	one, two := &fakeMap{}, &fakeMap{}
	p := mapping{ImportInfo: cma.ImportInfo{Share: shareOf(3)}, driver: &fakeGPUs{maps: []*fakeMap{one, two}}}
	require.NoError(t, p.open())
	time.AfterFunc(10*time.Millisecond, func() { one.Fail(gpu.Cancelled) })
	time.AfterFunc(30*time.Millisecond, func() { two.state.Store(int32(gpu.MapReady)) })
	require.NoError(t, p.await(context.Background(), nil))
	require.Equal(t, 1, one.closed)
	require.Zero(t, two.closed)

	ctx, cancel := context.WithCancel(context.Background())
	p = mapping{ImportInfo: cma.ImportInfo{Share: shareOf(3)}, driver: &fakeGPUs{maps: []*fakeMap{{}}}}
	require.NoError(t, p.open())
	time.AfterFunc(10*time.Millisecond, cancel)
	require.Equal(t, gpu.Cancelled, p.await(ctx, nil))
}

// TestMappingProved: if the driver takes the peer's handle for one of this process, the owner's proof decides. Another proof
// is fetched where the first one fails, since the application may have written to the memory.
func TestMappingProved(t *testing.T) {
	var made, refusal atomic.Int32 // the server reads them
	s, err := ipc.ServeDescriptors(&ipc.Host{}, ipc.Token{}, nil)
	require.NoError(t, err)
	defer s.Close()
	try := func(d *fakeGPUs) error {
		d.err, d.proofs = gpu.SamePID, nil
		made.Store(0)
		p := mapping{ImportInfo: cma.ImportInfo{Share: shareOf(3), Owner: ipc.MemoryOwner{Host: &ipc.Host{}, Place: s.Place(), Pid: os.Getpid()}}, driver: d}
		err := p.open()
		require.Equal(t, gpu.SamePID, err)
		err = p.await(context.Background(), err)
		require.Equal(t, err == nil, p.at != nil)
		p.unmap()
		return err
	}
	require.Equal(t, gpu.BadShare, try(&fakeGPUs{}), "the server makes no proofs yet")
	s.Prove(func(uint64) (p gpu.Proof, why int) {
		p[0] = byte(made.Add(1))
		return p, int(refusal.Load())
	})
	d := &fakeGPUs{maps: []*fakeMap{{}}}
	require.NoError(t, try(d))
	require.Equal(t, []gpu.Proof{{1}}, d.proofs)
	require.Equal(t, 1, d.maps[0].closed)
	d = &fakeGPUs{provedErr: gpu.Unproved}
	require.Equal(t, gpu.Unproved, try(d))
	require.Equal(t, []gpu.Proof{{1}, {2}, {3}}, d.proofs)
	d = &fakeGPUs{provedErr: gpu.Layout}
	require.Equal(t, gpu.Layout, try(d))
	require.Len(t, d.proofs, 1)
	refusal.Store(int32(gpu.NoMemory))
	d = &fakeGPUs{}
	require.Equal(t, gpu.NoMemory, try(d))
	require.Empty(t, d.proofs)
}

// TestMappingWarnings: a reason that depends on the containers is a warning, each text once. Their number is bounded.
func TestMappingWarnings(t *testing.T) {
	require.True(t, containers(gpu.Unseen) && containers(gpu.Layout) && containers(gpu.Unproved))
	require.False(t, containers(gpu.Refused) || containers(gpu.Pool) || containers(gpu.SamePID))
	require.Equal(t, "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", uuidText([16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}))
	r := &rail{}
	r.warn("a")
	r.warn("a")
	r.warn("b")
	require.Equal(t, []string{"a", "b"}, r.Warnings())
	r.warn("a")
	require.Empty(t, r.Warnings())
	for i := range 100 {
		r.warn(string(rune('c' + i)))
	}
	require.Len(t, r.Warnings(), 62)
}
