package session

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// NVLink between hosts: an initiator maps memory of the target's GPUs by fabric handles, which travel over the control channel.

// handleAsks are requests for handles that have no answer yet. They end with the session's links: see provider.Security.
type handleAsks struct {
	send func(f wire.Frame)
	id   func() uint64

	mu    sync.Mutex
	waits map[uint64]chan *wire.Handles
}

// ask is an askHandles.
func (a *handleAsks) ask(ctx context.Context, rail uint8, key, base uint64, first uint32) (provider.Handles, error) {
	id, answer := a.id(), make(chan *wire.Handles, 1)
	a.mu.Lock()
	a.waits[id] = answer
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.waits, id)
		a.mu.Unlock()
	}()
	a.send(&wire.HandlesReq{ID: id, Rail: rail, Key: key, Base: base, First: first})
	select {
	case f := <-answer:
		if why := gpu.Why(f.Why); why != 0 {
			return provider.Handles{}, why
		}
		return provider.Handles{Share: f.Share, List: f.List}, nil
	case <-ctx.Done():
		return provider.Handles{}, gpu.Silent
	}
}

func (a *handleAsks) answered(f *wire.Handles) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if answer := a.waits[f.ID]; answer != nil {
		delete(a.waits, f.ID)
		answer <- f
	}
}

// loans are a session's requests for handles.
type loans struct {
	count atomic.Int32
	mu    sync.Mutex // held while handles are made
	pace             // under mu
}

// pace bounds the driver's time that a peer takes, which may ask for the same handles for ever: a burst, then half of one thread's time.
type pace struct {
	spent time.Duration
	at    time.Time // of spent
}

// burst is 20,000 to 100,000 handles, at 0.1 to 0.5 ms each: 40 to 200 GiB in handles of 2 MiB.
const burst = 10 * time.Second

// wait is how long the next request waits.
func (p *pace) wait(now time.Time) time.Duration {
	p.spent = max(0, p.spent-max(0, now.Sub(p.at))/2)
	p.at = now
	return 2 * max(0, p.spent-burst)
}

// turn waits for a request's turn. The caller unlocks mu. False: nobody waits for the answer any more.
func (l *loans) turn(done <-chan struct{}) bool {
	l.mu.Lock()
	select {
	case <-done: // the engine's end would wait for the driver
		return false
	case <-time.After(l.wait(time.Now())):
		return true
	}
}

// admit counts a request. False: too many wait.
func (l *loans) admit() bool {
	if l.count.Add(1) > mostLoans {
		l.count.Add(-1)
		return false
	}
	return true
}

// mostLoans is how many requests for handles of one peer wait at a time. An honest peer has fewer, unless it gave up those that this process, which
// was stopped, then reads all at once: the others are answered with Silent, which is asked again.
const mostLoans = 64

// lend answers a request for handles, in a goroutine: the driver takes 0.1 to 0.5 ms for each. One is made at a time.
func (t *Target) lend(f *wire.HandlesReq) error {
	if !t.loans.admit() {
		t.in.Staged(&wire.Handles{ID: f.ID, Why: uint32(gpu.Silent)})
		return nil
	}
	t.holder.Lent.Store(true)
	t.s.Life.Go(func() {
		defer t.loans.count.Add(-1)
		defer t.loans.mu.Unlock()
		if !t.loans.turn(t.in.Done()) {
			return
		}
		began := time.Now()
		defer func() { t.loans.spent += time.Since(began) }()
		answer := &wire.Handles{ID: f.ID}
		if h, err := t.handles(f); err != nil {
			why := gpu.Failed
			_ = errors.As(err, &why)
			answer.Why = uint32(why)
			t.s.Log.Debug("no fabric handles for a peer", "peer", t.in.Agent(), "rail", f.Rail, "first", f.First, "err", host.Advise(err))
		} else {
			answer.Share, answer.List = h.Share, h.List
		}
		t.in.Staged(answer)
	})
	return nil
}

func (t *Target) handles(f *wire.HandlesReq) (provider.Handles, error) {
	if int(f.Rail) < len(t.s.Links.Rails.List) {
		if l, ok := t.s.Links.Rails.List[f.Rail].Inner().(provider.Lender); ok {
			return l.Handles(t.in.KeySalt(), f.Key, f.Base, int(f.First), wire.MaxHandles)
		}
	}
	return provider.Handles{}, gpu.BadShare
}
