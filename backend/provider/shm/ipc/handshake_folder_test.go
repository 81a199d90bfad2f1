package ipc

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/test/skip"
)

// inFolder makes a listener with a socket in a folder. Its place is as processes of another network namespace see it.
func inFolder(t *testing.T, users Users) *HandshakeListener {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	folder, err := OpenFolder(dir)
	require.NoError(t, err)
	t.Cleanup(folder.Close)
	l, err := ListenHandshakes(small, &Host{Folder: folder, Users: users})
	require.NoError(t, err)
	require.NoError(t, l.NotInside())
	l.Place().NetNS++
	t.Cleanup(l.Close)
	return l
}

// TestHandshakeInFolder: endpoints connect over the folder. Nothing is left there.
func TestHandshakeInFolder(t *testing.T) {
	l := inFolder(t, SameUser)
	a, b := newEnd(t, l), newEnd(t, l)
	join(t, a, b)
	require.True(t, a.peer.Self && b.peer.Self)
	require.False(t, a.peer.Apart || b.peer.Apart)
	left := func() int {
		all, err := os.ReadDir(l.host.Folder.Path())
		require.NoError(t, err)
		return len(all)
	}
	require.Equal(t, 1, left())
	a.close()
	b.close()
	l.socks.Close()
	require.Zero(t, left())
}

// TestFolderUnauthenticated: in the folder, too, connections without the token are few, short, and reach no endpoint. A
// peer connects among them. Any user's processes may do that.
func TestFolderUnauthenticated(t *testing.T) {
	l := inFolder(t, AnyUser)
	a, b := newEnd(t, l), newEnd(t, l)
	in := func() *Conn {
		for {
			c, err := Dial(l.Place(), l.host.Folder)
			if err == nil {
				return c
			}
			require.ErrorIs(t, err, unix.EAGAIN)
		}
	}
	var silent []*Conn
	for range maxPending {
		silent = append(silent, in(), dialAbstract(t, l))
	}
	eventually(t, func() bool { return l.Evicted() >= maxPending })
	require.LessOrEqual(t, a.pending(), maxPending)
	for i := range 100 {
		c := in()
		bad := helloFor(a)
		bad[8+i%TokenSize] ^= byte(1 + i)
		_ = c.Send(bad)
		hungUp(t, c)
		c.Close()
	}
	require.False(t, a.hasPeer() || b.hasPeer())
	join(t, a, b)
	for _, c := range silent {
		hungUp(t, c)
		c.Close()
	}
}

// dialAbstract connects by the abstract name of a listener of inFolder.
func dialAbstract(t *testing.T, l *HandshakeListener) *Conn {
	near := *l.Place()
	near.NetNS--
	c, err := Dial(&near, nil)
	require.NoError(t, err)
	return c
}

// TestBehindWalls: endpoints of processes in other namespaces connect over the folder. Neither accesses the other's memory,
// and each learns of the other's end.
func TestBehindWalls(t *testing.T) {
	skip.UnlessRoot(t, "needs root to make namespaces")
	for name, walls := range map[string]uintptr{
		"pods":     syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		"networks": syscall.CLONE_NEWNET,
		"pids":     syscall.CLONE_NEWPID,
		"none":     0,
	} {
		t.Run(name, func(t *testing.T) {
			l := inFolder(t, SameUser)
			l.Place().NetNS--
			a := newEnd(t, l)
			c, in, lines, at := startPeer(t, addressOfEnd(a)+" "+l.host.Folder.Path(), &syscall.SysProcAttr{Cloneflags: walls})
			require.NoError(t, connectTo(a, at[0], at[1]))
			require.True(t, lines.Scan())
			pid := os.Getpid() // as the peer sees it
			if walls&syscall.CLONE_NEWPID != 0 {
				pid = 0
			}
			require.Equal(t, fmt.Sprintf("assist %v %d %v", walls == 0, pid, walls != 0), lines.Text())
			eventually(t, a.complete)
			require.Equal(t, walls != 0, a.peer.Apart)
			require.Equal(t, walls == 0, a.peer.Assist)
			require.False(t, a.peer.Self)
			require.False(t, host.ProcessEnded(a.pidfd))
			require.NoError(t, c.Process.Kill())
			_ = c.Wait()
			_ = in.Close()
			eventually(t, func() bool { return host.ProcessEnded(a.pidfd) })
			require.True(t, l.host.Folder.RemoveDead(placeOf(t, at[0]).File))
		})
	}
}

func placeOf(t *testing.T, at string) Place {
	p, ok := Decode(unhexOf(t, at))
	require.True(t, ok)
	return p
}
