package ipc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func address0(b *[TokenSize]byte) uint64 { return uint64(uintptr(unsafe.Pointer(b))) }

func pair(t *testing.T) (dialer, accepted *Conn) {
	l := listenHere(t)
	d, err := Dial(l.Place(), nil)
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d, accept(t, l)
}

// TestConn: messages, descriptors, a deadline, and a closed connection.
func TestConn(t *testing.T) {
	a, b := pair(t)
	if b.refuses {
		require.ErrorIs(t, a.Send([]byte("hello"), 0, 1, 2), unix.EPERM)
		require.ErrorIs(t, b.Send([]byte("hello"), 0, 1, 2), unix.EPERM)
	}
	require.NoError(t, b.TakeRights(true))
	require.NoError(t, a.Send([]byte("hello"), 0, 1, 2))
	var buf [16]byte
	n, fds, cut, err := b.RecvRights(buf[:], 3)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf[:n]))
	require.Len(t, fds, 3)
	require.False(t, cut)
	for _, fd := range fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
	CloseAll(fds)
	_, err = b.TryRecv(buf[:])
	require.ErrorIs(t, err, unix.EAGAIN)
	b.Deadline(time.Now().Add(10 * time.Millisecond))
	_, err = b.Recv(buf[:])
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	b.Deadline(time.Time{})
	sock, err := a.Release()
	require.NoError(t, err)
	require.NoError(t, unix.Send(sock, []byte("x"), 0))
	n, err = b.Recv(buf[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, unix.Close(sock))
	n, err = b.Recv(buf[:])
	require.NoError(t, err)
	require.Zero(t, n)
	require.ErrorIs(t, b.Send([]byte("x")), unix.EPIPE)
}

// TestSendNeverWaits: Send returns EAGAIN when the peer reads nothing.
func TestSendNeverWaits(t *testing.T) {
	a, _ := pair(t)
	var err error
	for range 100000 {
		if err = a.Send(make([]byte, 100)); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, unix.EAGAIN)
}

// notDumped reports that the mapping at an address is not in core dumps ("dd" in proc_pid_smaps(5)).
func notDumped(t *testing.T, at unsafe.Pointer) bool {
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, mapping, found := strings.Cut("\n"+string(b), fmt.Sprintf("\n%x-", uintptr(at)))
	require.True(t, found)
	_, flags, _ := strings.Cut(mapping, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	return slices.Contains(strings.Fields(flags), "dd")
}

// neverExecuted reports that a segment cannot be executed, or that the kernel does not know how (before Linux 6.3).
func neverExecuted(t *testing.T, fd int) bool {
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	probe, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if err != nil {
		return true
	}
	return unix.Close(probe) == nil && st.Mode&0o111 == 0
}

// TestSegment: core dumps do not have it, and nobody executes it; peers can map a segment, and only map a writable segment for writing. Map refuses memory that could
// shrink, and memory of huge pages.
func TestSegment(t *testing.T) {
	const size = 2 << 20
	for _, readonly := range []bool{false, true} {
		mem, fd, err := Segment(size, readonly)
		require.NoError(t, err)
		defer unix.Close(fd)
		require.True(t, neverExecuted(t, fd))
		*(*byte)(mem) = 7
		theirs, err := Map(fd, size, readonly)
		require.NoError(t, err)
		require.True(t, notDumped(t, mem) && notDumped(t, theirs))
		require.Equal(t, byte(7), *(*byte)(theirs))
		_, err = Map(fd, size-4096, readonly)
		require.ErrorIs(t, err, unix.EPROTO)
		_, err = unix.MmapPtr(fd, 0, nil, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.Equal(t, readonly, err != nil)
		require.Error(t, unix.Ftruncate(fd, 4096))
		require.NoError(t, unix.MunmapPtr(mem, size))
		require.NoError(t, unix.MunmapPtr(theirs, size))
	}
	for name, flags := range map[string]int{"loose": 0, "huge": unix.MFD_HUGETLB} {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
		if err != nil || unix.Ftruncate(fd, size) != nil {
			require.NotZero(t, flags) // no huge pages, or larger ones
			continue
		}
		if flags != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals)
			require.NoError(t, err)
		}
		_, err = Map(fd, size, true)
		require.ErrorIs(t, err, unix.EPROTO)
		require.NoError(t, unix.Close(fd))
	}
}

// anybody is Accept without the check of the user.
func (l *Listener) anybody() (*Conn, error) {
	sock, err := l.accept()
	if err != nil {
		return nil, err
	}
	return newConn(sock, l.refuses)
}
