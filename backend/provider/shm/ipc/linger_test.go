package ipc

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lingering opens a TCP socket whose last close takes a minute: it lingers, and its data cannot leave.
func lingering() (fd int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	to := unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, &to); err != nil {
		return -1, err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}); err != nil {
		return -1, err
	}
	for err == nil {
		_, err = unix.SendmsgN(fd, make([]byte, 1<<16), nil, nil, unix.MSG_DONTWAIT)
	}
	return fd, nil
}

// linger connects a number of times, each time with a message that holds a lingering socket's last descriptor. It
// prints the last error.
func linger(args []string) error {
	var sent error
	for range 8 {
		fd, err := lingering()
		if err != nil {
			return err
		}
		c, err := Dial(place(args[0]), nil)
		if err != nil {
			return err
		}
		if sent = c.Send([]byte("x"), fd); sent == nil {
			_ = unix.Close(fd) // the listener has the last one
		}
	}
	fmt.Println("sent", sent == nil)
	readLine()
	return nil
}

// TestLingeringDescriptors: a process of another user sends descriptors whose close takes a minute. A process of our
// user is accepted behind it, and the listener closes at once.
func TestLingeringDescriptors(t *testing.T) {
	bothLookups(t, func(t *testing.T) {
		l := listenHere(t)
		p := start(t, "linger "+at(l), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}})
		require.Equal(t, fmt.Sprint("sent ", !l.refuses), p.line())
		from := time.Now()
		c, err := Dial(l.Place(), nil)
		require.NoError(t, err)
		defer c.Close()
		accept, err := l.Accept()
		require.NoError(t, err)
		accept.Close()
		l.Close()
		require.Less(t, time.Since(from), 30*time.Second)
	})
}
