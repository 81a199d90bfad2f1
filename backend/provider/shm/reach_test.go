package shm

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/test/skip"
)

// asPeer names the environment variable that makes this test binary a peer. The peer writes its rail's proof and
// waits until its input ends.
const asPeer = "GORAIL_TEST_PEER"

func TestMain(m *testing.M) {
	switch role := os.Getenv(asPeer); role {
	case "":
		os.Exit(m.Run())
	case "1":
	default:
		if err := inFolder(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	d, err := New(Options{}).Discover(context.Background(), provider.Filter{})
	if err == nil {
		var r provider.Rail
		if r, err = New(Options{}).Open(d[0]); err == nil {
			_, err = os.Stdout.Write(r.(provider.Host).Proof())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// peerProof starts a peer process and returns its rail's proof.
func peerProof(t *testing.T, attr *syscall.SysProcAttr) []byte {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), asPeer+"=1")
	c.Stderr = os.Stderr
	c.SysProcAttr = attr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	if err := c.Start(); err != nil {
		skip.OrFail(t, fmt.Errorf("cannot start a process with these attributes: %w", err))
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	proof := make([]byte, proofLen)
	_, err = io.ReadFull(out, proof)
	require.NoError(t, err)
	return proof
}

// TestReach: Reach reads the memory of the process that listens at the proof's socket; the error names the obstacle.
func TestReach(t *testing.T) {
	skip.UnlessRoot(t, "needs root to change users and create pid namespaces")
	r := open(t, Options{})
	defer func() { require.NoError(t, r.Close()) }()
	reach := r.(provider.Host).Reach
	direct := func(proof []byte) {
		way, err := reach(proof)
		require.NoError(t, err)
		require.Empty(t, way)
	}
	direct(r.(provider.Host).Proof())
	good := peerProof(t, &syscall.SysProcAttr{})
	direct(good)
	way, err := reach(peerProof(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}))
	require.NoError(t, err)
	require.Equal(t, "ring, mapped where it is a shared memory file (the peer is in another pid namespace)", way)

	wrong := append([]byte{}, good...)
	wrong[proofLen-1] ^= 1
	_, err = reach(wrong)
	require.ErrorIs(t, err, syscall.EBADMSG)
	_, err = reach(good[:proofLen-1])
	require.ErrorIs(t, err, provider.ErrBadAddress)
	_, err = reach(make([]byte, proofLen))
	require.ErrorIs(t, err, provider.ErrBadAddress)
	gone := append([]byte{}, good...)
	gone[2] ^= 0x40 // in the socket's name
	_, err = reach(gone)
	require.ErrorIs(t, err, syscall.ESRCH)

	_, err = reach(peerProof(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}))
	require.ErrorIs(t, err, syscall.EACCES)
	require.ErrorContains(t, err, "another user")
}

// stray connects like any process of the host, sends junk, and expects the listener to close the connection.
func stray(t *testing.T, r provider.Rail) {
	proof := r.(provider.Host).Proof()
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	require.NoError(t, unix.Connect(s, &unix.SockaddrUnix{Name: "@" + string(proof[2:1+proof[0]])}))
	_ = unix.Send(s, []byte("junk"), unix.MSG_NOSIGNAL)
	n, err := unix.Read(s, make([]byte, 1))
	for err == unix.EINTR {
		n, err = unix.Read(s, make([]byte, 1))
	}
	require.True(t, n == 0 && err == nil || err == unix.ECONNRESET, "%d %v", n, err)
	require.NoError(t, unix.Close(s))
}

// TestAcceptWithoutPolling: the listener closes unauthenticated connections though no thread polls, also after a refused
// Close.
func TestAcceptWithoutPolling(t *testing.T) {
	r := open(t, Options{})
	for range 100 {
		stray(t, r)
	}
	e, err := r.OpenEndpoint()
	require.NoError(t, err)
	require.ErrorIs(t, r.Close(), syscall.EBUSY)
	require.NoError(t, e.Close())
	stray(t, r)
	require.NoError(t, r.Close())
}
