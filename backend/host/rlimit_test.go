package host

import (
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The affinity mask of the calling thread counts, not that of the process, and so does what Go took when it started, also after CapProcs.
func TestProcessors(t *testing.T) {
	defer func(old, procs int) { quota = old; runtime.GOMAXPROCS(procs) }(quota, runtime.GOMAXPROCS(0))
	quota = 64
	CapProcs()
	require.Equal(t, mostProcs, runtime.GOMAXPROCS(0))
	require.Equal(t, 64, Quota())
	var all unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &all))
	require.Equal(t, min(all.Count(), 64), Processors())

	quota = 1
	require.Equal(t, 1, Processors())
	quota = 64

	one := make(chan int)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		var first unix.CPUSet
		for cpu := range 1024 {
			if all.IsSet(cpu) {
				first.Set(cpu)
				break
			}
		}
		if unix.SchedSetaffinity(0, &first) != nil {
			close(one)
			return
		}
		one <- Processors()
	}()
	require.Equal(t, 1, <-one)
}

// TestPlaces: connections that have proved nothing get few places while fewer than a quarter of the descriptors are free, and for a second after.
func TestPlaces(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) }()
	set := func(most uint64) {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: before.Max}))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	require.Equal(t, 256, Places(here, 256), "no descriptor")

	fd, err := unix.FcntlInt(uintptr(fdOf(t, c)), unix.F_DUPFD_CLOEXEC, 150)
	require.NoError(t, err)
	high := numbered{c, os.NewFile(uintptr(fd), "high")}
	defer high.file.Close()
	set(1 << 10)
	require.Equal(t, 256, Places(c, 256))
	last := uint64(fdOf(t, high))
	set(last + 1)
	require.Equal(t, max(4, int(last+1)/16), Places(high, 256))
	require.Equal(t, max(4, int(last+1)/16), Places(c, 256), "a low number that has become free")
	require.Equal(t, 2, Places(c, 2))
	scarce.Store(time.Now().UnixNano())
	require.Equal(t, 256, Places(c, 256))
}

// numbered is a connection with another descriptor's number.
type numbered struct {
	net.Conn
	file *os.File
}

func (n numbered) SyscallConn() (syscall.RawConn, error) { return n.file.SyscallConn() }

func fdOf(t *testing.T, c net.Conn) (fd int) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(n uintptr) { fd = int(n) }))
	return fd
}
