package verbs

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/internal/pattern"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// lockable sets how many bytes the process may lock, until the end of the test. It returns false if the process may not
// raise the limit.
func lockable(t *testing.T, bytes uint64) bool {
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
	now := unix.Rlimit{Cur: bytes, Max: max(bytes, was.Max)}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &now) != nil {
		return false
	}
	t.Cleanup(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was)) })
	return true
}

// The error of a refused registration names the limit and how to raise it.
func TestRegisterRefused(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("mr_size", 1<<20)
	s := newSide(t, options(t, lib, true))
	require.EqualValues(t, 1<<20, s.rail.Caps().MaxMR, "what the device has, where that is less")
	require.True(t, s.rail.Caps().PinsMemory)
	refuse := func(length int, errno syscall.Errno, want ...string) {
		t.Helper()
		_, err := s.rail.Register(drive.Addr(s.mem), uint64(length), 0, option.PeersBoth)
		require.ErrorIs(t, err, provider.ErrRegister)
		require.ErrorIs(t, err, errno)
		for _, w := range append(want, "verbs/hca0: ibv_reg_mr of ") {
			require.ErrorContains(t, err, w)
		}
	}
	require.True(t, lockable(t, 64<<10))
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM} {
		lib.Fail("reg_mr", 1, errno)
		refuse(4096, errno, "RLIMIT_MEMLOCK: 64 KiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1")
	}
	lib.Fail("create_qp", 1, syscall.ENOMEM) // queues are locked memory, too
	_, err := s.rail.OpenEndpoint()
	require.ErrorContains(t, err, "RLIMIT_MEMLOCK: 64 KiB")
	refuse(1<<20+1, syscall.EINVAL, "1048576 bytes a region", "option mr_max")
	lib.Fail("reg_mr", 1, syscall.EOPNOTSUPP)
	refuse(4096, syscall.EOPNOTSUPP)
	gone := unmapped(t)
	_, err = s.rail.Register(gone, 8192, 0, option.PeersBoth)
	require.ErrorIs(t, err, syscall.EFAULT)
	require.ErrorContains(t, err, "is not mapped as a whole, or may not be written to")
	if lockable(t, unix.RLIM_INFINITY) {
		lib.Set("mr_max", 1)
		refuse(4096, syscall.ENOMEM, "RLIMIT_MEMLOCK is unlimited", "the device's regions, ", "fewer and larger ranges")
	}
}

// unmapped returns the address of two pages. The second page is no longer mapped.
func unmapped(t *testing.T) uint64 {
	page := os.Getpagesize()
	b, err := unix.MmapPtr(-1, 0, nil, uintptr(2*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.MunmapPtr(b, uintptr(page))) })
	require.NoError(t, unix.MunmapPtr(unsafe.Add(b, page), uintptr(page)))
	return uint64(uintptr(b))
}

// A dmabuf: its bytes are read and written under addresses of the caller's choice, and no byte beyond the range is
// reached.
func TestDMABuf(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("dmabuf", 1)
	a, b := pair(t, lib)
	require.True(t, canDMABuf(b.rail))
	page := uint64(os.Getpagesize())
	fd, err := unix.MemfdCreate("device memory", 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	content := make([]byte, 4*page)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	_, err = unix.Pwrite(fd, content, 0)
	require.NoError(t, err)
	reg := b.rail.(*rail)
	offset, length, iova := page+64, 2*page, uint64(0x4200_0000_0040)&^(page-1)+64
	mr, err := reg.RegisterDMABuf(fd, offset, length, iova, option.PeersBoth)
	require.NoError(t, err)
	require.Equal(t, iova, mr.Base())
	x, _ := link(a, b)
	at := func(n uint64) drive.Seg {
		return drive.Seg{Local: drive.Addr(a.mem), Remote: mr.Base() + n, Len: 100, Desc: a.mr.Desc(), Key: mr.Key(provider.Salt{})}
	}
	require.NoError(t, a.d.RMA(x.Core(), drive.Read, 1, at(7)))
	a.until(1)
	pattern.Same(t, content[offset+7:offset+107], a.mem[:100])
	copy(a.mem, "to the device")
	require.NoError(t, a.d.RMA(x.Core(), drive.Write, 2, at(length-100)))
	a.until(2)
	copy(content[offset+length-100:], a.mem[:100])
	got := make([]byte, len(content))
	_, err = unix.Pread(fd, got, 0)
	require.NoError(t, err)
	require.Equal(t, content, got, "and nothing besides")
	require.NoError(t, a.d.RMA(x.Core(), drive.Write, 3, at(length-99)))
	a.until(3)
	require.Equal(t, syscall.EACCES, a.done[3].Err)
	require.ErrorIs(t, b.rail.Close(), syscall.EBUSY)
	require.NoError(t, mr.Close())

	refuse := func(fd int, offset, iova uint64, errno syscall.Errno) {
		t.Helper()
		_, err := reg.RegisterDMABuf(fd, offset, page, iova, option.PeersBoth)
		require.ErrorIs(t, err, provider.ErrRegister)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, "hca0: ibv_reg_dmabuf_mr of ")
	}
	refuse(fd, 64, iova+1, syscall.EINVAL)
	refuse(-1, 64, iova, syscall.EBADF)
	lib.Fail("reg_dmabuf_mr", 1, syscall.ENOMEM)
	refuse(fd, 64, iova, syscall.ENOMEM)
}

// Kernels, drivers and libraries without dmabuf support.
func TestNoDMABuf(t *testing.T) {
	for name, build := range map[string]func(testing.TB) *imitation.Lib{"kernel": imitation.Build, "library": imitation.BuildOld} {
		t.Run(name, func(t *testing.T) {
			s := newSide(t, options(t, build(t), true))
			require.False(t, canDMABuf(s.rail))
			_, err := s.rail.(*rail).RegisterDMABuf(0, 0, 4096, 0, option.PeersBoth)
			require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		})
	}
}
