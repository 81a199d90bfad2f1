package tcp

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider/fake/drive"
	"gorail/backend/provider/tcp/model"
)

// States of a TCP socket, of linux/tcp_states.h.
const (
	stateClose     = 7
	stateCloseWait = 8
)

// watched is a node that knows its newest socket.
func watched(t *testing.T, tune func(fd int)) (n *node, state func() uint8) {
	fds := make(chan int, 16)
	n = newNode(t, 2<<20, func(fd int) {
		if tune != nil {
			tune(fd)
		}
		fds <- fd
	})
	fd := -1
	return n, func() uint8 {
		if fd < 0 {
			fd = <-fds
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		require.NoError(t, err)
		return info.State
	}
}

// small makes a socket take little at once.
func small(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1) }

// TestEndBehindBytes: the end of a connection is noticed without a second edge if it came together with bytes.
func TestEndBehindBytes(t *testing.T) {
	t.Parallel()
	n, state := watched(t, nil)
	v := &rules{node: n}
	s := n.meet(t)
	defer s.close()
	id := v.post(s, drive.Read, 64)
	s.want(model.Read)
	_, err := s.c.Write(model.New(model.Header{Op: model.Goodbye}, nil).Encode())
	require.NoError(t, err)
	require.NoError(t, s.c.CloseWrite())
	for state() != stateCloseWait {
	}
	v.sleeps()
	require.Contains(t, v.done, id, "the victim sleeps, and does not know that the connection has ended")
}

// sleeps polls as the core's thread does, until it would sleep.
func (v *rules) sleeps() {
	v.t.Helper()
	for quiet := false; !quiet; {
		had := len(v.done)
		v.poll()
		quiet = len(v.done) == had && v.d.Arm() && !v.d.Readable()
	}
}

// TestResetAfterGoodbye: a peer that says goodbye and has not received all has not failed.
func TestResetAfterGoodbye(t *testing.T) {
	t.Parallel()
	n, state := watched(t, nil)
	v := &rules{node: n}
	s := n.meet(t)
	defer s.close()
	receive := v.recv(s, 64)
	id := v.post(s, drive.WriteUnsignaled, 64)
	require.Zero(t, v.result(id))
	_, err := s.c.Write(model.New(model.Header{Op: model.Goodbye}, nil).Encode())
	require.NoError(t, err)
	require.NoError(t, s.c.Close()) // with bytes that it has not received: a reset
	for state() != stateClose {
	}
	v.sleeps()
	require.NotContains(t, v.done, receive)
	require.ErrorIs(t, v.d.RMA(s.ep.Core(), drive.Write, v.id(), drive.Seg{}), syscall.ENOTCONN)
}

// TestRefusalNames: the refused segment belongs to an operation, or to an unsignaled WRITE that the next signaled one proves.
func TestRefusalNames(t *testing.T) {
	t.Parallel()
	v := &rules{node: newNode(t, nodeMem, nil)}
	for index, guilty := range []int{1, 1, 1, 1, 2} {
		s := v.meet(t)
		seg := drive.Seg{Local: drive.Addr(v.mem), Remote: model.At(3, 0), Len: 8, Key: 9}
		ids := []uint64{v.id(), v.id(), v.id()}
		require.NoError(t, v.d.Together(drive.Op{Ep: s.ep.Core(), Kind: drive.WriteUnsignaled, ID: ids[0], Segs: []drive.Seg{seg}},
			drive.Op{Ep: s.ep.Core(), Kind: drive.Write, ID: ids[1], Segs: []drive.Seg{seg, seg, seg}},
			drive.Op{Ep: s.ep.Core(), Kind: drive.Write, ID: ids[2], Segs: []drive.Seg{seg}}))
		f := s.want(model.Write)
		require.Len(t, f.Segs, 5)
		s.send(model.New(model.Header{Op: model.Refused, Seq: f.Seq, ID: uint32(index), Status: uint32(syscall.EACCES)}, nil))
		for i, id := range ids {
			want := map[bool]syscall.Errno{true: syscall.EACCES, false: syscall.ECANCELED}[i == guilty]
			if i == 0 {
				want = 0 // it has ended before
			}
			require.Equal(t, want, v.result(id), "segment %d, operation %d", index, i)
		}
		s.close()
	}
}

// TestReceiveBehindHalfMessage: a receive that is posted while a message comes in gets that message, and the next receive the next.
func TestReceiveBehindHalfMessage(t *testing.T) {
	t.Parallel()
	v := &rules{node: newNode(t, nodeMem, nil)}
	s := v.meet(t)
	defer s.close()
	first, second := message(1, 3000), message(2, 3000)
	for i := range first.Body {
		first.Body[i], second.Body[i] = 1, 2
	}
	text := first.Encode()
	s.raw(text[:1000])
	for range 50 {
		s.look()
	}
	at := func(i int) []byte { return v.mem[i*4096:][:4096] }
	var ids [3]uint64
	for i := range ids {
		ids[i] = v.id()
		require.NoError(t, v.d.Recv(s.ep.Core(), ids[i], at(i), nil))
	}
	s.raw(text[1000:])
	s.send(second)
	for i := range 2 {
		require.Zero(t, v.result(ids[i]))
		require.EqualValues(t, 3000, v.done[ids[i]].Len)
		require.Equal(t, byte(i+1), at(i)[0], "receive %d has another message", i)
	}
	require.NotContains(t, v.done, ids[2])
}
