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
)

// mapper maps peers' memory and makes streams. These calls last milliseconds and run in the order in which
// posts requested them (mapper.c). A mapping that waits for its owner gets a goroutine, so that other tasks go on.
type mapper struct {
	core     cma.Rail
	warn     func(string)
	doorbell *os.File // eventfd, signaled with each task
	ended    chan struct{}
	changed  chan struct{} // a peer has found memory of ours that is not what was registered

	finishing sync.Mutex              // serializes core.FinishImport
	mappings  map[cma.Import]*mapping // used by run's goroutine alone
	views     map[cma.View]*view      // as mappings

	mu    sync.Mutex
	idle  sync.Cond
	done  uint64    // tasks that have run
	begun time.Time // when the present task began; zero: none runs
}

// taskPatience is how long endpoints wait for one task. A task takes milliseconds, unless the driver waits for a GPU that does not end its
// work.
const taskPatience = 5 * time.Second

// mapping is a peer's memory, mapped for one of our GPUs. A goroutine may wait for its pieces.
type mapping struct {
	cma.ImportInfo
	driver   driver
	at       mapped // nil: not mapped, or memory that this process uses directly
	importer bool   // this mapping must fetch the pieces

	cancel   context.CancelFunc
	over     chan struct{} // closed when no goroutine works on the mapping
	finished bool          // set before over is closed
}

// driver is the part of gpu.Driver that the mapper uses.
type driver interface {
	Find(uuid [16]byte) int
	Owns(s *gpu.Share) bool
	Map(s gpu.Share, device int) (m mapped, importer bool, err error)
	MapProved(s gpu.Share, device int, p gpu.Proof) (mapped, error)
}

// mapped is the part of gpu.Map that the mapper uses.
type mapped interface {
	Add(fds []int32, sizes []uint64) error
	Fail(why gpu.Why)
	State() (gpu.MapState, error)
	At(addr uint64) uint64
	Close() error
}

// gpuDriver adapts gpu.Driver to driver.
type gpuDriver struct{ *gpu.Driver }

func (d gpuDriver) Map(s gpu.Share, device int) (mapped, bool, error) {
	m, importer, err := d.Driver.Map(s, device)
	if err != nil {
		return nil, false, err
	}
	return m, importer, nil
}

func (d gpuDriver) MapProved(s gpu.Share, device int, p gpu.Proof) (mapped, error) {
	m, err := d.Driver.MapProved(s, device, p)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func newMapper(k cma.Rail, doorbell int, warn func(string)) *mapper {
	m := &mapper{core: k, warn: warn, doorbell: os.NewFile(uintptr(doorbell), "eventfd"), ended: make(chan struct{}), changed: make(chan struct{}, 1), mappings: map[cma.Import]*mapping{},
		views: map[cma.View]*view{}}
	m.idle.L = &m.mu
	go m.run()
	return m
}

// close runs all requested tasks and ends the mapper. All endpoints must be closed.
func (m *mapper) close() {
	m.wait(0)
	_ = m.doorbell.Close()
	<-m.ended
}

// wait waits until all tasks requested so far have run. It returns false if one takes longer than patience; 0: any time.
func (m *mapper) wait(patience time.Duration) bool { return m.waitFor(m.core.TasksAsked(), patience) }

func (m *mapper) waitFor(all uint64, patience time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done >= all {
		return true
	}
	look := time.AfterFunc(patience, m.idle.Broadcast) // a broadcast too many is harmless
	defer look.Stop()
	for m.done < all {
		if patience > 0 && !m.begun.IsZero() && time.Since(m.begun) >= patience {
			return false
		}
		if patience > 0 {
			look.Reset(patience)
		}
		m.idle.Wait()
	}
	return true
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
			m.ran(0, time.Now())
			m.do(t)
			m.ran(1, time.Time{})
		}
	}
}

// ran notes that n more tasks have run, and when the present one began.
func (m *mapper) ran(n uint64, begun time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.begun = begun
	m.idle.Broadcast()
}

func (m *mapper) do(t cma.Task) {
	switch t.What {
	case cma.TaskBegin:
		m.begin(t.In)
	case cma.TaskEnd:
		m.end(t.In)
	case cma.TaskViewBegin:
		m.beginView(t.View)
	case cma.TaskViewEnd:
		m.endView(t.View)
	case cma.TaskChanged:
		m.core.Told()
		m.noteChanged()
	default:
		m.core.MakePair(t)
	}
}

// noteChanged says that memory of ours may not be what was registered.
func (m *mapper) noteChanged() {
	select {
	case m.changed <- struct{}{}:
	default: // whoever looks has not begun yet
	}
}

// begin maps an import. If pieces are missing, a goroutine waits for the owner.
func (m *mapper) begin(in cma.Import) {
	p := &mapping{ImportInfo: m.core.Info(in), driver: gpuDriver{m.core.Driver()}, over: make(chan struct{})}
	p.Peer = p.driver.Find(p.Share.GPU())
	in.SetPeer(p.Peer)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	m.mappings[in] = p
	err := p.open()
	if err == nil && p.opening() || gpu.Is(err, gpu.Cancelled) || gpu.Is(err, gpu.SamePID) {
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

// end unmaps an import that no job uses, and frees it.
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

// finish stores the result of a mapping: the address difference, or the error.
func (m *mapper) finish(in cma.Import, p *mapping, err error) {
	delta := uint64(0)
	if err != nil {
		m.core.SetLastError("cannot map the peer's GPU memory: " + errorText(err))
		if why := whyOf(err); containers(why) {
			m.warn(fmt.Sprintf("GPU %d cannot map a peer's memory of %s: transfers go through bounce buffers: %s", p.Device, uuidText(p.Share.GPU()), errorText(err)))
		}
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

// containers reports a reason that the operator can change: how the containers of the two processes are set up.
func containers(why gpu.Why) bool {
	return why == gpu.Unseen || why == gpu.Layout || why == gpu.Unproved
}

// uuidText is a UUID as nvidia-smi prints it.
func uuidText(u [16]byte) string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// whyOf is the reason in an error; 0: no error.
func whyOf(err error) gpu.Why {
	if err == nil {
		return 0
	}
	why := gpu.Failed
	_ = errors.As(err, &why)
	return why
}

// errorText is the text of a driver error as LastError keeps it.
func errorText(err error) string {
	var f *gpu.Fault
	if !errors.As(err, &f) || f.Call == "" {
		return whyOf(err).Error()
	}
	if f.Text == "" {
		return fmt.Sprintf("%s: %v", f.Call, f.Why)
	}
	return fmt.Sprintf("%s: %v: %s", f.Call, f.Why, f.Text)
}
