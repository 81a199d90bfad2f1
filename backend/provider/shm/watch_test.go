package shm

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
)

const watchedSize = 1 << 20

func memfd(t testing.TB, size int64) (fd int, inode uint64) {
	t.Helper()
	fd, err := unix.MemfdCreate("an application's", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, size))
	return fd, inodeOf(t, fd)
}

func inodeOf(t testing.TB, fd int) uint64 {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return st.Ino
}

// watched is a rail with registered shared memory at addresses that stay.
type watched struct {
	testing.TB
	*rail
	at unsafe.Pointer
	mr *region
}

var reserved uintptr = 0x3000_0000_0000

// reserve maps addresses that are far from where the kernel chooses some: what is unmapped stays free.
func reserve(t testing.TB, size uintptr) unsafe.Pointer {
	at, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, reserved), size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
	require.NoError(t, err)
	reserved += 1 << 34
	t.Cleanup(func() { require.NoError(t, unix.MunmapPtr(at, size)) })
	return at
}

func watching(t testing.TB) *watched {
	w := &watched{TB: t, rail: open(t, Options{}).(*rail)}
	t.Cleanup(func() { require.NoError(t, w.rail.Close()) })
	if answers, _ := w.table.files.Asks(); !answers {
		t.Skip("the kernel does not answer about one mapping")
	}
	w.at = reserve(t, watchedSize)
	return w
}

func (w *watched) register() {
	m, err := w.Register(uint64(uintptr(w.at)), watchedSize, 0, option.PeersBoth)
	require.NoError(w, err)
	w.mr = m.(*region)
	w.Cleanup(func() { require.NoError(w, m.Close()) })
}

// maps puts other memory at the addresses; fd -1: private memory.
func (w *watched) maps(fd int) {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANON
	}
	_, err := unix.MmapPtr(fd, 0, w.at, watchedSize, unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	require.NoError(w, err)
}

// want requires that peers get that file; 0: none.
func (w *watched) want(inode uint64) {
	w.Helper()
	fd, _, ok := w.file(w.mr.Key(provider.Salt{}))
	share := w.table.entries[uint32(w.mr.Key(provider.Salt{}))].share.Load()
	require.Equal(w, inode != 0, ok)
	if !ok {
		require.Zero(w, share)
		return
	}
	require.EqualValues(w, cma.FileShare, share)
	require.Equal(w, inode, inodeOf(w, fd))
	closeFDs(fd)
}

// TestWatchedGap: peers get the file that the application has mapped at the addresses, also after a time without one. The log says so.
func TestWatchedGap(t *testing.T) {
	w := watching(t)
	one, oneIs := memfd(t, watchedSize)
	two, twoIs := memfd(t, watchedSize)
	w.maps(one)
	w.register()
	w.want(oneIs)
	w.Recheck()
	w.want(oneIs)
	require.Empty(t, w.Reports())
	w.maps(two) // without a gap
	w.Recheck()
	w.want(twoIs)
	for _, none := range []func(){func() { w.maps(-1) }, func() { require.NoError(t, unix.MunmapPtr(w.at, watchedSize)) },
		func() { w.maps(one); require.NoError(t, unix.MunmapPtr(w.at, 4096)) }} {
		none()
		for range 3 {
			w.Recheck()
			w.want(0)
		}
		w.maps(one)
		w.Recheck()
		w.want(oneIs)
	}
	said := w.Reports()
	require.Len(t, said, 1) // a minute has one
	require.Contains(t, said[0], "at 1 regions the application has unmapped the file or mapped other memory")
	later := w.table.news(time.Now().Add(time.Minute))
	require.Contains(t, later, "at 2 regions")
	require.Contains(t, later, "at 3 a file is mapped again")
	require.Empty(t, w.table.news(time.Now().Add(time.Hour)))
}

// TestWatchedReleased: a look leaves a region alone that is released meanwhile, and its entry.
func TestWatchedReleased(t *testing.T) {
	w := watching(t)
	one, oneIs := memfd(t, watchedSize)
	two, _ := memfd(t, watchedSize)
	w.maps(one)
	m, err := w.Register(uint64(uintptr(w.at)), watchedSize, 0, option.PeersBoth)
	require.NoError(t, err)
	require.NoError(t, unix.MunmapPtr(w.at, watchedSize))
	w.Recheck()
	w.maps(two)
	w.table.recheck(func() bool { // a look has found a file. Nobody waits for it
		require.NoError(t, m.Close())
		w.maps(one)
		w.register()
		return true
	})
	require.EqualValues(t, uint32(m.Key(provider.Salt{})), uint32(w.mr.Key(provider.Salt{})))
	w.want(oneIs)
	w.Recheck()
	w.want(oneIs)
}

// TestWatchedWithoutDescriptors: a registration while the process has no descriptors left takes the ring until there are some.
func TestWatchedWithoutDescriptors(t *testing.T) {
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprintf("asked=%v", asked), func(t *testing.T) {
			w := watching(t)
			if asked {
				can, _ := w.answers()
				require.True(t, can)
			} else { // as if there had been no descriptor when the rail was opened
				w.table.files.Close()
				w.table.asks = 0
			}
			one, oneIs := memfd(t, watchedSize)
			w.maps(one)
			var was unix.Rlimit
			require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
			m, err := w.Register(uint64(uintptr(w.at)), watchedSize, 0, option.PeersBoth)
			w.Recheck()
			require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
			require.NoError(t, err)
			w.mr = m.(*region)
			w.want(0)
			require.Eventually(t, func() bool { // a file that could not be opened rests
				w.Recheck()
				return w.table.entries[uint32(m.Key(provider.Salt{}))].share.Load() == cma.FileShare
			}, time.Minute, time.Millisecond)
			w.want(oneIs)
			require.NoError(t, m.Close())
			w.register()
			w.want(oneIs)
		})
	}
}
