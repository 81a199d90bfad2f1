package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/ipc"
	"gorail/test/skip"
)

// shared is a folder as pods mount it.
func shared(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

func names(t *testing.T, dir string) (names []string) {
	all, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for from := time.Now(); !is(); time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(from), 10*time.Second)
	}
}

// abandoned leaves a socket in the folder on which nothing listens.
func abandoned(t *testing.T, dir string, name ipc.File) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(sock, &unix.SockaddrUnix{Name: dir + "/" + name.Name()}))
	require.NoError(t, unix.Close(sock))
}

// TestRailsFolder: a rail has one socket in the folder, and leaves nothing there. An unusable folder is no obstacle, and is
// noted.
func TestRailsFolder(t *testing.T) {
	dir := shared(t)
	r := open(t, Options{LocalDir: dir})
	require.Len(t, names(t, dir), 1)
	require.Empty(t, r.Notes())
	require.NoError(t, r.Close())
	require.Empty(t, names(t, dir))

	r = open(t, Options{LocalDir: dir + "/missing"})
	require.Len(t, r.Notes(), 1)
	require.Contains(t, r.Notes()[0], "make it: mkdir")
	require.NoError(t, r.Close())
}

// inFolder is a peer in other namespaces, perhaps. It prints the proof and the address of its endpoint, connects to the
// address that it reads, and waits.
func inFolder(dir string) error {
	d, err := New(Options{}).Discover(context.Background(), provider.Filter{})
	if err != nil {
		return err
	}
	r, err := New(Options{LocalDir: dir}).Open(d[0])
	if err != nil {
		return err
	}
	e, err := r.OpenEndpoint()
	if err != nil {
		return err
	}
	fmt.Printf("%x %x\n", r.(provider.Host).Proof(), e.Addr())
	var to string
	if _, err := fmt.Scanln(&to); err != nil {
		return err
	}
	at, err := hex.DecodeString(to)
	if err != nil {
		return err
	}
	if err := e.Connect(at); err != nil {
		return err
	}
	fmt.Println("connects")
	_, _ = fmt.Scanln(&to)
	return nil
}

// TestKilledPeersSocket: a peer in other namespaces is reached over the folder, and dies. The end of our endpoint removes its
// socket. Without a folder of our own the error names the remedy.
func TestKilledPeersSocket(t *testing.T) {
	skip.UnlessRoot(t, "needs root to make namespaces")
	dir := shared(t)
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), asPeer+"="+dir)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	if err := c.Start(); err != nil {
		skip.OrFail(t, fmt.Errorf("cannot start a process with these attributes: %w", err))
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	proof, addr, _ := strings.Cut(lines.Text(), " ")

	other := open(t, Options{LocalDir: shared(t)})
	_, err = other.(provider.Host).Reach(unhex(t, proof))
	require.ErrorContains(t, err, "do both mount the same folder of the host?")
	require.NoError(t, other.Close())
	none := open(t, Options{LocalDir: dir + "/none"})
	_, err = none.(provider.Host).Reach(unhex(t, proof))
	require.ErrorContains(t, err, "we have no socket in a folder")
	require.NoError(t, none.Close())
	off := open(t, Options{})
	_, err = off.(provider.Host).Reach(unhex(t, proof))
	require.ErrorContains(t, err, "option local_dir")
	require.NoError(t, off.Close())

	r := open(t, Options{LocalDir: dir})
	way, err := r.(provider.Host).Reach(unhex(t, proof))
	require.NoError(t, err)
	require.Equal(t, "ring, mapped where it is a shared memory file (the peer is in another pid namespace)", way)
	require.Len(t, names(t, dir), 2)
	e, err := r.OpenEndpoint()
	require.NoError(t, err)
	require.NoError(t, e.Connect(unhex(t, addr)))
	_, err = fmt.Fprintf(in, "%x\n", e.Addr())
	require.NoError(t, err)
	require.True(t, lines.Scan())
	eventually(t, func() bool { return e.(*endpoint).core.Pidfd() >= 0 })
	require.NoError(t, c.Process.Kill())
	require.NoError(t, e.Close())
	eventually(t, func() bool { return len(names(t, dir)) == 1 })
	require.NoError(t, r.Close())
	require.Empty(t, names(t, dir))
}

func unhex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// TestStale: the socket of a peer that dies later than its endpoint is removed; that of a peer that lives stays.
func TestStale(t *testing.T) {
	dir := shared(t)
	folder, err := ipc.OpenFolder(dir)
	require.NoError(t, err)
	defer folder.Close()
	var s stale
	c := exec.Command("sleep", "60")
	require.NoError(t, c.Start())
	pidfd, err := unix.PidfdOpen(c.Process.Pid, 0)
	require.NoError(t, err)
	dying, living := ipc.File{1}, ipc.File{2}
	abandoned(t, dir, dying)
	l, err := folder.Listen(4, ipc.SameUser)
	require.NoError(t, err)
	defer l.Close()
	s.watch(folder, dying, pidfd)
	s.watch(folder, l.Place().File, -1)
	s.watch(folder, living, pidfd)
	time.Sleep(2 * staleLook)
	require.Len(t, names(t, dir), 2)
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
	eventually(t, func() bool { return len(names(t, dir)) == 1 })
	require.NoError(t, unix.Close(pidfd))
	s.close()
	require.Empty(t, s.files)
	require.Len(t, names(t, dir), 1)
}

// TestStaleMost: more dying peers than the bound cost nothing more. The end of the rail looks once more.
func TestStaleMost(t *testing.T) {
	dir := shared(t)
	folder, err := ipc.OpenFolder(dir)
	require.NoError(t, err)
	defer folder.Close()
	own, err := unix.PidfdOpen(os.Getpid(), 0)
	require.NoError(t, err)
	defer unix.Close(own)
	var s stale
	for i := range 3 * staleMost {
		s.watch(folder, ipc.File{byte(i), 1}, own)
	}
	s.mu.Lock()
	require.Len(t, s.files, staleMost)
	s.mu.Unlock()
	s.close()
	s.watch(folder, ipc.File{9}, own)
	require.Empty(t, s.files)
}
