//go:build linux

package topo

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// watched is a network namespace of its own and a Watch in it.
type watched struct {
	t      *testing.T
	nl     *netlink.Handle
	cancel context.CancelFunc
	ended  chan struct{}
	under  *watcher   // the goroutine's until it has ended
	gate   sync.Mutex // who holds it holds up the watcher
	failed atomic.Int32

	mu     sync.Mutex
	events []Event
}

// skip says what the machine lacks; in CI that is a failure.
func skip(t *testing.T, why ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why...)
	}
	t.Skip(why...)
}

func watch(t *testing.T) *watched {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "network namespaces need root")
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watched{t: t, cancel: cancel, ended: make(chan struct{})}
	w.under = &watcher{table: linkTable{known: map[int]Event{}, report: w.tell}, failed: func(err error) { w.failed.Add(1) }}
	ready := make(chan error, 1)
	var ns netns.NsHandle
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its namespace
		var err error
		ns, err = netns.New()
		ready <- err
		if err == nil {
			w.under.watch(ctx)
			close(w.ended)
		}
	}()
	if err := <-ready; err != nil {
		cancel()
		skip(t, "cannot make a network namespace: ", err)
	}
	var err error
	w.nl, err = netlink.NewHandleAt(ns)
	require.NoError(t, err)
	t.Cleanup(func() {
		w.nl.Close()
		require.NoError(t, ns.Close())
		cancel()
	})
	w.sees(func(e Event) bool { return e.Name == "lo" && !e.Up && !e.Gone })
	return w
}

func (w *watched) tell(e Event) {
	w.gate.Lock()
	defer w.gate.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// sees waits for an event and forgets it and those before it.
func (w *watched) sees(ok func(Event) bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		all := slices.Clone(w.events)
		i := slices.IndexFunc(w.events, ok)
		w.events = w.events[i+1:]
		w.mu.Unlock()
		if i >= 0 {
			return
		}
		require.True(w.t, time.Now().Before(end), "no such event among %+v", all)
	}
}

func (w *watched) end() {
	w.t.Helper()
	w.cancel()
	select {
	case <-w.ended:
	case <-time.After(patience):
		w.t.Fatal("the watcher doesn't end")
	}
}

func (w *watched) link(name string) netlink.Link {
	w.t.Helper()
	l, err := w.nl.LinkByName(name)
	require.NoError(w.t, err)
	return l
}

func TestWatch(t *testing.T) {
	w := watch(t)
	require.NoError(t, w.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a0"}, PeerName: "b0"}))
	w.sees(func(e Event) bool { return e.Name == "a0" && !e.Up })
	a, b := w.link("a0"), w.link("b0")
	up := func(e Event) bool { return e.Name == "a0" && e.Index == a.Attrs().Index && e.Up && !e.Gone }
	down := func(e Event) bool { return e.Name == "a0" && !e.Up && !e.Gone && !e.Addrs }
	require.NoError(t, w.nl.LinkSetUp(a))
	require.NoError(t, w.nl.LinkSetUp(b))
	w.sees(up)
	require.NoError(t, w.nl.LinkSetDown(a))
	w.sees(down)
	require.NoError(t, w.nl.LinkSetUp(a))
	w.sees(up)
	require.NoError(t, w.nl.LinkSetDown(b)) // the far end: the carrier goes
	w.sees(down)
	require.NoError(t, w.nl.LinkSetUp(b))
	w.sees(up)
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	require.NoError(t, err)
	require.NoError(t, w.nl.AddrAdd(a, addr))
	w.sees(func(e Event) bool { return e.Name == "a0" && e.Addrs && e.Up })
	require.NoError(t, w.nl.AddrDel(a, addr))
	w.sees(func(e Event) bool { return e.Name == "a0" && e.Addrs && e.Up })
	require.NoError(t, w.nl.LinkSetDown(a))
	require.NoError(t, w.nl.LinkSetName(a, "c0"))
	w.sees(func(e Event) bool { return e.Name == "a0" && e.Gone })
	w.sees(func(e Event) bool { return e.Name == "c0" && !e.Gone })
	require.NoError(t, w.nl.LinkDel(a))
	w.sees(func(e Event) bool { return e.Name == "c0" && e.Gone && !e.Up })
	w.end()
}

// A port that leaves its bridge is not gone.
func TestWatchBridge(t *testing.T) {
	w := watch(t)
	if err := w.nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
		skip(t, "no bridges here: ", err)
	}
	require.NoError(t, w.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a0"}, PeerName: "b0"}))
	require.NoError(t, w.nl.LinkSetMaster(w.link("a0"), w.link("br0")))
	require.NoError(t, w.nl.LinkSetNoMaster(w.link("a0")))
	require.NoError(t, w.nl.LinkDel(w.link("br0")))
	w.sees(func(e Event) bool {
		require.False(t, e.Name == "a0" && e.Gone)
		return e.Name == "br0" && e.Gone
	})
	w.end()
}

// More changes than the socket holds, while the watcher is held up: what is true in the end is told.
func TestWatchOverrun(t *testing.T) {
	w := watch(t)
	for _, name := range []string{"a0", "c0"} {
		require.NoError(t, w.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
		w.sees(func(e Event) bool { return e.Name == name })
	}
	a, c := w.link("a0"), w.link("c0")
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	require.NoError(t, err)
	w.gate.Lock()
	require.NoError(t, w.nl.AddrAdd(a, addr)) // the watcher is told, and stuck
	for i := range 1000 {                     // some 200 fill the socket
		require.NoError(t, w.nl.LinkSetMTU(a, 1400+i%2))
	}
	require.NoError(t, w.nl.AddrDel(a, addr)) // lost
	require.NoError(t, w.nl.LinkDel(c))
	require.NoError(t, w.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "d0"}, PeerName: "d0p"}))
	w.gate.Unlock()
	w.sees(func(e Event) bool { return e.Name == "d0" && !e.Gone })
	w.sees(func(e Event) bool { return e.Name == "c0" && e.Gone }) // the answer ends with what it lacks
	w.sees(func(e Event) bool { return e.Name == "a0" && e.Addrs })
	require.NoError(t, w.nl.LinkSetUp(a))
	require.NoError(t, w.nl.LinkSetUp(w.link("a0p")))
	w.sees(func(e Event) bool { return e.Name == "a0" && e.Up })
	w.end()
	require.Greater(t, w.under.lists, 1, "nothing was lost: the test tests nothing")
}

// The watcher's socket fails. What changed before there is another one is told.
func TestWatchReopens(t *testing.T) {
	w := watch(t)
	require.NoError(t, w.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a0"}, PeerName: "b0"}))
	w.sees(func(e Event) bool { return e.Name == "a0" })
	w.gate.Lock()
	require.NoError(t, w.nl.LinkSetMTU(w.link("a0"), 1400))
	require.NoError(t, w.nl.LinkSetUp(w.link("a0"))) // holds the watcher up if it did not know
	require.NoError(t, w.nl.LinkSetUp(w.link("b0")))
	w.under.messages.Close()
	require.NoError(t, w.nl.LinkDel(w.link("a0")))
	require.NoError(t, w.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "c0"}, PeerName: "d0"}))
	w.gate.Unlock()
	w.sees(func(e Event) bool { return e.Name == "a0" && e.Gone })
	w.sees(func(e Event) bool { return e.Name == "c0" && !e.Gone }) // listed, or told by the other socket
	w.end()
	require.Positive(t, w.failed.Load())
}

func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	failed := func(err error) { require.NoError(t, err) }
	Watch(ctx, func(Event) {}, failed)
	ctx, cancel = context.WithCancel(context.Background())
	n := 0
	Watch(ctx, func(Event) { n++; cancel() }, failed)
	require.Equal(t, 1, n, "ended from inside")
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for range 50 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		Watch(ctx, func(Event) {}, failed)
		cancel()
	}
	now, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	require.LessOrEqual(t, len(now), len(fds)+2)
}
