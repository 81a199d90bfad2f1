package ipc

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/test/nofile"
	"gorail/test/skip"
)

// TestIdleCallers: the server answers a caller at once, in spite of idle connections. Close does not wait for those.
func TestIdleCallers(t *testing.T) {
	s := server(t, source)
	from := time.Now()
	var idle []*Conn
	for range 200 {
		for {
			c, err := Dial(s.Place(), nil)
			if err == nil {
				idle = append(idle, c)
				break
			}
			require.ErrorIs(t, err, unix.EAGAIN)
		}
	}
	require.NoError(t, fetchAll(t, s.owner(), 200))
	s.Close()
	require.Less(t, time.Since(from), idleTimeout/2)
	for _, c := range idle {
		c.Close()
	}
}

// asCaller names the environment variable that makes this test binary a process of another user. It knows name and
// token.
const asCaller = "GORAIL_TEST_CALLER"

// asCallerOfFile makes that caller ask for a file.
const asCallerOfFile = "GORAIL_TEST_CALLER_OF_FILE"

// callerMain is that caller.
func callerMain(name string) {
	b, _ := hex.DecodeString(name)
	at, _ := Decode(b)
	c, err := Dial(&at, nil)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Getenv(asCallerOfFile) != "" {
		_ = c.TakeRights(true)
		w := descriptorRequest{token: token, key: 7, what: askFile, n: 1}
		_ = c.Send(w.encode())
		var b [replySize]byte
		c.Deadline(time.Now().Add(limit))
		n, fds, _, err := c.RecvRights(b[:], DescriptorsPerMessage)
		fmt.Println(n, len(fds), err)
		os.Exit(0)
	}
	fmt.Println(askPiece(c, token, 7))
	os.Exit(0)
}

// TestFilesOfOurUserAlone: a process of another user gets no file, where other users may be peers.
func TestFilesOfOurUserAlone(t *testing.T) {
	skip.UnlessRoot(t, "needs root to change users")
	s, err := ServeDescriptors(&Host{Users: AnyUser}, token, source)
	require.NoError(t, err)
	defer s.Close()
	s.Files(func(uint64) (fd int, offset uint64, ok bool) {
		fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 0)
		return fd, 0, err == nil
	})
	for uid, want := range map[uint32]string{0: "1 <nil>", 54321: "0 <nil>"} {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), asCaller+"="+hex.EncodeToString(s.Place().Append(nil)), asCallerOfFile+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := c.Output()
		skip.OrFail(t, err)
		require.Equal(t, fmt.Sprint(replySize, " ", want), strings.TrimSpace(string(out)))
	}
}

// TestCallers: a process of another user gets no descriptor, in spite of the right token. An authenticated caller
// keeps its connection while many unauthenticated ones connect.
func TestCallers(t *testing.T) {
	s := server(t, source)
	if os.Geteuid() == 0 {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), asCaller+"="+hex.EncodeToString(s.Place().Append(nil)))
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		if c.Start() == nil {
			line, _ := bufio.NewReader(out).ReadString('\n')
			require.Equal(t, "0", strings.TrimSpace(line))
			require.NoError(t, c.Wait())
		}
	}
	mine := callServer(t, s.Place())
	require.Equal(t, replySize, askPiece(mine, token, 7))
	for range 200 {
		if c, err := Dial(s.Place(), nil); err == nil {
			defer c.Close()
		}
	}
	for from := time.Now(); ; time.Sleep(time.Millisecond) { // queued behind those connections
		require.Less(t, time.Since(from), limit)
		c, err := Dial(s.Place(), nil)
		if err != nil {
			continue
		}
		n := askPiece(c, token, 7)
		c.Close()
		if n != 0 {
			break
		}
	}
	require.Equal(t, replySize, askPiece(mine, token, 7))
	require.Positive(t, s.Evicted())
}

// TestManyRequests: three times maxCallers send requests at once, while the source is blocked. Each gets a reply.
func TestManyRequests(t *testing.T) {
	const callers = 3 * maxCallers
	begun, goOn := make(chan struct{}, callers), make(chan struct{})
	s := server(t, held(begun, goOn))
	answered := make(chan error, callers)
	for range callers {
		go func() {
			answered <- FetchPieces(context.Background(), s.owner(), 7, 1, func(fds []int32, _ []uint64) error {
				for _, fd := range fds {
					_ = unix.Close(int(fd))
				}
				return nil
			})
		}()
	}
	<-begun
	time.AfterFunc(2*minIdle, func() { close(goOn) }) // by then the others have connected
	for range callers {
		require.NoError(t, <-answered)
	}
}

// TestServerInFolder: a caller in another network namespace gets the descriptors over the folder. The caller need not see the owner's
// process number; a wrong one is refused.
func TestServerInFolder(t *testing.T) {
	dir := t.TempDir()
	folder, err := OpenFolder(dir)
	require.NoError(t, err)
	defer folder.Close()
	host := &Host{Folder: folder}
	s, err := ServeDescriptors(host, token, source)
	require.NoError(t, err)
	require.NoError(t, s.NotInside())
	far := *s.Place()
	far.NetNS++
	for pid, why := range map[int]error{os.Getpid(): nil, 0: nil, 1: gpu.BadShare} {
		err := fetchAll(t, MemoryOwner{Place: &far, Token: token, Host: host, Pid: pid}, 3)
		if why == nil {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, why)
		}
	}
	require.ErrorIs(t, fetchAll(t, MemoryOwner{Token: token, Host: host}, 3), gpu.BadShare)
	require.ErrorIs(t, fetchAll(t, MemoryOwner{Place: &far, Token: token, Host: noFolder}, 3), gpu.Silent)
	s.Close()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestUnread: a caller whose request waits unread is not evicted as silent, for a while.
func TestUnread(t *testing.T) {
	sock, err := Listen(8, SameUser)
	require.NoError(t, err)
	defer sock.Close()
	theirs := callServer(t, sock.Place())
	conn, err := sock.Accept()
	require.NoError(t, err)
	now := time.Now()
	c := &caller{conn: conn, lastHeard: now}
	s := DescriptorServer{callers: []*caller{c}}
	require.False(t, s.evict(now.Add(minIdle-1)))
	w := descriptorRequest{token: token, key: 7, n: 1}
	require.NoError(t, theirs.Send(w.encode()))
	require.False(t, s.evict(now.Add(minUnread-1)))
	_, err = conn.Recv(make([]byte, requestSize))
	require.NoError(t, err)
	require.True(t, s.evict(now.Add(minIdle)), "nothing is unread")

	theirs = callServer(t, sock.Place())
	conn, err = sock.Accept()
	require.NoError(t, err)
	require.NoError(t, theirs.Send(w.encode()))
	s.callers = []*caller{{conn: conn, lastHeard: now}}
	require.True(t, s.evict(now.Add(minUnread)), "no caller stays for ever")
	require.Empty(t, s.callers)
}

// hangUps serves connections until the test ends: the first `times` are closed without a reply, read or unread by turns.
func hangUps(t *testing.T, times int) (of MemoryOwner, connected *atomic.Int32) {
	sock, err := Listen(8, SameUser)
	require.NoError(t, err)
	connected = new(atomic.Int32)
	done := make(chan struct{})
	t.Cleanup(func() { sock.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := sock.Accept()
			if err != nil {
				return
			}
			i := int(connected.Add(1))
			var b [requestSize]byte
			if i > times || i%2 == 0 {
				conn.Deadline(time.Now().Add(limit))
				_, err = conn.Recv(b[:])
			}
			if i > times && err == nil {
				g := descriptorReply{n: 1, size: []uint64{0}}
				_ = conn.Send(g.encode(), 1)
			}
			conn.Close()
		}
	}()
	return MemoryOwner{Place: sock.Place(), Token: token, Host: noFolder, Pid: os.Getpid()}, connected
}

// TestHangUps: Fetch connects again to an owner that closes connections, a limited number of times.
func TestHangUps(t *testing.T) {
	of, connected := hangUps(t, maxHangUps)
	require.NoError(t, fetchAll(t, of, 1))
	require.EqualValues(t, maxHangUps+1, connected.Load())
	of, connected = hangUps(t, maxHangUps+1)
	require.Equal(t, gpu.Silent, fetchAll(t, of, 1))
	require.EqualValues(t, maxHangUps+1, connected.Load())
}

// TestSlowReader: a caller that reads no replies is dropped and does not delay others.
func TestSlowReader(t *testing.T) {
	var asked atomic.Int32
	s := server(t, func(key uint64, first, n int) ([]int, []uint64, int) {
		asked.Add(1)
		return source(key, first, n)
	})
	slow := callServer(t, s.Place())
	require.NoError(t, slow.TakeRights(true))
	w := descriptorRequest{token: token, key: 7, n: DescriptorsPerMessage}
	for range 10000 {
		if err := slow.Send(w.encode()); err != nil && err != unix.EAGAIN {
			break
		}
	}
	require.NoError(t, fetchAll(t, s.owner(), 3))
	require.Less(t, asked.Load(), int32(10000))
}

// TestServerWithoutDescriptors: without free descriptors the server pauses between its tries to accept. It continues when
// descriptors are free.
func TestServerWithoutDescriptors(t *testing.T) {
	naps := make(chan chan time.Time, 64)
	s := napping(t, source, func(time.Duration) <-chan time.Time {
		wake := make(chan time.Time)
		naps <- wake
		return wake
	})
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(c)
	restore := nofile.None(t)
	connected := unix.Connect(c, &unix.SockaddrUnix{Name: "@" + string(s.Place().Abstract[1:])})
	var nap chan time.Time
	for range 3 {
		if nap != nil {
			close(nap)
		}
		select {
		case nap = <-naps:
		case <-time.After(limit):
			nap = nil
		}
	}
	restore()
	require.NoError(t, connected)
	require.NotNil(t, nap, "accept spins, or has stopped trying")
	require.Empty(t, naps, "one pause per try")
	close(nap)
	require.NoError(t, fetchAll(t, s.owner(), 3))
}
