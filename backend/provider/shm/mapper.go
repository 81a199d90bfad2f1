package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/ipc"
)

// mapper maps peers' memory and makes streams. These calls last milliseconds and run in the order in which
// posts requested them (mapper.c). A mapping that waits for its owner gets a goroutine, so that other tasks go on.
type mapper struct {
	core     cma.Rail
	maps     bool // peers' GPU memory; false: Options.NoMapping
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
	refused  bool   // no memory of peers is mapped
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

func newMapper(k cma.Rail, doorbell int, maps bool, warn func(string)) *mapper {
	m := &mapper{core: k, maps: maps, warn: warn, doorbell: os.NewFile(uintptr(doorbell), "eventfd"), ended: make(chan struct{}), changed: make(chan struct{}, 1), mappings: map[cma.Import]*mapping{},
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
	p := &mapping{ImportInfo: m.core.Info(in), driver: gpuDriver{m.core.Driver()}, refused: !m.maps, over: make(chan struct{})}
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

// mapTimeout bounds the retries when another importer of the same memory gives up.
const mapTimeout = 5 * time.Second

// open maps the memory with the driver.
func (p *mapping) open() (err error) {
	if !p.Share.Mappable() { // no other process can map it; the owner's process uses it directly on the same GPU
		switch {
		case p.Self && p.Peer == p.Device:
			return nil
		case p.Why != 0:
			return p.Why
		}
		return gpu.BadShare
	}
	if p.refused && !p.Self {
		return gpu.Forbidden
	}
	if p.driver.Owns(&p.Share) && !p.Self { // a false claim of the peer: the memory would be ours, at an address of the peer's choice
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

// opening reports that pieces are missing.
func (p *mapping) opening() bool {
	if p.at == nil {
		return false
	}
	s, _ := p.at.State()
	return s == gpu.MapOpening
}

// err is the error of a failed mapping.
func (p *mapping) err() error {
	if p.at == nil {
		return nil
	}
	_, err := p.at.State()
	return err
}

// await returns when the mapping is complete or has failed; err is the result of open. Another importer of the same
// memory may be cancelled while it fetches the pieces. Then we unmap and open again, and this mapping may become the
// importer.
func (p *mapping) await(ctx context.Context, err error) error {
	if gpu.Is(err, gpu.SamePID) {
		return p.prove(ctx)
	}
	for until := time.Now().Add(mapTimeout); ; {
		if err == nil && p.importer {
			err = p.fetch(ctx)
		}
		for err == nil && p.opening() {
			if !pause(ctx) {
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
		if !pause(ctx) {
			return err
		}
		err = p.open()
	}
}

// pause sleeps one millisecond. False: ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Millisecond):
		return true
	}
}

// proofs is the number of tries to map memory by a proof: the application may write to the memory meanwhile.
const proofs = 3

// prove maps memory whose owner's process number equals ours, by proofs of the owner's.
func (p *mapping) prove(ctx context.Context) (err error) {
	for range proofs {
		proof, why := ipc.FetchProof(ctx, p.Owner, p.Key)
		if why != nil {
			return why
		}
		if p.at, err = p.driver.MapProved(p.Share, p.Device, proof); !gpu.Is(err, gpu.Unproved) {
			return err
		}
	}
	return err
}

// fetch gets the pieces from the descriptor server of the owner.
func (p *mapping) fetch(ctx context.Context) error {
	err := ipc.FetchPieces(ctx, p.Owner, p.Key, p.Share.Pieces(), p.at.Add)
	if err != nil && ctx.Err() == nil {
		p.at.Fail(whyOf(err))
	}
	return err
}

// view is a peer's file that is being mapped, or is mapped.
type view struct {
	cancel  context.CancelFunc
	over    chan struct{} // closed when no goroutine works on the view
	mapping *fileMapping
}

// beginView fetches and maps the file of a view. A goroutine waits for the owner; the ring serves meanwhile, and if that fails.
func (m *mapper) beginView(v cma.View) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &view{cancel: cancel, over: make(chan struct{})}
	m.views[v] = w
	info := m.core.ViewInfo(v)
	go func() {
		defer close(w.over)
		if err := w.open(ctx, info); err != nil {
			m.core.SetLastError("cannot map the peer's shared memory: " + err.Error())
			v.Finish(nil, false, cma.FileID{}, retryAfter(err))
			return
		}
		v.Finish(w.mapping.At, w.mapping.Writable, cma.FileID{Dev: w.mapping.Dev, Inode: w.mapping.Inode, Offset: w.mapping.Offset}, 0)
	}()
}

// retryAfter is the time until a view that failed is tried again; 0: it is not.
func retryAfter(err error) time.Duration {
	if errors.Is(err, errHole) || gpu.Is(err, gpu.Silent) || gpu.Is(err, gpu.NoFDs) || gpu.Is(err, gpu.Changed) {
		return time.Second
	}
	return 0
}

func (w *view) open(ctx context.Context, info cma.ViewInfo) error {
	fd, offset, err := ipc.FetchFile(ctx, info.Owner, info.Key)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if ctx.Err() != nil {
		return gpu.Cancelled
	}
	w.mapping, err = mapFile(fd, offset, info.Length)
	return err
}

// endView unmaps a view through which nothing is copied any more, and frees it.
func (m *mapper) endView(v cma.View) {
	w := m.views[v]
	delete(m.views, v)
	w.cancel()
	<-w.over
	if w.mapping != nil {
		w.mapping.Close()
	}
	m.core.FreeView(v)
}

// Changed implements provider.Host.
func (r *rail) Changed() <-chan struct{} { return r.mapper.changed }

// Mapping implements provider.Host.
func (r *rail) Mapping() bool { return r.core.Mapping() }

// Mapped implements provider.Host.
func (r *rail) Mapped() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	return r.core.Viewed()
}
