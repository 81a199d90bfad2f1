package ipc

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/internal/procstat"
)

const limit = 10 * time.Second

var noFolder = &Host{}

var token = Token{1, 2, 3}

// source sends duplicates of the standard output.
func source(key uint64, first, n int) (fds []int, sizes []uint64, why int) {
	if key != 7 {
		return nil, nil, int(gpu.Changed)
	}
	for i := range n {
		fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			CloseAll(fds)
			return nil, nil, int(gpu.NoFDs)
		}
		fds, sizes = append(fds, fd), append(sizes, uint64(first+i))
	}
	return fds, sizes, 0
}

func server(t *testing.T, from PieceSource) *DescriptorServer { return napping(t, from, time.After) }

// napping is a server that pauses as after says.
func napping(t *testing.T, from PieceSource, after func(time.Duration) <-chan time.Time) *DescriptorServer {
	s, err := serveDescriptors(noFolder, token, from, after)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if !closed {
			s.Close()
		}
	})
	return s
}

func (s *DescriptorServer) owner() MemoryOwner {
	return MemoryOwner{Place: s.Place(), Token: token, Host: noFolder, Pid: os.Getpid()}
}

// take returns an add function that counts the descriptors and closes them.
func take(t *testing.T, got *int) func(fds []int32, sizes []uint64) error {
	return func(fds []int32, sizes []uint64) error {
		for i, fd := range fds {
			require.Equal(t, uint64(*got+i), sizes[i])
			require.NoError(t, unix.Close(int(fd)))
		}
		*got += len(fds)
		return nil
	}
}

func fetchAll(t *testing.T, of MemoryOwner, total int) error {
	got := 0
	err := FetchPieces(context.Background(), of, 7, total, take(t, &got))
	if err == nil {
		require.Equal(t, total, got)
	}
	return err
}

func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

func callServer(t *testing.T, at *Place) *Conn {
	c, err := Dial(at, nil)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// askPiece requests one piece and returns the length of the reply; 0: the server closed the connection.
func askPiece(c *Conn, token Token, key uint64) int {
	w := descriptorRequest{token: token, key: key, n: 1}
	if c.TakeRights(true) != nil || c.Send(w.encode()) != nil {
		return 0
	}
	c.Deadline(time.Now().Add(limit))
	n, _ := c.Recv(make([]byte, 1024))
	return n
}

// TestFetch: pieces come in several messages, or a reason comes. No descriptor and no goroutine is left.
func TestFetch(t *testing.T) {
	before, routines := descriptors(t), procstat.Goroutines()
	s := server(t, source)
	require.NoError(t, fetchAll(t, s.owner(), 200))
	require.NoError(t, fetchAll(t, s.owner(), DescriptorsPerMessage))
	require.Equal(t, gpu.Changed, FetchPieces(context.Background(), s.owner(), 8, 1, nil))
	failed := errors.New("failed")
	require.ErrorIs(t, FetchPieces(context.Background(), s.owner(), 7, 3, func(fds []int32, _ []uint64) error {
		for _, fd := range fds {
			_ = unix.Close(int(fd))
		}
		return failed
	}), failed)
	other := s.owner()
	other.Pid++
	require.Equal(t, gpu.BadShare, fetchAll(t, other, 1))
	other = s.owner()
	other.Token[0]++
	require.Equal(t, gpu.Silent, fetchAll(t, other, 1))
	s.Close()
	require.Equal(t, gpu.Silent, fetchAll(t, s.owner(), 1))
	for from := time.Now(); procstat.Goroutines() > routines || descriptors(t) > before; time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(from), limit)
	}
}

// TestSilentOwner: Fetch waits for an owner that never answers, until ctx ends or idleTimeout has passed.
func TestSilentOwner(t *testing.T) {
	sock, err := Listen(8, SameUser)
	require.NoError(t, err)
	defer sock.Close()
	of := MemoryOwner{Place: sock.Place(), Token: token, Host: noFolder, Pid: os.Getpid()}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	from := time.Now()
	require.Equal(t, gpu.Silent, FetchPieces(ctx, of, 7, 1, nil))
	require.Less(t, time.Since(from), idleTimeout/2)
	require.Equal(t, gpu.Silent, FetchPieces(context.Background(), of, 7, 1, nil))
	require.Greater(t, time.Since(from), idleTimeout)
}

// TestBadAnswers: Fetch closes the descriptors of an invalid reply.
func TestBadAnswers(t *testing.T) {
	good := descriptorReply{n: 2, size: []uint64{1, 2}}
	beyond := descriptorReply{why: gpu.WhyCount}
	for name, c := range map[string]struct {
		what   []byte
		rights int
		want   gpu.Why
	}{
		"short":           {[]byte("x"), 3, gpu.BadShare},
		"long":            {append(good.encode(), 0), 2, gpu.BadShare},
		"too few":         {good.encode(), 1, gpu.BadShare},
		"too many":        {good.encode(), 3, gpu.BadShare},
		"none":            {good.encode(), 0, gpu.BadShare},
		"no such reason":  {beyond.encode(), 0, gpu.BadShare},
		"more than taken": {good.encode(), 100, gpu.NoFDs},
	} {
		t.Run(name, func(t *testing.T) {
			sock, err := Listen(8, SameUser)
			require.NoError(t, err)
			defer sock.Close()
			before := descriptors(t)
			done := make(chan error, 1)
			go func() {
				done <- FetchPieces(context.Background(), MemoryOwner{Place: sock.Place(), Token: token, Host: noFolder, Pid: os.Getpid()}, 7, 2, nil)
			}()
			conn, err := sock.Accept()
			require.NoError(t, err)
			_, err = conn.Recv(make([]byte, 64))
			require.NoError(t, err)
			require.NoError(t, conn.Send(c.what, make([]int, c.rights)...))
			require.Equal(t, c.want, <-done)
			conn.Close()
			for from := time.Now(); descriptors(t) > before; time.Sleep(time.Millisecond) { // older kernels: a goroutine closes them
				require.Less(t, time.Since(from), limit)
			}
		})
	}
}

// TestCloseUnderRequests: Close waits for the reply that is being made. The other requests get no reply.
func TestCloseUnderRequests(t *testing.T) {
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	s := server(t, held(begun, goOn))
	for range 10 {
		c := callServer(t, s.Place())
		w := descriptorRequest{token: token, key: 7, n: 1}
		require.NoError(t, c.Send(w.encode()))
	}
	<-begun
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	<-s.ended
	close(goOn)
	<-closed
	require.Empty(t, begun)
}

// held is source; it signals each call and waits.
func held(begun chan<- struct{}, goOn <-chan struct{}) PieceSource {
	return func(key uint64, first, n int) ([]int, []uint64, int) {
		begun <- struct{}{}
		<-goOn
		return source(key, first, n)
	}
}

// TestFetchProof: a proof comes, or a reason. A request that is neither for pieces nor for a proof ends the connection.
func TestFetchProof(t *testing.T) {
	s := server(t, source)
	_, err := FetchProof(context.Background(), s.owner(), 7)
	require.Equal(t, gpu.BadShare, err, "this server makes no proofs")
	s.Prove(func(key uint64) (p gpu.Proof, why int) {
		if key != 7 {
			return p, int(gpu.Changed)
		}
		for i := range p {
			p[i] = byte(i)
		}
		return p, 0
	})
	p, err := FetchProof(context.Background(), s.owner(), 7)
	require.NoError(t, err)
	require.Equal(t, byte((gpu.ProofSize-1)%256), p[gpu.ProofSize-1])
	_, err = FetchProof(context.Background(), s.owner(), 8)
	require.Equal(t, gpu.Changed, err)
	require.NoError(t, fetchAll(t, s.owner(), 3))
	for _, w := range []descriptorRequest{{token: token, key: 7}, {token: token, key: 7, n: DescriptorsPerMessage + 1}, {token: token, key: 7, what: askProof, n: 1}, {token: token, key: 7, what: askFile + 1, n: 1}, {token: token, key: 7, what: askFile, n: 2}} {
		c := callServer(t, s.Place())
		require.NoError(t, c.TakeRights(true))
		require.NoError(t, c.Send(w.encode()))
		c.Deadline(time.Now().Add(limit))
		n, _ := c.Recv(make([]byte, 1024))
		require.Zero(t, n)
	}
}

// TestFetchFile: a caller of our user gets the file of a region, and the place of its first byte.
func TestFetchFile(t *testing.T) {
	s := server(t, source)
	_, _, err := FetchFile(context.Background(), s.owner(), 7)
	require.ErrorIs(t, err, gpu.Refused)
	s.Files(func(key uint64) (fd int, offset uint64, ok bool) {
		if key != 7 {
			return -1, 0, false
		}
		fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 0)
		return fd, 1 << 40, err == nil
	})
	before := descriptors(t)
	fd, offset, err := FetchFile(context.Background(), s.owner(), 7)
	require.NoError(t, err)
	require.EqualValues(t, 1<<40, offset)
	require.NoError(t, unix.Close(fd))
	_, _, err = FetchFile(context.Background(), s.owner(), 8)
	require.ErrorIs(t, err, gpu.Changed) // it may have one again
	of := s.owner()
	of.Token[0]++
	_, _, err = FetchFile(context.Background(), of, 7)
	require.ErrorIs(t, err, gpu.Silent)
	require.Eventually(t, func() bool { return descriptors(t) <= before }, limit, time.Millisecond)
}
