package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/descriptors"
)

// mapper maps peers' memory and makes streams: calls of the driver that last milliseconds, in the order in which posts have asked for them
// (mapper.c). What waits for a peer meanwhile has a goroutine of its own and holds up nobody.
type mapper struct {
	core     cma.Rail
	doorbell *os.File // an eventfd, rung with each task
	ended    chan struct{}

	finishing sync.Mutex              // core.FinishImport
	mappings  map[cma.Import]*mapping // the goroutine's own

	mu   sync.Mutex
	idle sync.Cond
	done uint64 // tasks
}

// mapping is a peer's memory for a GPU of ours, while a goroutine waits for it and after.
type mapping struct {
	cma.ImportInfo
	driver   driver
	at       mapped // nil: memory of this process as it is, or none
	importer bool   // the pieces are ours to bring

	cancel   context.CancelFunc
	over     chan struct{} // closed when no goroutine is at it
	finished bool          // before over
}

// driver is what the mapper wants of a gpu.Driver.
type driver interface {
	Find(uuid [16]byte) int
	Owns(s *gpu.Share) bool
	Map(s gpu.Share, device int) (m mapped, importer bool, err error)
}

// mapped is what it wants of a gpu.Map.
type mapped interface {
	Add(fds []int32, sizes []uint64) error
	Fail(why gpu.Why)
	State() (gpu.MapState, error)
	At(addr uint64) uint64
	Close() error
}

// gpuDriver is a driver.
type gpuDriver struct{ *gpu.Driver }

func (d gpuDriver) Map(s gpu.Share, device int) (mapped, bool, error) {
	m, importer, err := d.Driver.Map(s, device)
	if err != nil {
		return nil, false, err
	}
	return m, importer, nil
}

// patience with a mapping that somebody else was to bring, and gave up.
const patience = 5 * time.Second

func newMapper(k cma.Rail, doorbell int) *mapper {
	m := &mapper{core: k, doorbell: os.NewFile(uintptr(doorbell), "eventfd"), ended: make(chan struct{}), mappings: map[cma.Import]*mapping{}}
	m.idle.L = &m.mu
	go m.run()
	return m
}

// close runs what was asked for and ends the mapper. No endpoint is open.
func (m *mapper) close() {
	m.wait()
	_ = m.doorbell.Close()
	<-m.ended
}

// wait returns when all that was asked for has been run.
func (m *mapper) wait() {
	all := m.core.TasksAsked()
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.done < all {
		m.idle.Wait()
	}
}

func (m *mapper) run() {
	defer close(m.ended)
	var count [8]byte
	for {
		if _, err := m.doorbell.Read(count[:]); err != nil {
			return
		}
		for {
			t, ok := m.core.NextTask()
			if !ok {
				break
			}
			m.do(t)
			m.mu.Lock()
			m.done++
			m.idle.Broadcast()
			m.mu.Unlock()
		}
	}
}

func (m *mapper) do(t cma.Task) {
	switch t.What {
	case cma.TaskBegin:
		m.begin(t.In)
	case cma.TaskEnd:
		m.end(t.In)
	default:
		m.core.MakePair(t)
	}
}

// begin maps an import, or leaves it to a goroutine that waits for its owner.
func (m *mapper) begin(in cma.Import) {
	p := &mapping{ImportInfo: in.Info(), driver: gpuDriver{m.core.Driver()}, over: make(chan struct{})}
	p.Peer = p.driver.Find(p.Share.GPU())
	in.SetPeer(p.Peer)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	m.mappings[in] = p
	err := p.open()
	if err == nil && p.opening() || gpu.Is(err, gpu.Cancelled) {
		go func() {
			defer close(p.over)
			err := p.await(ctx, err)
			if ctx.Err() == nil {
				m.finish(in, p, err)
			}
		}()
		return
	}
	if err == nil {
		err = p.err()
	}
	m.finish(in, p, err)
	close(p.over)
}

// end takes an import back that no job is at.
func (m *mapper) end(in cma.Import) {
	p := m.mappings[in]
	delete(m.mappings, in)
	p.cancel()
	<-p.over
	if !p.finished {
		m.core.Abandon()
		if p.importer && p.at != nil {
			p.at.Fail(gpu.Cancelled)
		}
	}
	p.unmap()
	in.Free()
}

// finish says how it has ended.
func (m *mapper) finish(in cma.Import, p *mapping, err error) {
	delta := uint64(0)
	if err != nil {
		m.core.SetLastError("the peer's GPU memory can't be mapped here: " + text(err))
		p.unmap()
	} else if p.at != nil {
		delta = p.at.At(p.Share.Base()) - p.Share.Base()
	}
	m.finishing.Lock()
	defer m.finishing.Unlock()
	p.finished = true
	if !m.core.FinishImport(in, whyOf(err), delta) {
		p.unmap()
	}
}

// whyOf is the reason in an error; 0: none.
func whyOf(err error) gpu.Why {
	if err == nil {
		return 0
	}
	why := gpu.Failed
	_ = errors.As(err, &why)
	return why
}

// text is an error of the driver as it is kept for whoever asks.
func text(err error) string {
	var f *gpu.Fault
	if !errors.As(err, &f) || f.Call == "" {
		return whyOf(err).Error()
	}
	if f.Text == "" {
		return fmt.Sprintf("%s: %v", f.Call, f.Why)
	}
	return fmt.Sprintf("%s: %v: %s", f.Call, f.Why, f.Text)
}

// ---- one mapping ----

// open asks the driver.
func (p *mapping) open() (err error) {
	if !p.Share.Mappable() { // nobody else can have it; here it is where it is
		switch {
		case p.Self && p.Peer == p.Device:
			return nil
		case p.Why != 0:
			return p.Why
		}
		return gpu.BadShare
	}
	if p.driver.Owns(&p.Share) && !p.Self { // a peer that says that its memory is ours would have us write where we like to be
		return gpu.BadShare
	}
	p.at, p.importer, err = p.driver.Map(p.Share, p.Device)
	return err
}

func (p *mapping) unmap() {
	if p.at != nil {
		_ = p.at.Close()
	}
	p.at = nil
}

// opening says that pieces are missing.
func (p *mapping) opening() bool {
	if p.at == nil {
		return false
	}
	s, _ := p.at.State()
	return s == gpu.MapOpening
}

// err is why a mapping that is open no more has failed.
func (p *mapping) err() error {
	if p.at == nil {
		return nil
	}
	_, err := p.at.State()
	return err
}

// await returns when the mapping is there, or why it is not; err is what opening it gave. Whoever brought the pieces may have been told to stop: when
// all others have let go of that mapping, too, somebody else does it.
func (p *mapping) await(ctx context.Context, err error) error {
	for until := time.Now().Add(patience); ; {
		if err == nil && p.importer {
			err = p.fetch(ctx)
		}
		for err == nil && p.opening() {
			if !nap(ctx) {
				return gpu.Cancelled
			}
		}
		if err == nil {
			err = p.err()
		}
		if !gpu.Is(err, gpu.Cancelled) || time.Now().After(until) {
			return err
		}
		p.unmap()
		if !nap(ctx) {
			return err
		}
		err = p.open()
	}
}

// nap is a millisecond. False: ctx has ended.
func nap(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

// fetch brings the pieces.
func (p *mapping) fetch(ctx context.Context) error {
	err := descriptors.Fetch(ctx, p.Owner, p.Key, p.Share.Pieces(), p.at.Add)
	if err != nil && ctx.Err() == nil {
		p.at.Fail(whyOf(err))
	}
	return err
}
