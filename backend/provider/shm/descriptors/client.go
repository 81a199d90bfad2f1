package descriptors

import (
	"context"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/ipc"
)

// Owner is where the descriptors of a region's memory are to be had, by the word of its table of shares.
type Owner struct {
	Name  []byte // of its socket
	Token Token
	Pid   int // who listens must be the process whose memory it is: another's descriptors would be mapped under its name
}

// Fetch asks for `total` pieces and hands them to add, message by message; their descriptors are add's to close. It waits for the owner, 5 s
// at most for each message: that may be stopped, or never answer. The end of ctx ends it. The error is a gpu.Why, or add's.
func Fetch(ctx context.Context, of Owner, key uint64, total int, add func(fds []int32, sizes []uint64) error) error {
	f := fetch{ctx: ctx, of: of, key: key}
	f.renewPatience()
	defer func() { f.cancel() }()
	if err := f.connect(); err != nil {
		return err
	}
	defer f.conn.Close()
	stop := context.AfterFunc(ctx, f.conn.Close)
	defer stop()
	for got := 0; got < total; {
		n := min(total-got, PerMessage)
		fds, sizes, err := f.ask(got, n)
		if err != nil {
			return err
		}
		if err := add(fds, sizes); err != nil {
			return err
		}
		got += n
		f.renewPatience()
	}
	return nil
}

type fetch struct {
	ctx    context.Context
	of     Owner
	key    uint64
	conn   *ipc.Conn
	until  time.Time
	wait   context.Context // ends then
	cancel context.CancelFunc
}

// renewPatience renews the patience.
func (f *fetch) renewPatience() {
	if f.cancel != nil {
		f.cancel()
	}
	f.until = time.Now().Add(patience)
	f.wait, f.cancel = context.WithDeadline(f.ctx, f.until)
}

// again naps before another try: the peer's queue is full.
func (f *fetch) again() bool {
	select {
	case <-f.wait.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

func (f *fetch) connect() (err error) {
	for {
		if f.conn, err = ipc.Dial(f.of.Name); err == nil {
			break
		}
		switch {
		case ipc.OutOfResources(err):
			return gpu.NoFDs
		case ipc.Errno(err) != unix.EAGAIN || !f.again():
			return gpu.Silent
		}
	}
	if pid, err := f.conn.CheckUser(); err != nil || pid != f.of.Pid {
		f.conn.Close()
		return gpu.BadShare
	}
	return nil
}

// ask is one message there and back. Whatever comes, nothing that came with it stays open but what is returned.
func (f *fetch) ask(first, n int) (fds []int32, sizes []uint64, err error) {
	w := want{f.of.Token, f.key, uint32(first), uint32(n)}
	for {
		if err = f.conn.Send(w.encode()); err == nil {
			break
		}
		if ipc.Errno(err) != unix.EAGAIN || !f.again() {
			return nil, nil, gpu.Silent
		}
	}
	var b [givenSize + 1]byte
	f.conn.Deadline(f.until)
	got, rights, cut, err := f.conn.RecvRights(b[:], PerMessage)
	if err != nil || got == 0 {
		ipc.CloseAll(rights)
		return nil, nil, gpu.Silent
	}
	if why := answered(b[:got], len(rights), cut, n); why != 0 {
		ipc.CloseAll(rights)
		return nil, nil, why
	}
	for i, fd := range rights {
		fds = append(fds, int32(fd))
		sizes = append(sizes, binary.NativeEndian.Uint64(b[8+8*i:]))
	}
	return fds, sizes, nil
}

// answered is what is wrong with an answer; 0: it has the n pieces that were asked for.
func answered(b []byte, rights int, cut bool, n int) gpu.Why {
	if len(b) != givenSize {
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
