package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"gorail/backend/fastpath"
	"gorail/backend/stage"
	"gorail/backend/status"
	"gorail/backend/wire"
)

var errStopped = errors.New("stopped")

// stagedRun is one run of a transfer that no link carries as it is: its operations are sorted by what memory they go between; what links
// carry is posted as inner transfers, the rest goes in chunks over rings. It has goroutines of its own, and ends the transfer.
type stagedRun struct {
	t        *transfer
	r        *remote
	regions  map[uint32]*region
	hasNotif bool
	msg      []byte
	began    time.Time
	stop     chan struct{} // closed when it is to end early

	mu    sync.Mutex
	code  status.Code
	err   error // why it ends early
	inner map[*transfer]struct{}
}

// workers is how many chunks of a transfer are under way: enough that the copies here, the wire and the copies there all have some. 8 of
// 4 MiB gave 91 GB/s between two H200s over a ring on one of them, for 250 us go by until the peer has answered.
const workers = slotsOfRing

// stage starts a run. Under t.mu or with t queued, with x running.
func (t *transfer) stage(r *remote, hasNotif bool, msg []byte) {
	s := &stagedRun{t: t, r: r, regions: t.regionsOf(), hasNotif: hasNotif, msg: bytes.Clone(msg), began: time.Now(), stop: make(chan struct{}),
		inner: map[*transfer]struct{}{}}
	t.run.Store(s)
	t.sampled = t.x.Posted() // what the core knows of times is of another run
	t.e.late.Go(s.main)
}

func (s *stagedRun) main() {
	s.t.e.stage.transfers.Add(1)
	err := s.live()
	if err == nil {
		err = s.move(s.t.tried)
	}
	if err == nil && s.hasNotif {
		err = s.notify()
	}
	s.finish(err)
}

// cancel makes it end soon; the first reason counts.
func (s *stagedRun) cancel(code status.Code, err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if code >= 0 {
		code = status.ErrBackend
	}
	s.code, s.err = code, err
	close(s.stop)
	var inner []*transfer
	for t := range s.inner {
		inner = append(inner, t)
	}
	s.mu.Unlock()
	for _, t := range inner {
		t.abort(code, err.Error())
	}
}

// fail is cancel for what went wrong on the way; a session that has ended says itself what that means.
func (s *stagedRun) fail(err error) {
	code := status.Of(err)
	s.r.mu.RLock()
	if s.r.state != ready {
		code = s.r.code
		if s.r.state == closed {
			code = status.ErrBackend
		}
	}
	s.r.mu.RUnlock()
	s.cancel(code, err)
}

// live says whether all of the memory is registered. Whoever deregisters some says so first, and then looks for transfers in progress, which
// this one is already.
func (s *stagedRun) live() error {
	for _, g := range s.regions {
		if !g.core.Live() {
			return status.Errorf(status.ErrBackend, "memory %#x+%d was deregistered", g.Addr, g.Len)
		}
	}
	return nil
}

// finish gives the transfer its status.
func (s *stagedRun) finish(err error) {
	t := s.t
	e := t.e
	if err != nil {
		s.fail(err)
	}
	s.mu.Lock()
	code, err := s.code, s.err
	s.mu.Unlock()
	t.mu.Lock()
	if err != nil && !t.zombie.Load() {
		e.log.Error("transfer failed", "peer", s.r.name, "status", code.String(), "reason", err, "bytes", t.bytes, "staged", true)
	}
	if err == nil {
		s.r.rates.add(t.bytes, time.Since(s.began))
		e.stage.bytes.Add(t.bytes)
	}
	t.untold.Store(false)
	t.run.Store(nil)
	t.x.Settle(int32(code))
	t.mu.Unlock()
	if t.zombie.Load() {
		e.reap(t)
	}
	s.r.settleRevokes()
}

// move moves every byte.
// tried: links have been, and did not reach both memories.
func (s *stagedRun) move(tried bool) error {
	ops := s.t.x.Ops()
	if len(ops) == 0 {
		return nil
	}
	all := groups(ops, s.regions)
	var rest []*group
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, g := range all { // several pairs of GPUs work side by side
		wg.Go(func() {
			if !(tried && len(all) == 1) && s.reachable(g) {
				err := s.direct(g)
				if err == nil {
					return
				}
				if !errors.Is(err, errUnreachable) {
					s.fail(err)
					return
				}
				s.apart(g)
			}
			mu.Lock()
			rest = append(rest, g)
			mu.Unlock()
		})
	}
	wg.Wait()
	for _, g := range rest {
		if err := s.overRings(g); err != nil {
			s.fail(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// errUnreachable says that no link moves bytes between these memories.
var errUnreachable = errors.New("no link reaches both memories")

// reachable says whether links carry the group as it is, as far as is known.
func (s *stagedRun) reachable(g *group) bool {
	own, theirs := ^uint64(0), ^uint64(0)
	for i := range g.ops {
		l, r := s.regions[g.ops[i].LRegion], s.regions[g.ops[i].RRegion]
		if r.apart.Load() && g.lmem == memVRAM {
			return false
		}
		own, theirs = own&l.rails, theirs&r.rails
	}
	s.r.mu.RLock()
	defer s.r.mu.RUnlock()
	for _, l := range s.r.links {
		if l.up && own&(1<<l.rail.index) != 0 && theirs&(1<<l.peer) != 0 && l.rail.moves(g.class, g.gpus() && l.rail.bulk()) {
			return true
		}
	}
	return false
}

// apart notes that a region of the peer's can't be mapped here; of several nobody knows which.
func (s *stagedRun) apart(g *group) {
	first := g.ops[0].RRegion
	for i := range g.ops {
		if g.ops[i].RRegion != first {
			return
		}
	}
	s.regions[first].apart.Store(true)
}

// direct moves a group by one inner transfer.
func (s *stagedRun) direct(g *group) error {
	local, remote := make([]Desc, len(g.ops)), make([]Desc, len(g.ops))
	md := map[*region]Desc{}
	at := func(r *region, addr, n uint64) Desc {
		d, ok := md[r]
		if !ok {
			d = desc(0, 0, r)
			md[r] = d
		}
		d.Addr, d.Len = addr, n
		return d
	}
	for i, o := range g.ops {
		local[i], remote[i] = at(s.regions[o.LRegion], o.Local, o.Len), at(s.regions[o.RRegion], o.Remote, o.Len)
	}
	return s.transfer(local, remote)
}

// transfer makes an inner transfer and waits until it has ended: it has no memory in use then.
func (s *stagedRun) transfer(local, remote []Desc) error {
	t := &transfer{e: s.t.e, remote: s.r, op: s.t.op, inner: make(chan struct{}, 1)}
	v := &resolver{e: t.e, local: local, remote: remote, peer: s.r, held: true}
	if err := v.plan(t); err != nil {
		return err
	}
	handle := t.rec.Handle().Uint64()
	defer t.e.Release(handle)
	s.mu.Lock()
	err := s.err
	s.inner[t] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.inner, t)
		s.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	if _, err := t.e.Post(handle, false, nil); err != nil {
		return err
	}
	select {
	case <-s.stop: // cancel may have looked before the post
		t.abort(status.ErrCanceled, "stopped")
	default:
	}
	t.await()
	if _, errno := t.x.Err(); t.x.Failed() && errno == syscall.ENOTSUP {
		return errUnreachable
	}
	if t.x.Failed() {
		t.mu.Lock()
		defer t.mu.Unlock()
		return status.Errorf(status.Code(t.x.Status()), "%s", t.why)
	}
	return nil
}

// await waits until an inner transfer has ended. Between processes of one host it copies meanwhile, as all who wait do, and small ones are
// worth a look. The core tells; of transfers that it never had nobody does.
func (t *transfer) await() {
	if t.bytes <= smallBytes {
		t.e.core.Wait(t.x, 100*time.Microsecond)
	}
	for t.hasHost() && !t.e.core.Wait(t.x, time.Millisecond) {
	}
	for {
		told := t.x.Want()
		if !told && !t.x.Running() && !t.x.Unsettled() {
			return
		}
		select {
		case <-t.inner:
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// notify sends the notification, behind all bytes.
func (s *stagedRun) notify() error {
	for end := time.Now().Add(s.t.e.opt.XferTimeout); ; {
		s.r.mu.RLock()
		state := s.r.state
		err := errSessionOver
		if state == ready {
			err = s.r.home.l.Notify(s.msg)
		}
		s.r.mu.RUnlock()
		if !errors.Is(err, fastpath.ErrFull) || time.Now().After(end) {
			return err
		}
		select {
		case <-s.stop:
			return errStopped
		case <-time.After(time.Millisecond):
		}
	}
}

// overRings moves a group in chunks; all of it anew over the host's memory when the ring that it began with can't be mapped.
func (s *stagedRun) overRings(g *group) error {
	for {
		w, err := s.way(g)
		if err != nil {
			return err
		}
		s.tell(g, w)
		if err := s.chunks(g, w); !errors.Is(err, errUnreachable) || !w.mapped() {
			return err
		}
		w.there.region.apart.Store(true)
	}
}

// chunks moves a group's chunks, some side by side; the error is the first one's.
func (s *stagedRun) chunks(g *group, w *stagedWay) error {
	cut := &cutter{g: g, slot: w.slot}
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-s.stop:
					return
				default:
				}
				mu.Lock()
				k, more := cut.cut()
				more = more && first == nil
				mu.Unlock()
				if !more {
					return
				}
				if err := s.chunk(w, k); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// stagedWay are the rings that a group goes over; nil: none on that side.
type stagedWay struct {
	here  *slots
	there *peerRing
	slot  uint64
}

// mapped says that this side copies to and from memory of the peer's GPU.
func (w *stagedWay) mapped() bool { return w.there != nil && w.there.region.Mem == memVRAM }

func (s *stagedRun) way(g *group) (*stagedWay, error) {
	w := &stagedWay{slot: 1 << 62}
	if g.rmem == memVRAM {
		if s.r.mapsRings() && g.lmem == memVRAM { // this side copies to memory of the peer's GPU, the peer from there
			if p, err := s.r.ring(ringKey{memVRAM, g.rdev}, s.stop); err == nil && !p.region.apart.Load() {
				w.there = p
			}
		}
		if w.there == nil {
			p, err := s.r.ring(ringKey{0, g.rdev}, s.stop)
			if err != nil {
				return nil, err
			}
			w.there = p
		}
		w.slot = w.there.slot
	}
	if g.lmem == memVRAM && !w.mapped() {
		l, err := s.t.e.stage.ours(int(g.ldev))
		if err != nil {
			return nil, status.Errorf(status.ErrBackend, "%w", err)
		}
		w.here, w.slot = l, min(w.slot, l.size)
	}
	if w.here == nil && w.there == nil {
		return nil, status.Errorf(status.ErrNotSupported, "%w", errUnreachable)
	}
	return w, nil
}

// tell logs once a peer and kind of memory that its transfers are staged, and why.
func (s *stagedRun) tell(g *group, w *stagedWay) {
	name := func(mem int32, dev uint64) string {
		if mem == memVRAM {
			return fmt.Sprintf("GPU %d", dev)
		}
		return "host memory"
	}
	what := name(g.lmem, g.ldev) + " and " + name(g.rmem, g.rdev)
	a := s.r.asked
	a.mu.Lock()
	told := a.told[what]
	a.told[what] = true
	a.mu.Unlock()
	if told {
		return
	}
	why := "no rail in use moves memory of GPUs by itself"
	switch {
	case w.mapped() || s.regions[g.ops[0].RRegion].apart.Load():
		why = s.t.e.trouble()
	case g.lmem != g.rmem:
		why = "no rail in use moves bytes between host memory and a GPU's by itself"
	}
	s.t.e.log.Info("transfers are staged", "peer", s.r.name, "between", what, "reason", why, "ring_here", w.here != nil, "ring_there", w.there != nil,
		"slot", w.slot)
}

// chunk moves one chunk. A slot is free again when nothing uses it any more, whatever came of it.
func (s *stagedRun) chunk(w *stagedWay, k chunk) error {
	var here, there uint64
	if w.here != nil {
		if here = s.take(w.here.free); here == 0 {
			return errStopped
		}
		defer func() { w.here.free <- here }()
	}
	if w.there != nil {
		if there = s.take(w.there.free); there == 0 {
			return errStopped
		}
		defer func() { w.there.free <- there }()
	}
	steps := []func() error{
		func() error { return s.copyHere(w, k, here) },
		func() error { return s.between(w, k, here, there) },
		func() error { return s.copyThere(w, k, there) },
	}
	if s.t.op == opRead {
		steps[0], steps[2] = steps[2], steps[0]
	}
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// take waits for a slot; 0: stopped.
func (s *stagedRun) take(free <-chan uint64) uint64 {
	select {
	case a := <-free:
		return a
	case <-s.stop:
	case <-s.r.asked.over:
	}
	return 0
}

func (s *stagedRun) copyHere(w *stagedWay, k chunk, at uint64) error {
	if w.here == nil {
		return nil
	}
	pieces := make([]stage.Piece, len(k.ops))
	for i, o := range k.ops {
		pieces[i] = stage.Piece{Addr: o.Local, Len: o.Len}
	}
	return s.t.e.stage.copier.Copy(w.here.ring, at, int(k.ldev), pieces, s.t.op == opWrite, s.stop)
}

func (s *stagedRun) copyThere(w *stagedWay, k chunk, at uint64) error {
	if w.there == nil {
		return nil
	}
	f := &wire.Copy{Out: s.t.op == opRead, At: at, Pieces: make(wire.CopyPieces, len(k.ops))}
	number := map[uint32]uint16{}
	for i, o := range k.ops {
		n, ok := number[o.RRegion]
		if !ok {
			n = uint16(len(f.Regions))
			number[o.RRegion] = n
			f.Regions = append(f.Regions, s.regions[o.RRegion].Range)
		}
		f.Pieces[i] = wire.CopyPiece{Region: n, Addr: o.Remote, Len: o.Len}
	}
	return s.r.copyThere(f)
}

// between moves a chunk from ring to ring, or between a ring and the memory of the other side.
func (s *stagedRun) between(w *stagedWay, k chunk, here, there uint64) error {
	e := s.t.e
	if w.here != nil && w.there != nil {
		return s.transfer([]Desc{desc(here, k.bytes, e.regions.get(w.here.id))}, []Desc{desc(there, k.bytes, w.there.region)})
	}
	local, remote := make([]Desc, len(k.ops)), make([]Desc, len(k.ops))
	md := map[*region]Desc{}
	at := func(r *region, addr, n uint64) Desc {
		d, ok := md[r]
		if !ok {
			d = desc(0, 0, r)
			md[r] = d
		}
		d.Addr, d.Len = addr, n
		return d
	}
	for i, o := range k.ops {
		if w.here != nil {
			local[i], remote[i] = at(e.regions.get(w.here.id), here, o.Len), at(s.regions[o.RRegion], o.Remote, o.Len)
			here += o.Len
		} else {
			local[i], remote[i] = at(s.regions[o.LRegion], o.Local, o.Len), at(w.there.region, there, o.Len)
			there += o.Len
		}
	}
	return s.transfer(local, remote)
}

// hasHost says that a link of the transfer's copies memory, by threads.
func (t *transfer) hasHost() bool {
	t.remote.mu.RLock()
	defer t.remote.mu.RUnlock()
	return !t.bulk && slices.ContainsFunc(t.remote.links, func(l *link) bool { return l.rail.Device().Host })
}
