package ipc

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/test/skip"
)

// asPeer names the environment variable that makes this test binary a peer. Its value is the address of the test's
// endpoint, and perhaps a folder.
const asPeer = "GORAIL_TEST_PEER"

// peerMain is that process.
func peerMain(at string) {
	time.AfterFunc(time.Minute, func() { os.Exit(3) })
	if err := peer(strings.Fields(at)); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func addressOfEnd(o *end) string {
	token := o.e.Token()
	return hex.EncodeToString(o.l.Place().Append(nil)) + " " + hex.EncodeToString(token[:])
}

func connectTo(o *end, name, token string) error {
	b, _ := hex.DecodeString(name)
	place, _ := Decode(b)
	t, _ := hex.DecodeString(token)
	return o.e.Connect(&place, Token(t))
}

// peer connects, prints what it knows of the other process, and waits until its input ends.
func peer(to []string) error {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	host := &Host{}
	var err error
	if len(to) > 2 {
		if host.Folder, err = OpenFolder(to[2]); err != nil {
			return err
		}
	}
	l, err := ListenHandshakes(small, host)
	if err != nil {
		return err
	}
	o := &end{l: l, doorbell: -1, pidfd: -1}
	for i, size := range []uintptr{small.Segment, small.Table, small.Shares} {
		if _, o.fds[i], err = Segment(size, i > 0); err != nil {
			return err
		}
	}
	if _, o.fds[3], err = Ring(small.RingUnit); err != nil {
		return err
	}
	if o.e, err = l.Open(o, o.fds[0], o.fds[1], o.fds[2], o.fds[3]); err != nil {
		return err
	}
	fmt.Println(addressOfEnd(o))
	if err := connectTo(o, to[0], to[1]); err != nil {
		fmt.Println("refused", int(Errno(err)))
	} else {
		for !o.complete() {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("assist", o.peer.Assist, o.pid, o.peer.Apart)
	}
	_, _ = fmt.Scanln()
	return nil
}

// startPeer starts a process that is a peer of the endpoint `to`. lines are what it prints after its own address, at. It ends
// when in is closed.
func startPeer(t *testing.T, to string, attr *syscall.SysProcAttr) (c *exec.Cmd, in io.Closer, lines *bufio.Scanner, at []string) {
	c = exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), asPeer+"="+to)
	c.Stderr = os.Stderr
	c.SysProcAttr = attr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	if err := c.Start(); err != nil {
		skip.OrFail(t, fmt.Errorf("cannot start a process with these attributes: %w", err))
	}
	lines = bufio.NewScanner(out)
	require.True(t, lines.Scan())
	return c, in, lines, strings.Fields(lines.Text())
}

// TestWhoIsAssisted: root assists root. A process of another user is refused at once.
func TestWhoIsAssisted(t *testing.T) {
	skip.UnlessRoot(t, "needs root to change users")
	for _, user := range []uint32{0, 54321} {
		a := newEnd(t, nil)
		c, in, lines, at := startPeer(t, addressOfEnd(a), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}})
		err := connectTo(a, at[0], at[1])
		require.True(t, lines.Scan())
		if user != 0 {
			require.Equal(t, unix.EACCES, Errno(err))
			require.Equal(t, fmt.Sprint("refused ", int(unix.EACCES)), lines.Text())
			require.False(t, a.hasPeer())
			require.Equal(t, -1, a.pidfd)
		} else {
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("assist true ", os.Getpid(), " false"), lines.Text())
			eventually(t, a.complete)
			require.True(t, a.peer.Assist)
			require.False(t, a.peer.Self)
			require.Equal(t, c.Process.Pid, a.pid)
			require.False(t, host.ProcessEnded(a.pidfd))
		}
		_ = in.Close()
		require.NoError(t, c.Wait())
		if user == 0 {
			eventually(t, func() bool { return host.ProcessEnded(a.pidfd) })
		}
		a.close()
	}
}

// TestEndedPeer: a peer that has ended before its connection is accepted is known to have ended.
func TestEndedPeer(t *testing.T) {
	sock, err := Listen(16, SameUser) // its backlog holds the connection
	require.NoError(t, err)
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), asPeer+"="+hex.EncodeToString(sock.Place().Append(nil))+" "+strings.Repeat("00", TokenSize))
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	eventually(t, func() bool { // the kernel lists the connection beside the socket
		all, err := os.ReadFile("/proc/net/unix")
		require.NoError(t, err)
		return bytes.Count(all, append([]byte("@"), sock.Place().Abstract[1:]...)) > 1
	})
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
	_ = in.Close()
	a := newEnd(t, nil)
	conn, err := sock.Accept()
	require.NoError(t, err)
	sock.Close()
	require.True(t, a.e.accept(&pendingConn{conn: conn, since: time.Now(), ticks: Ticks()}))
	a.mu.Lock()
	defer a.mu.Unlock()
	require.True(t, a.ended || host.ProcessEnded(a.pidfd))
	require.NotNil(t, a.errno)
}
