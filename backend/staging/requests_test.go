package staging

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// session is a Session whose peer is answered by the test.
type session struct {
	sent   chan wire.Frame
	gaveUp chan error
	loads  error
}

func (s *session) Send(f wire.Frame) { s.sent <- f }
func (s *session) Load(c wire.Claim) (*region.Region, error) {
	if s.loads != nil {
		return nil, s.loads
	}
	return &region.Region{Claim: c}, nil
}
func (s *session) Notify([]byte) error { return nil }
func (s *session) Quiet() bool         { return true }
func (s *session) Unmapped(string)     {}
func (s *session) GiveUp(err error)    { s.gaveUp <- err }

// gpuMemory is the memory that rings are requested for.
var gpuMemory = wire.Claim{Range: wire.Range{Addr: 1 << 30, Len: 1 << 20, Dev: 3, Mem: region.VRAM}, Cap: wire.Cap{5}}

func newRequests(timeout time.Duration) (*Requests, *session) {
	s := &session{sent: make(chan wire.Frame, 10), gaveUp: make(chan error, 1)}
	return NewRequests(&Side{Life: &core.Lifetime{}}, "bob", s, timeout), s
}

// asked returns the results of ring for two concurrent callers. The peer answers their one request with f.
func asked(t *testing.T, a *Requests, s *session, k ringKey, f wire.Ring) (rings [2]*peerRing, errs [2]error) {
	var all sync.WaitGroup
	for i := range rings {
		all.Go(func() { rings[i], errs[i] = a.ring(k, gpuMemory, nil) })
	}
	req := (<-s.sent).(*wire.RingReq)
	require.Equal(t, wire.RingReq{ID: req.ID, Mem: k.mem, For: gpuMemory}, *req)
	f.ID = req.ID
	a.Answer(&f)
	a.Answer(&f) // a second answer has no effect
	all.Wait()
	require.Empty(t, s.sent, "it is asked once")
	return rings, errs
}

// The peer refuses the memory of one transfer. Another one, which waits for the same ring, asks with its own memory.
func TestRingRefusedForOne(t *testing.T) {
	a, s := newRequests(time.Minute)
	k, other := ringKey{0, 3}, gpuMemory
	other.Cap = wire.Cap{6}
	result := func(memory wire.Claim) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := a.ring(k, memory, nil)
			done <- err
		}()
		return done
	}
	refused := result(gpuMemory)
	first := (<-s.sent).(*wire.RingReq)
	served := result(other) // begins to wait before or after the answer
	a.Answer(&wire.Ring{ID: first.ID, Text: "not registered", Code: wire.CodeMemory})
	require.ErrorContains(t, <-refused, "not registered")
	second := (<-s.sent).(*wire.RingReq)
	require.Equal(t, other, second.For)
	a.Answer(&wire.Ring{ID: second.ID, Range: wire.Claim{Range: wire.Range{Addr: 1 << 20, Len: 4 << 10}}, Slot: 1 << 10})
	require.NoError(t, <-served)
}

// The first caller requests a ring and all callers get the same one.
func TestRing(t *testing.T) {
	a, s := newRequests(time.Minute)
	rng := wire.Claim{Range: wire.Range{Addr: 1 << 20, Len: 4 << 10}, Cap: wire.Cap{7}}
	rings, errs := asked(t, a, s, ringKey{0, 3}, wire.Ring{Range: rng, Slot: 1 << 10})
	require.Equal(t, [2]error{}, errs)
	require.Same(t, rings[0], rings[1])
	for i := range uint64(4) {
		require.Equal(t, rng.Addr+i<<10, <-rings[0].free)
	}
	require.Empty(t, rings[0].free)
}

// A refusal, or an offer of another ring, is an error for the rest of the session.
func TestRingRefused(t *testing.T) {
	for why, f := range map[string]wire.Ring{
		"no memory for staging: out of memory": {Text: "out of memory"},
		"offers bounce buffers in memory 1":    {Range: wire.Claim{Range: wire.Range{Addr: 1, Len: 1 << 10, Mem: region.VRAM}}, Slot: 1 << 10},
	} {
		a, s := newRequests(time.Minute)
		k := ringKey{0, 3}
		_, errs := asked(t, a, s, k, f)
		require.ErrorContains(t, errs[0], why)
		_, err := a.ring(k, gpuMemory, nil)
		require.Equal(t, errs[0], err)
	}
}

// A ring that the peer has made cannot be loaded: our table of regions is full. Later it is loaded, and the peer is not asked again.
func TestRingNotLoaded(t *testing.T) {
	a, s := newRequests(time.Minute)
	s.loads = errors.New("the table is full")
	k := ringKey{0, 3}
	_, errs := asked(t, a, s, k, wire.Ring{Range: wire.Claim{Range: wire.Range{Addr: 1, Len: 1 << 10}}, Slot: 1 << 10})
	require.Equal(t, [2]error{s.loads, s.loads}, errs)
	again := func() error {
		a.mu.Lock()
		a.rings[k].again = time.Now().Add(-time.Millisecond)
		a.mu.Unlock()
		_, err := a.ring(k, gpuMemory, nil)
		return err
	}
	require.Equal(t, s.loads, again())
	s.loads = nil
	require.NoError(t, again())
	require.Empty(t, s.sent)
}

// A request for memory that is not registered is refused; the next caller requests the ring again.
func TestRingForUnknown(t *testing.T) {
	a, s := newRequests(time.Minute)
	for _, unknown := range []bool{true, true, false} {
		answer := wire.Ring{Text: "not registered", Code: wire.CodeMemory}
		if !unknown {
			answer = wire.Ring{Range: wire.Claim{Range: wire.Range{Addr: 1 << 20, Len: 4 << 10}}, Slot: 1 << 10}
		}
		go func() {
			answer.ID = (<-s.sent).(*wire.RingReq).ID
			a.Answer(&answer)
		}()
		_, err := a.ring(ringKey{0, 3}, gpuMemory, nil)
		if unknown {
			require.ErrorContains(t, err, "not registered")
		} else {
			require.NoError(t, err)
		}
	}
}

// A peer without room for a ring is asked again later. Until then transfers fail at once, with a status of their own.
func TestRingWithoutRoom(t *testing.T) {
	a, s := newRequests(time.Minute)
	k := ringKey{0, 3}
	full := wire.Ring{Code: wire.CodeBusy, Text: "4 MiB (option staging_memory)"}
	_, errs := asked(t, a, s, k, full)
	require.ErrorContains(t, errs[0], "staging_memory")
	require.Equal(t, errcode.ErrNotSupported, errcode.StatusOf(errs[0]))
	_, err := a.ring(k, gpuMemory, nil)
	require.Equal(t, errs[0], err)
	require.Empty(t, s.sent, "not yet")
	a.mu.Lock()
	require.WithinRange(t, a.rings[k].again, time.Now().Add(-time.Minute), time.Now().Add(refusedFor))
	a.rings[k].again = time.Now().Add(-time.Millisecond)
	a.mu.Unlock()
	_, errs = asked(t, a, s, k, full)
	require.Error(t, errs[0])
	a.mu.Lock()
	a.rings[k].again = time.Now().Add(-time.Millisecond)
	a.mu.Unlock()
	_, errs = asked(t, a, s, k, wire.Ring{Range: wire.Claim{Range: wire.Range{Addr: 1 << 20, Len: 4 << 10}}, Slot: 1 << 10})
	require.Equal(t, [2]error{}, errs)
}

// A waiting caller returns when the session ends, when its run is stopped, or after xfer_timeout.
func TestRingUnanswered(t *testing.T) {
	a, _ := newRequests(time.Minute)
	stop := make(chan struct{})
	close(stop)
	_, err := a.ring(ringKey{}, gpuMemory, stop)
	require.Equal(t, errStopped, err)
	time.AfterFunc(time.Millisecond, a.End)
	_, err = a.ring(ringKey{}, gpuMemory, nil)
	require.Equal(t, ErrSessionOver, err)
	_, err = a.copyThere(&wire.Copy{}, false, 0, 0)
	require.Equal(t, ErrSessionOver, err)

	a, _ = newRequests(time.Millisecond)
	_, err = a.ring(ringKey{}, gpuMemory, nil)
	require.ErrorContains(t, err, "xfer_timeout")
}

// A copy ends with the peer's answer. Without an answer the state of the memory is unknown, and the session ends.
func TestCopyThere(t *testing.T) {
	a, s := newRequests(time.Minute)
	for _, text := range []string{"", "no such region"} {
		go func() {
			f := (<-s.sent).(*wire.Copy)
			a.Answer(&wire.Copied{ID: f.ID + 1})
			a.Answer(&wire.Copied{ID: f.ID, Text: text})
		}()
		_, err := a.copyThere(&wire.Copy{}, false, 0, 0)
		require.Equal(t, text == "", err == nil)
		if err != nil {
			require.ErrorContains(t, err, text)
		}
	}
	a, s = newRequests(time.Millisecond)
	_, err := a.copyThere(&wire.Copy{}, false, 0, 0)
	require.ErrorContains(t, err, "xfer_timeout")
	require.Equal(t, err, <-s.gaveUp)
}

// A peer that says that it has compressed what was not asked for, or to more bytes than the chunk has, loses its session.
func TestPackedCopyThere(t *testing.T) {
	for name, c := range map[string]struct {
		packs, out bool
		says       uint32
		ok         bool
	}{"less": {true, true, 99, true}, "in clear": {true, true, 0, true}, "more": {true, true, 101, false},
		"of a WRITE": {true, false, 1, false}, "not asked for": {false, true, 1, false}} {
		a, s := newRequests(time.Minute)
		go func() {
			var id uint64
			switch f := (<-s.sent).(type) {
			case *wire.Copy:
				id = f.ID
			case *wire.PackedCopy:
				id = f.Copy.ID
			}
			a.Answer(&wire.PackedCopied{Copied: wire.Copied{ID: id}, Packed: c.says})
		}()
		out, err := a.copyThere(&wire.Copy{Out: c.out}, c.packs, 7, 100)
		if c.ok {
			require.NoError(t, err, name)
			require.EqualValues(t, c.says, out, name)
			require.Empty(t, s.gaveUp)
			continue
		}
		require.ErrorIs(t, err, errGaveUp, name)
		require.Equal(t, err, <-s.gaveUp, name)
	}
}

// Bounce buffers help no group without memory of a GPU: the error has its code, and the caller tries links again.
func TestNoPath(t *testing.T) {
	_, err := (&run{}).rings(&group{})
	require.Equal(t, errcode.NoPath, errcode.Of(err))
	require.ErrorIs(t, err, transfer.ErrUnreachable)
}

// A peer gets a ring of each kind with the least staging_memory that the option takes.
func TestLeastMemory(t *testing.T) {
	const size = 64 << 20
	for _, device := range []int{Host, 0} {
		s := &Side{Size: size, Memory: 2 * size, Log: slog.New(slog.DiscardHandler), Limits: &limits.Counts{}, Regions: &region.Registry{}}
		require.NoError(t, s.takeRoom(&peer.In{}, device), "device %d", device)
	}
	s := &Side{Size: size}
	require.EqualValues(t, 2*size/slotsOfRing, s.slotSize(0), "without the option a ring on a GPU is twice as large")
	s.Memory = 4 * size
	require.EqualValues(t, 2*size/slotsOfRing, s.slotSize(0))
}
