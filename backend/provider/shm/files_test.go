package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const fileSize = 1 << 20

// shared maps size bytes of a file.
func mapShared(t *testing.T, fd int, offset int64, flags int) (addr uint64) {
	t.Helper()
	mem, err := unix.MmapPtr(fd, offset, nil, fileSize, unix.PROT_READ|unix.PROT_WRITE, flags)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.MunmapPtr(mem, fileSize)) })
	return uint64(uintptr(mem))
}

func memfdOf(t *testing.T, flags int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("an application's", unix.MFD_CLOEXEC|flags)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.Ftruncate(fd, 4*fileSize))
	return fd
}

func bytesAt(addr uint64, n int) []byte { return unsafe.Slice((*byte)(unsafe.Add(nil, addr)), n) }

// sameMemory requires that the file of f has the bytes at addr, and that both are one memory.
func sameMemory(t *testing.T, f *memoryFile, addr uint64) {
	t.Helper()
	require.NotNil(t, f)
	clear(bytesAt(addr, fileSize-100))
	fd := f.Open()
	require.GreaterOrEqual(t, fd, 0)
	m, err := mapFile(fd, f.Offset, fileSize-100)
	require.NoError(t, unix.Close(fd))
	require.NoError(t, err)
	defer m.Close()
	require.True(t, m.Writable)
	bytesAt(addr, fileSize-100)[4711] = 42
	there := unsafe.Slice((*byte)(m.At), fileSize-100)
	require.EqualValues(t, 42, there[4711])
	there[fileSize-101] = 43
	require.EqualValues(t, 43, bytesAt(addr, fileSize-100)[fileSize-101])
}

// TestFound: memory that is a file in memory is found, by whatever leads to the file.
func TestFound(t *testing.T) {
	shm := func(t *testing.T) string {
		dir, err := os.MkdirTemp("/dev/shm", "gorail-test-") //nolint:usetesting // t.TempDir is on another file system
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		return filepath.Join(dir, "a name with spaces")
	}
	for _, c := range []struct {
		name   string
		closed bool // the application has closed its descriptor
		make   func(t *testing.T) (addr uint64)
	}{
		{"memfd", false, func(t *testing.T) uint64 { return mapShared(t, memfdOf(t, 0), 0, unix.MAP_SHARED) }},
		{"memfd at an offset", false, func(t *testing.T) uint64 { return mapShared(t, memfdOf(t, 0), 2*fileSize, unix.MAP_SHARED) }},
		{"sealed memfd", false, func(t *testing.T) uint64 {
			fd := memfdOf(t, unix.MFD_ALLOW_SEALING)
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
			require.NoError(t, err)
			return mapShared(t, fd, 0, unix.MAP_SHARED)
		}},
		{"shm by its path", true, func(t *testing.T) uint64 {
			f, err := os.Create(shm(t))
			require.NoError(t, err)
			defer f.Close()
			require.NoError(t, f.Truncate(fileSize))
			return mapShared(t, int(f.Fd()), 0, unix.MAP_SHARED)
		}},
		{"deleted shm by a descriptor", false, func(t *testing.T) uint64 {
			f, err := os.Create(shm(t))
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			require.NoError(t, f.Truncate(fileSize))
			require.NoError(t, os.Remove(f.Name()))
			return mapShared(t, int(f.Fd()), 0, unix.MAP_SHARED)
		}},
	} {
		for _, untouched := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, untouched), func(t *testing.T) {
				addr := c.make(t)
				if !untouched {
					clear(bytesAt(addr, fileSize))
				}
				var files fileTable
				defer files.Close()
				f, _ := files.Find(addr+100, fileSize-100, true)
				require.NotNil(t, f)
				sameMemory(t, f, addr+100)
				v, ok := files.self.covering(addr)
				require.True(t, ok)
				fd := v.ofDescriptors(true) // without privileges
				if c.closed {
					require.Len(t, files.open, 1) // which is the only descriptor
					require.NoError(t, unix.Close(fd))
					fd = reopenFile(v.path, v.id, true)
				}
				require.GreaterOrEqual(t, fd, 0)
				require.NoError(t, unix.Close(fd))
				again, _ := files.Find(addr, fileSize, true)
				require.Len(t, files.open, 1)
				f.Close()
				sameMemory(t, again, addr)
				again.Close()
				require.Empty(t, files.open)
			})
		}
	}
}

// TestHugetlbfs: memory of huge pages is found, and mapped in whole huge pages.
func TestHugetlbfs(t *testing.T) {
	const huge = 2 << 20
	fd := memfdHuge(t)
	require.NoError(t, unix.Ftruncate(fd, 2*huge))
	mem, err := unix.MmapPtr(fd, 0, nil, 2*huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Skipf("no huge pages: %v", err)
	}
	defer func() { require.NoError(t, unix.MunmapPtr(mem, 2*huge)) }()
	var files fileTable
	f, _ := files.Find(uint64(uintptr(mem))+huge+4096, fileSize, true)
	sameMemory(t, f, uint64(uintptr(mem))+huge+4096)
	f.Close()
}

func memfdHuge(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB)
	if err != nil {
		t.Skipf("no hugetlbfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// TestNotFound: all other memory is left to the ring.
func TestNotFound(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T) (addr, n uint64)
	}{
		{"private pages", func(t *testing.T) (uint64, uint64) {
			return mapShared(t, -1, 0, unix.MAP_PRIVATE|unix.MAP_ANON), fileSize
		}},
		{"touched private pages", func(t *testing.T) (uint64, uint64) {
			addr := mapShared(t, -1, 0, unix.MAP_PRIVATE|unix.MAP_ANON)
			clear(bytesAt(addr, fileSize))
			require.True(t, new(ownMaps).private(addr))
			return addr, fileSize
		}},
		{"private mapping of a memfd", func(t *testing.T) (uint64, uint64) { return mapShared(t, memfdOf(t, 0), 0, unix.MAP_PRIVATE), fileSize }},
		{"small", func(t *testing.T) (uint64, uint64) {
			return mapShared(t, memfdOf(t, 0), 0, unix.MAP_SHARED), leastMapped - 1
		}},
		{"two mappings", func(t *testing.T) (uint64, uint64) {
			fd := memfdOf(t, 0)
			addr := mapShared(t, fd, 0, unix.MAP_SHARED)
			_, err := unix.MmapPtr(fd, 2*fileSize, unsafe.Add(nil, addr+fileSize/2), fileSize/2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
			require.NoError(t, err)
			return addr, fileSize
		}},
		{"beyond the mapping", func(t *testing.T) (uint64, uint64) { return mapShared(t, memfdOf(t, 0), 0, unix.MAP_SHARED), 1 << 40 }},
		{"nothing", func(t *testing.T) (uint64, uint64) { return 1 << 20, fileSize }},
		{"file of a disk", func(t *testing.T) (uint64, uint64) {
			f, err := os.Create(filepath.Join(disk(t), "file"))
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Close() })
			require.NoError(t, f.Truncate(fileSize))
			return mapShared(t, int(f.Fd()), 0, unix.MAP_SHARED), fileSize
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, n := c.make(t)
			var files fileTable
			f, later := files.Find(addr, n, true)
			require.Nil(t, f)
			require.False(t, later)
			require.Empty(t, files.open)
		})
	}
}

// disk is a folder that is not in memory.
func disk(t *testing.T) string {
	for _, dir := range []string{t.TempDir(), "."} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type != unix.TMPFS_MAGIC {
			at, err := os.MkdirTemp(dir, "gorail-test-") //nolint:usetesting // t.TempDir is on another file system
			if errors.Is(err, unix.EROFS) {
				continue
			}
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(at)) })
			return at
		}
	}
	t.Skip("no folder on a disk")
	return ""
}

// TestReopenedFilesAlone: whatever a path leads to, only the file of the mapping is opened.
func TestReopenedFilesAlone(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	a, b := memfdOf(t, 0), memfdOf(t, 0)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(a, &st))
	for _, path := range []string{fifo, fmt.Sprint("/proc/self/fd/", b), dir, "/dev/null", filepath.Join(dir, "absent")} {
		require.Equal(t, -1, reopenFile(path, fileIDOf(&st), true), path)
	}
	fd := reopenFile(fmt.Sprint("/proc/self/fd/", a), fileIDOf(&st), false)
	require.GreaterOrEqual(t, fd, 0)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.Equal(t, unix.O_RDONLY, flags&unix.O_ACCMODE)
	require.NoError(t, unix.Close(fd))
}

// TestReadOnly: peers that may not write, and mappings that nobody may write through, get the file for reading.
func TestReadOnly(t *testing.T) {
	for _, c := range []struct {
		name  string
		write bool
		prot  int
		seals int
	}{{"right", false, unix.PROT_READ | unix.PROT_WRITE, 0}, {"mapping", true, unix.PROT_READ, 0}, {"seal", true, unix.PROT_READ | unix.PROT_WRITE, unix.F_SEAL_FUTURE_WRITE}} {
		t.Run(c.name, func(t *testing.T) {
			fd := memfdOf(t, unix.MFD_ALLOW_SEALING)
			_, err := unix.Pwrite(fd, make([]byte, fileSize), 0)
			require.NoError(t, err)
			mem, err := unix.MmapPtr(fd, 0, nil, fileSize, c.prot, unix.MAP_SHARED)
			require.NoError(t, err)
			defer func() { require.NoError(t, unix.MunmapPtr(mem, fileSize)) }()
			if c.seals != 0 {
				_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, c.seals)
				require.NoError(t, err)
			}
			var files fileTable
			f, _ := files.Find(uint64(uintptr(mem)), fileSize, c.write)
			require.NotNil(t, f)
			defer f.Close()
			got := f.Open()
			defer unix.Close(got)
			m, err := mapFile(got, f.Offset, fileSize)
			require.NoError(t, err)
			require.False(t, m.Writable)
			m.Close()
			if c.seals == 0 {
				_, err = unix.MmapPtr(got, 0, nil, fileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				require.ErrorIs(t, err, unix.EACCES)
			}
		})
	}
}

// TestMost: the number of files is bounded.
func TestMost(t *testing.T) {
	var files fileTable
	var open []*memoryFile
	for range mostFiles + 1 {
		fd, err := unix.MemfdCreate("one of many", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(fd, fileSize))
		f, _ := files.Find(mapShared(t, fd, 0, unix.MAP_SHARED), fileSize, true)
		require.NoError(t, unix.Close(fd))
		if f == nil {
			break
		}
		open = append(open, f)
	}
	if len(open) == 0 {
		t.Skip("without a descriptor of the application the file is not found here")
	}
	require.Len(t, open, mostFiles)
	for _, f := range open {
		f.Close()
	}
	require.Empty(t, files.open)
}

// TestMapRefuses: a peer's descriptor may be anything.
func TestMapRefuses(t *testing.T) {
	fd := memfdOf(t, 0)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	for _, c := range []struct {
		fd     int
		off, n uint64
	}{{null, 0, fileSize}, {fd, 0, 0}, {fd, 0, 4*fileSize + 1}, {fd, 4 * fileSize, 1}, {fd, 1 << 63, 1 << 63}, {fd, ^uint64(0), fileSize}, {fd, 1, ^uint64(0)}} {
		_, err := mapFile(c.fd, c.off, c.n)
		require.ErrorIs(t, err, unix.EPROTO, "%v", c)
	}
	_, err = mapFile(-1, 0, fileSize)
	require.ErrorIs(t, err, unix.EBADF)
}

// TestHole: memory that its owner has not touched is not mapped yet.
func TestHole(t *testing.T) {
	fd := memfdOf(t, 0)
	addr := mapShared(t, fd, fileSize, unix.MAP_SHARED)
	_, err := mapFile(fd, fileSize, fileSize)
	require.ErrorIs(t, err, errHole)
	clear(bytesAt(addr, fileSize-4096))
	_, err = mapFile(fd, fileSize, fileSize)
	require.ErrorIs(t, err, errHole)
	m, err := mapFile(fd, fileSize+1, fileSize-4097)
	require.NoError(t, err)
	m.Close()
	bytesAt(addr, fileSize)[fileSize-1] = 1
	m, err = mapFile(fd, fileSize, fileSize)
	require.NoError(t, err)
	m.Close()
}

// TestScan: the list of mappings and the kernel's answer about one say the same.
func TestScan(t *testing.T) {
	addr := mapShared(t, memfdOf(t, 0), fileSize, unix.MAP_SHARED)
	maps, err := os.Open("/proc/self/maps")
	require.NoError(t, err)
	defer maps.Close()
	want, ok := scanMaps(maps, addr+4096)
	require.True(t, ok)
	require.Equal(t, addr, want.start)
	require.EqualValues(t, fileSize, want.offset)
	require.True(t, want.shared && want.writable)
	got, ok, errno := queryMaps(int(maps.Fd()), addr+4096, 0, new([unix.PathMax]byte))
	if errno == unix.ENOTTY {
		t.Skip("the kernel does not answer about one mapping")
	}
	require.True(t, ok)
	require.Equal(t, want, got)
	require.Zero(t, errno)
	_, ok, _ = queryMaps(int(maps.Fd()), 4096, 0, new([unix.PathMax]byte))
	require.False(t, ok)
}

// TestOrdinary: an answer holds for ranges inside the mapping that come soon one after the other.
func TestOrdinary(t *testing.T) {
	now := time.Hour
	last := ordinaryMemory{start: 100, end: 200, at: now}
	for i := range uint64(10) {
		now += mapsBurst
		require.True(t, last.holds(100+10*i, 10, now))
	}
	require.False(t, last.holds(99, 1, now))
	require.False(t, last.holds(200, 0, now))
	require.False(t, last.holds(190, 11, now))
	require.False(t, last.holds(190, ^uint64(0), now))
	require.False(t, last.holds(100, 10, now+mapsBurst+1))
	require.False(t, (&ordinaryMemory{}).holds(100, 10, now))
}
