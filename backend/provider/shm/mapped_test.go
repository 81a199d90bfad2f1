package shm

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/test/conform"
)

// inFiles is a rail whose regions are files in memory: memory moves into one before it is registered.
type inFiles struct {
	*rail
	t     *testing.T
	mu    sync.Mutex
	moved map[uint64]uint64 // lengths, by address
	total *uint64           // bytes that went through mappings of all rails
}

func (r *inFiles) Register(addr, n, key uint64, rights option.Rights) (provider.MR, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if addr%4096 == 0 && n >= leastMapped && r.moved[addr] < n {
		fd, err := unix.MemfdCreate("an application's", unix.MFD_CLOEXEC)
		require.NoError(r.t, err)
		r.t.Cleanup(func() { require.NoError(r.t, unix.Close(fd)) })
		require.NoError(r.t, unix.Ftruncate(fd, int64(n)))
		at := unsafe.Add(nil, addr)
		if _, err = unix.Pwrite(fd, unsafe.Slice((*byte)(at), n), 0); err != nil { // an address without memory
			return r.rail.Register(addr, n, key, rights)
		}
		_, err = unix.MmapPtr(fd, 0, at, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(r.t, err)
		r.moved[addr] = n
	}
	return r.rail.Register(addr, n, key, rights)
}

func (r *inFiles) Close() error {
	*r.total += r.Mapped()
	return r.rail.Close()
}

// TestConformMapped runs the conformance tests with memory that peers map.
func TestConformMapped(t *testing.T) {
	for name, o := range map[string]Options{"threads": {Threads: 2, Rings: true}, "alone": {Rings: true}} {
		var total uint64
		t.Run(name, func(t *testing.T) {
			conform.Run(t, conform.Is(conform.Traits{DeliveryComplete: true, VirtAddr: true}), func(t *testing.T) provider.Rail {
				return &inFiles{rail: open(t, o).(*rail), t: t, moved: map[uint64]uint64{}, total: &total}
			})
		})
		require.Greater(t, total, uint64(1<<20))
	}
}

// TestFileOfRegion: peers get the file of a region while the region is registered, and of no other memory.
func TestFileOfRegion(t *testing.T) {
	r := open(t, Options{}).(*rail)
	defer func() { require.NoError(t, r.Close()) }()
	fd, err := unix.MemfdCreate("an application's", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	const size = 1 << 20
	require.NoError(t, unix.Ftruncate(fd, 2*size))
	mem, err := unix.MmapPtr(fd, size, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.MunmapPtr(mem, size)) }()
	private, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.MunmapPtr(private, size)) }()

	other, err := r.Register(uint64(uintptr(private)), size, 0, option.PeersBoth)
	require.NoError(t, err)
	require.Nil(t, r.server)
	_, _, ok := r.file(other.Key(provider.Salt{}))
	require.False(t, ok)
	m, err := r.Register(uint64(uintptr(mem))+4096, size-4096, 0, option.PeersBoth)
	require.NoError(t, err)
	require.NotNil(t, r.server)
	got, offset, ok := r.file(m.Key(provider.Salt{}))
	require.True(t, ok)
	require.EqualValues(t, size+4096, offset)
	var a, b unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &a))
	require.NoError(t, unix.Fstat(got, &b))
	require.Equal(t, a.Ino, b.Ino)
	closeFDs(got)
	_, _, ok = r.file(m.Key(provider.Salt{}) + 2<<32)
	require.False(t, ok)
	require.NoError(t, m.Close())
	_, _, ok = r.file(m.Key(provider.Salt{}))
	require.False(t, ok)
	require.NoError(t, other.Close())
	m, err = r.Register(uint64(uintptr(mem)), size, 0, option.PeersWrite) // the file could be read, too
	require.NoError(t, err)
	_, _, ok = r.file(m.Key(provider.Salt{}))
	require.False(t, ok)
	require.NoError(t, m.Close())
}
