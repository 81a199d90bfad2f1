package region

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// renewing is a registry whose GPU memory the test changes. Its rails, driver, transfers and peers are one object: it notes what happens.
type renewing struct {
	*Registry
	log    strings.Builder
	events []string
	until  time.Time // the deadline of EndTransfers
	holder *Holder
	silent bool // the peer does not answer

	mu       sync.Mutex
	there    map[uint64]uint64 // identities by address
	misfit   error             // of Check
	asked    atomic.Int32      // looks of the rails' registrations
	checks   atomic.Int32
	blocking chan struct{}
}

func (w *renewing) note(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf(format, args...))
}

func (w *renewing) Identity(addr, _ uint64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.there[addr]
}

func (w *renewing) Check(uint64, uint64, int) error         { w.checks.Add(1); return w.misfit }
func (w *renewing) Registering(uint64, uint64) (end func()) { return func() {} }
func (w *renewing) Pin(uint64, uint64) error                { return nil }
func (w *renewing) Unpin(uint64, uint64) error              { return nil }

func (w *renewing) EndTransfers(gone []*Region, deadline time.Time, why string) {
	w.note("end %d: %s", len(gone), why)
	w.until = deadline
}

// peer is a session whose peer answers REVOKEs, unless it is silent.
func (w *renewing) peer() *Holder {
	h := &Holder{NextID: func() uint64 { return 1 }, Late: func() {}}
	h.Send = func(id uint64, regions []uint64, renewed bool) {
		if renewed {
			w.note("renew %d", len(regions))
		}
		if !w.silent {
			h.Answered(id)
		}
	}
	h.Overdue = func(why string) { w.note("overdue %v: %s", !time.Now().Before(w.until), why) }
	return h
}

// renewingRail takes memory from `from` on.
type renewingRail struct {
	provider.Rail
	w    *renewing
	from uint64
}

func (renewingRail) Device() provider.Device { return provider.Device{Fabric: "fake", Name: "hca"} }
func (r renewingRail) RegisterVRAM(addr, _ uint64, _ int, _ option.Rights) (provider.MR, error) {
	if addr < r.from {
		return nil, provider.ErrNoVRAM
	}
	return &renewingMR{r.w, addr, r.w.Identity(addr, 0)}, nil
}

type renewingMR struct {
	w        *renewing
	addr, is uint64
}

func (m *renewingMR) Base() uint64             { return m.addr }
func (m *renewingMR) Key(provider.Salt) uint64 { return 0 }
func (m *renewingMR) Desc() unsafe.Pointer     { return nil }
func (m *renewingMR) Close() error             { return nil }
func (m *renewingMR) Same() error {
	m.w.asked.Add(1)
	if m.w.blocking != nil {
		m.w.blocking <- struct{}{}
		<-m.w.blocking
	}
	if m.w.Identity(m.addr, 0) != m.is {
		return provider.ErrNotThere
	}
	return nil
}

// Rails of a renewing: the first takes all memory and pins none, the others pin memory from pinnedFrom on.
const pinnedFrom = 1 << 30

func newRenewing(t *testing.T, count int) *renewing {
	opt, _, err := option.Parse(nil, nil)
	require.NoError(t, err)
	c, err := core.New(core.Config{Slots: opt.Slots(), WindowMin: opt.WindowMin, WindowMax: opt.WindowMax,
		NotifQueue: opt.NotifQueue, NotifMemory: opt.NotifMemory})
	require.NoError(t, err)
	t.Cleanup(func() { c.Stop(); c.Free() })
	w := &renewing{there: map[uint64]uint64{}}
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	set := rails.New(opt, log, nil, nil)
	set.Slots = opt.Slots()
	for i := range count {
		r := &rails.Rail{Rail: renewingRail{w: w}, Index: i}
		if i > 0 {
			r.Rail = renewingRail{w: w, from: pinnedFrom}
			r.SetCan(provider.Caps{PinsMemory: true})
		}
		set.List = append(set.List, r)
	}
	w.Registry = NewRegistry(opt, log, c, set, GPU{w.Registering, w.Check, w.Identity, w.Pin, w.Unpin, nil}, w.EndTransfers)
	w.holder = w.peer()
	return w
}

// register registers memory. The peer gets keys of it.
func (w *renewing) register(t *testing.T, addr uint64) *Region {
	w.put(addr, 1)
	id, err := w.Register(wire.Range{Addr: addr, Len: 4096, Mem: VRAM}, option.PeersBoth)
	require.NoError(t, err)
	r := w.Regions.Get(id)
	require.True(t, w.KeysFor([]wire.Claim{r.Claim}, w.holder)[0].Known)
	return r
}

// put puts other memory at an address; 0: none.
func (w *renewing) put(addr, is uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there[addr] = is
}

// settle looks until what is there has settled.
func (w *renewing) settle() {
	for start, looks := time.Now(), 0; looks < 10 || time.Since(start) < 3*Settled; time.Sleep(time.Millisecond) { // a starved process looks late
		w.Recheck()
		looks++
	}
}

// copy makes a peer's copy of a region.
func (w *renewing) copy(t *testing.T, r *Region) {
	held, err := w.HoldForCopy([]wire.Claim{r.Claim}, option.PeersRead)
	require.NoError(t, err)
	w.Copied(held)
}

// Memory that does not fit the registration is tried once. Its peers are told once, and other memory is tried again.
func TestRenewMisfit(t *testing.T) {
	w := newRenewing(t, 1)
	r := w.register(t, 4096)
	<-w.Renewals() // the first memory of a GPU
	w.misfit = provider.ErrNotThere
	w.put(r.Addr, 2)
	checks := w.checks.Load()
	w.settle()
	require.Equal(t, checks, w.checks.Load(), "questions that the driver does not bear while no transfer holds the memory")
	w.copy(t, r)
	w.copy(t, r)
	w.settle()
	require.EqualValues(t, 1, w.checks.Load()-checks, "questions that the driver may not bear")
	require.Equal(t, []string{"renew 1"}, w.events)
	require.Equal(t, 1, strings.Count(w.log.String(), "level=INFO msg=\"GPU memory was unmapped"))
	require.Equal(t, 1, strings.Count(w.log.String(), "cannot be registered"))
	w.copy(t, r)
	require.Empty(t, w.Renewals(), "a copy of refused memory asks for a look")
	w.misfit = nil
	w.settle()
	w.copy(t, r)
	require.True(t, r.asleep(), "the same memory")
	w.put(r.Addr, 3)
	w.settle()
	require.True(t, r.asleep(), "nobody uses it")
	require.NoError(t, w.Hold([]*Region{r}))
	w.Copied([]*Region{r})
	require.False(t, r.asleep())
	require.EqualValues(t, 1, r.Rails.Load())
	require.NoError(t, w.Deregister(r.ID))
}

// Memory of devices has one deadline for all regions. What no device pins is revoked before.
func TestRenewPinned(t *testing.T) {
	w := newRenewing(t, 2)
	var all []*Region
	for i := range uint64(6) {
		all = append(all, w.register(t, i%2*pinnedFrom+(i+1)*4096))
	}
	for _, r := range all {
		w.put(r.Addr, 2)
	}
	w.silent, w.opt.CancelTimeout = true, 10*time.Millisecond
	w.Recheck()
	require.Equal(t, []string{"renew 3", "renew 3", "end 3: " + Anew, "overdue true: " + Anew}, w.events)
	w.silent = false
	for _, r := range all {
		require.True(t, r.asleep())
		require.True(t, r.Core.Live())
	}
	w.events = nil
	w.settle()
	for _, r := range all {
		w.copy(t, r)
	}
	require.Empty(t, w.events, "nobody has keys of memory that wakes")
	for i, r := range all {
		require.EqualValues(t, 1+2*(i%2), r.Rails.Load())
		require.NoError(t, w.Deregister(r.ID))
	}
}

// A look asks one rail for each region, and a deregistration does not wait for it. What was deregistered meanwhile is left alone.
func TestRenewLooks(t *testing.T) {
	w := newRenewing(t, 8)
	r, other := w.register(t, pinnedFrom), w.register(t, 2*pinnedFrom)
	w.Recheck()
	require.EqualValues(t, 2, w.asked.Load())
	require.NoError(t, w.Deregister(other.ID))
	w.events = nil
	w.put(r.Addr, 2)
	w.blocking = make(chan struct{})
	looked := make(chan struct{})
	go func() { w.Recheck(); close(looked) }()
	<-w.blocking
	ended := make(chan error)
	go func() { ended <- w.Deregister(r.ID) }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Error("a deregistration waits for a look")
		w.blocking <- struct{}{}
		require.NoError(t, <-ended)
		return
	}
	w.events = nil
	w.blocking <- struct{}{}
	<-looked
	require.Empty(t, w.events)
}

// Memory that is deregistered between the beginning of a copy and the registration anew stays deregistered.
func TestWakeDeregistered(t *testing.T) {
	w := newRenewing(t, 1)
	r := w.register(t, 4096)
	w.put(r.Addr, 2)
	w.settle()
	list, settled, err := w.holdClaimed([]wire.Claim{r.Claim}, option.PeersRead)
	require.NoError(t, err)
	require.Equal(t, []*Region{r}, settled)
	w.Copied(list)
	require.NoError(t, w.Deregister(r.ID))
	checks := w.checks.Load()
	w.wake(settled)
	require.Equal(t, checks, w.checks.Load())
}
