package tcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
)

// nvMapper maps peers' memory and makes streams, as posts ask for it (sock/import.c). A mapping waits for its owner in a goroutine.
type nvMapper struct {
	n        *nvlink
	doorbell *os.File
	ended    chan struct{}
	ending   sync.Once
	changed  chan struct{} // a peer has found memory of ours that is not what was registered

	finishing sync.Mutex             // serializes Rail.Mapped
	mappings  map[sock.Import]*nvMap // used by run's goroutine alone

	mu        sync.Mutex
	endpoints map[uint64]*nvEndpoint // by number
	idle      sync.Cond
	done      uint64 // tasks that have run
}

// nvMap is a region of a peer.
type nvMap struct {
	sock.ImportInfo
	at       *gpu.Map
	cancel   context.CancelFunc
	over     chan struct{} // closed when no goroutine works on it
	finished bool          // before over is closed
}

const (
	// nvAnswer is how long the owner may take for a frame of handles: 512 take it 0.3 s at most. It may starve.
	nvAnswer = 5 * time.Second
	// nvAsks is how many regions of an endpoint ask at a time: the owner makes handles for one request after the other, so that the last is answered
	// well within nvAnswer.
	nvAsks = 8
	// nvSettle is how long a revocation waits for memory to be unmapped. That takes 0.1 ms a handle.
	nvSettle = 5 * time.Second
)

// nvSenders numbers endpoints, so that no two share a mapping. Shares of shared memory have other numbers.
var nvSenders atomic.Uint32

func newNVMapper(n *nvlink, how gpu.How) (*nvMapper, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	m := &nvMapper{n: n, doorbell: os.NewFile(uintptr(fd), "eventfd"), ended: make(chan struct{}), changed: make(chan struct{}, 1),
		mappings: map[sock.Import]*nvMap{}, endpoints: map[uint64]*nvEndpoint{}}
	m.idle.L = &m.mu
	if err := n.r.c.Bulk(fd, how); err != nil {
		_ = m.doorbell.Close()
		return nil, err
	}
	go m.run()
	return m, nil
}

func (m *nvMapper) opened(e *nvEndpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpoints[e.number] = e
}

func (m *nvMapper) closed(e *nvEndpoint) {
	m.mu.Lock()
	delete(m.endpoints, e.number)
	m.mu.Unlock()
	m.settle()
}

// settle waits until the tasks asked for so far have run: what no copy uses is unmapped then.
func (m *nvMapper) settle() { m.settleWithin(nvSettle) }

func (m *nvMapper) settleWithin(patience time.Duration) {
	all, until := m.n.r.c.TasksAsked(), time.Now().Add(patience)
	m.mu.Lock()
	defer m.mu.Unlock()
	look := time.AfterFunc(patience, m.idle.Broadcast)
	defer look.Stop()
	for m.done < all && (patience == 0 || time.Now().Before(until)) {
		m.idle.Wait()
	}
}

// end ends the mapper. No endpoint is open.
func (m *nvMapper) end() {
	m.ending.Do(func() {
		m.settle()
		_ = m.doorbell.Close()
		<-m.ended
	})
}

func (m *nvMapper) run() {
	defer close(m.ended)
	var count [8]byte
	for {
		if _, err := m.doorbell.Read(count[:]); err != nil {
			return
		}
		for {
			t, ok := m.n.r.c.NextTask()
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

func (m *nvMapper) do(t sock.Task) {
	switch t.What {
	case sock.TaskMap:
		m.begin(t.In)
	case sock.TaskUnmap:
		m.unmap(t.In)
	case sock.TaskPair:
		m.n.r.c.MakePair(t)
	case sock.TaskChanged:
		m.n.r.c.Told()
		m.noteChanged()
	}
}

// noteChanged says that memory of ours may not be what was registered.
func (m *nvMapper) noteChanged() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *nvMapper) begin(in sock.Import) {
	p := &nvMap{ImportInfo: in.Info(), over: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	m.mappings[in] = p
	go func() {
		defer close(p.over)
		err := m.open(ctx, p)
		if ctx.Err() == nil {
			m.finish(in, p, err)
		}
	}()
}

// open maps the memory: a frame of handles at a time.
func (m *nvMapper) open(ctx context.Context, p *nvMap) error {
	m.mu.Lock()
	e := m.endpoints[p.Conn]
	m.mu.Unlock()
	if e == nil {
		return gpu.Cancelled
	}
	e.mu.Lock()
	ask := e.sec.Handles
	e.mu.Unlock()
	if ask == nil {
		return gpu.BadShare
	}
	d, err := m.n.gpus.Open()
	if err != nil {
		return err
	}
	source := 1<<30 | nvSenders.Add(1)&(1<<30-1)
	for first := uint32(0); ; {
		got, err := e.ask(ctx, ask, p, first)
		if err != nil {
			return err
		}
		if first == 0 {
			if err := p.reserve(d, got.Share, source); err != nil {
				return err
			}
		}
		handles, sizes := decodeHandles(got.List)
		if err := p.at.AddHandles(handles, sizes); err != nil {
			return err
		}
		if s, err := p.at.State(); s != gpu.MapOpening {
			return err
		}
		first += uint32(len(handles))
	}
}

// ask asks for a frame of handles, when fewer than nvAsks regions ask.
func (e *nvEndpoint) ask(ctx context.Context, ask func(context.Context, uint64, uint64, uint32) (provider.Handles, error), p *nvMap, first uint32) (provider.Handles, error) {
	select {
	case e.asks <- struct{}{}:
	case <-ctx.Done():
		return provider.Handles{}, gpu.Cancelled
	}
	defer func() { <-e.asks }()
	ctx, cancel := context.WithTimeout(ctx, nvAnswer)
	defer cancel()
	return ask(ctx, p.Key, p.Base, first)
}

// reserve takes addresses for memory that a peer describes.
func (p *nvMap) reserve(d *gpu.Driver, bytes []byte, source uint32) (err error) {
	var s gpu.Share
	if len(bytes) != len(s) {
		return gpu.BadShare
	}
	copy(s[:], bytes)
	if s.Pieces() == 0 || d.Owns(&s) || !s.Covers(p.Addr, p.Size) {
		return gpu.BadShare
	}
	s.From(source)
	p.at, _, err = d.Map(s, p.Device)
	return err
}

// finish tells the rail how a mapping has ended.
func (m *nvMapper) finish(in sock.Import, p *nvMap, err error) {
	delta := uint64(0)
	c := m.n.r.c
	if err != nil {
		c.SetLastError("cannot map the peer's GPU memory over NVLink: " + nvError(err))
		m.warnOf(p, err)
		p.close()
	} else {
		delta = p.at.At(p.Addr) - p.Addr
	}
	m.finishing.Lock()
	defer m.finishing.Unlock()
	p.finished = true
	if !c.Mapped(in, whyOf(err), delta) {
		p.close()
	}
}

// warnOf is for the operator, if the reason is one that can be mended.
func (m *nvMapper) warnOf(p *nvMap, err error) {
	switch why := whyOf(err); why {
	case gpu.NotAway, gpu.Silent, gpu.Cancelled, gpu.Changed, gpu.Unmapped, gpu.NoMemory, gpu.NotBoth: // the log has what is done instead
	case gpu.NoFabric:
		m.n.warn(fmt.Sprintf("GPU %d cannot map memory of a peer over NVLink, transfers go another way: the peer's driver exports no handle; the peer's log has the reason", p.Device))
	default:
		m.n.warn(fmt.Sprintf("GPU %d cannot map memory of a peer over NVLink, transfers go another way: %s%s", p.Device, nvError(err), remedy(err)))
	}
}

func whyOf(err error) gpu.Why {
	if err == nil {
		return 0
	}
	why := gpu.Failed
	_ = errors.As(err, &why)
	return why
}

func nvError(err error) string {
	if f := (*gpu.Fault)(nil); errors.As(err, &f) && f.Call != "" {
		return fmt.Sprintf("%s: %v: %s", f.Call, f.Why, f.Text)
	}
	return whyOf(err).Error()
}

func (p *nvMap) close() {
	if p.at != nil {
		_ = p.at.Close()
	}
	p.at = nil
}

// unmap ends a mapping that no job uses.
func (m *nvMapper) unmap(in sock.Import) {
	p := m.mappings[in]
	delete(m.mappings, in)
	p.cancel()
	<-p.over
	if !p.finished {
		m.n.r.c.Abandon()
		if p.at != nil {
			p.at.Fail(gpu.Cancelled)
		}
	}
	p.close()
	in.Free()
}
