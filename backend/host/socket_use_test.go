package host

import (
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// socketAt binds a socket, which ends with the test at the latest.
func socketAt(t *testing.T, kind int) (path string, s int) {
	path = filepath.Join(t.TempDir(), "s")
	s, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(s) })
	require.NoError(t, unix.Bind(s, &unix.SockaddrUnix{Name: path}))
	return path, s
}

func TestSocketUse(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		path, s := socketAt(t, kind)
		require.NoError(t, SocketUse(path, kind), "bound")
		require.NoError(t, unix.Listen(s, 0))
		for range 3 { // its backlog is full then
			require.NoError(t, SocketUse(path, kind))
			_ = tryConnect(path, kind)
		}
		require.NoError(t, unix.Close(s))
		require.Equal(t, unix.ECONNREFUSED, SocketUse(path, kind))
		require.Equal(t, unix.ENOENT, SocketUse(path+"x", kind))
	}
}

// gVisor refuses a datagram socket's connection to a socket that listens (UnidirectionalConnect of its connectionedEndpoint), as here a filter of
// system calls does.
func TestSocketUseDatagramsRefused(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		path, s := socketAt(t, kind)
		require.NoError(t, unix.Listen(s, 0))
		var use, full, ended error
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // without an unlock: the filter ends with the thread
			if use = refuseDatagrams(); use != nil {
				return
			}
			use = SocketUse(path, kind)
			_ = tryConnect(path, kind)
			full = SocketUse(path, kind)
			_ = unix.Close(s)
			ended = SocketUse(path, kind)
		}()
		<-done
		require.NoError(t, use)
		require.NoError(t, full)
		require.Equal(t, unix.ECONNREFUSED, ended)
	}
}

// refuseDatagrams makes socket(2) fail with ECONNREFUSED for datagram sockets of this thread. Implements seccomp(2).
func refuseDatagrams() error {
	const number, second = 0, 16 + 8 // in struct seccomp_data: the call, and its second argument on a little-endian machine
	jump := func(unless uint8, k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: unless}
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	filter := []unix.SockFilter{
		load(number), jump(4, unix.SYS_SOCKET),
		load(second), {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf}, jump(1, unix.SOCK_DGRAM),
		{Code: unix.BPF_RET, K: 0x00050000 | uint32(unix.ECONNREFUSED)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET, K: 0x7fff0000},                             // SECCOMP_RET_ALLOW
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, 2 /* SECCOMP_MODE_FILTER */, uintptr(unsafe.Pointer(&program)), 0, 0)
}
