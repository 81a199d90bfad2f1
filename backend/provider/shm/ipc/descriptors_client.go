package ipc

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
)

// MemoryOwner says where to get the descriptors of a region's memory, as the owner's table of shares claims.
type MemoryOwner struct {
	Place *Place // where it listens; nil: nowhere
	Token Token
	Host  *Host // ours
	// the listener must be the process that owns the memory; descriptors of another process would be mapped as that
	// memory. 0: it has no number in our pid namespace
	Pid int
}

// maxHangUps is the number of times that the owner may close a connection without a reply. It does so to a caller that
// it takes for silent: the caller is starved, or took long with the pieces that it has.
const maxHangUps = 20

var errHangUp = errors.New("the owner closed the connection without a reply")

// FetchPieces requests `total` pieces and passes them to add, message by message. add closes the descriptors. FetchPieces waits
// for each reply, 5 s at most, because the owner may be stopped or never answer. It ends with ctx. The error is a
// gpu.Why, or the error of add.
func FetchPieces(ctx context.Context, of MemoryOwner, key uint64, total int, add func(fds []int32, sizes []uint64) error) error {
	f := fetch{ctx: ctx, of: of}
	f.renewDeadline()
	defer func() { f.cancel() }()
	if err := f.connect(); err != nil {
		return err
	}
	defer func() { f.hangUp() }()
	for got := 0; got < total; {
		n := min(total-got, DescriptorsPerMessage)
		fds, sizes, err := f.pieces(key, got, n)
		if err != nil {
			return err
		}
		if err := add(fds, sizes); err != nil {
			return err
		}
		got += n
		f.renewDeadline()
	}
	return nil
}

// FetchFile requests the file of a region of the owner's, and the place of the region's first byte in it. The caller closes fd. It
// waits as FetchPieces does. The error is a gpu.Why.
func FetchFile(ctx context.Context, of MemoryOwner, key uint64) (fd int, offset uint64, err error) {
	f := fetch{ctx: ctx, of: of}
	f.renewDeadline()
	defer func() { f.cancel() }()
	if err := f.connect(); err != nil {
		return -1, 0, err
	}
	defer func() { f.hangUp() }()
	fds, offsets, err := f.ask(&descriptorRequest{token: of.Token, key: key, what: askFile, n: 1})
	if err != nil {
		return -1, 0, err
	}
	return int(fds[0]), offsets[0], nil
}

type fetch struct {
	ctx    context.Context
	of     MemoryOwner
	hangUp func() // closes conn
	lost   int    // connections that the owner has closed
	conn   *Conn
	until  time.Time
	wait   context.Context // ends at until
	cancel context.CancelFunc
}

// renewDeadline starts a new wait of idleTimeout.
func (f *fetch) renewDeadline() {
	if f.cancel != nil {
		f.cancel()
	}
	f.until = time.Now().Add(idleTimeout)
	f.wait, f.cancel = context.WithDeadline(f.ctx, f.until)
}

// retryPause sleeps 1 ms before another try, because the peer's queue is full. False: the deadline has passed, or ctx
// has ended.
func (f *fetch) retryPause() bool {
	select {
	case <-f.wait.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

func (f *fetch) connect() (err error) {
	if f.of.Place == nil {
		return gpu.BadShare
	}
	for {
		if f.conn, err = Dial(f.of.Place, f.of.Host.Folder); err == nil {
			break
		}
		switch {
		case OutOfResources(err):
			return gpu.NoFDs
		case Errno(err) != unix.EAGAIN || !f.retryPause():
			return gpu.Silent
		}
	}
	if who, err := f.conn.CheckUser(f.of.Host.Users); err != nil || f.of.Pid != 0 && who.PID != f.of.Pid || f.conn.TakeRights(true) != nil {
		f.conn.Drop()
		return gpu.BadShare
	}
	conn := f.conn
	stop := context.AfterFunc(f.ctx, conn.Close)
	f.hangUp = func() { stop(); conn.Close() }
	return nil
}

// pieces requests n pieces.
func (f *fetch) pieces(key uint64, first, n int) (fds []int32, sizes []uint64, err error) {
	return f.ask(&descriptorRequest{token: f.of.Token, key: key, what: askPieces, first: uint32(first), n: uint32(n)})
}

// ask makes a request that is answered by n descriptors.
func (f *fetch) ask(w *descriptorRequest) (fds []int32, sizes []uint64, err error) {
	body, rights, err := f.request(w)
	if err != nil {
		return nil, nil, err
	}
	for i, fd := range rights {
		fds = append(fds, int32(fd))
		sizes = append(sizes, binary.NativeEndian.Uint64(body[8*i:]))
	}
	return fds, sizes, nil
}

// request is roundTrip, over another connection if the owner closes this one.
func (f *fetch) request(w *descriptorRequest) (body []byte, rights []int, err error) {
	for {
		if body, rights, err = f.roundTrip(w); err != errHangUp {
			return body, rights, err
		}
		if f.lost++; f.lost > maxHangUps || !f.retryPause() {
			return nil, nil, gpu.Silent
		}
		f.hangUp()
		if err := f.connect(); err != nil {
			return nil, nil, err
		}
	}
}

// closedByOwner reports that an error comes from the other end's close: before a send, or with our request unread.
func closedByOwner(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// roundTrip sends one request and receives its reply. All received descriptors are returned or closed.
func (f *fetch) roundTrip(w *descriptorRequest) (body []byte, rights []int, err error) {
	for {
		if err = f.conn.Send(w.encode()); err == nil {
			break
		}
		if closedByOwner(err) {
			return nil, nil, errHangUp
		}
		if Errno(err) != unix.EAGAIN || !f.retryPause() {
			return nil, nil, gpu.Silent
		}
	}
	var b [replySize + 1]byte
	f.conn.Deadline(f.until)
	got, rights, cut, err := f.conn.RecvRights(b[:], DescriptorsPerMessage)
	if err != nil || got == 0 {
		CloseAll(rights)
		if err == nil || closedByOwner(err) {
			return nil, nil, errHangUp
		}
		return nil, nil, gpu.Silent
	}
	if why := checkReply(b[:got], len(rights), cut, int(w.n)); why != 0 {
		CloseAll(rights)
		return nil, nil, why
	}
	return b[8:got], rights, nil
}

// checkReply says what is wrong with a reply; 0: the reply has the n requested pieces.
func checkReply(b []byte, rights int, cut bool, n int) gpu.Why {
	if len(b) != replySize {
		return gpu.BadShare
	}
	why, has := binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:])
	switch {
	case why >= gpu.WhyCount:
		return gpu.BadShare
	case why != 0:
		return gpu.Why(why)
	case cut:
		return gpu.NoFDs
	case rights != n || has != uint32(n):
		return gpu.BadShare
	}
	return 0
}
