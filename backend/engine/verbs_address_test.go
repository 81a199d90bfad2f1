package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/topo"
	"gorail/backend/transfer"
	imitation "gorail/test/verbs"
)

// roce is two hosts, ann's with device hca0 over interface roce0, bob's with hca1 over roce1, and the addresses of the interfaces. The kernel's GID
// tables have them, too. Control connections go over lo.
type roce struct {
	*pair
	h    *harness
	gids *imitation.GIDs
	mu   sync.Mutex
	has  [2][]netip.Addr
}

// Beginnings of the addresses of a wire.
const (
	v4 = "10.9.0."
	v6 = "2001:db8::"
)

func onRoCE(t *testing.T, wire string, n int) *roce {
	h := onVerbs(t, 2)
	r := &roce{h: h, gids: h.lib.GIDs()}
	h.gids, h.nets = r.gids, r.nets
	for i := range 2 {
		r.gets(i, 0, fmt.Sprint(wire, i+1))
	}
	params := []string{"control_devices", "lo", "ib_retry_count", "3"}
	side := func(i int, name string) *agent {
		return h.agent(name, append(params, "devices", fmt.Sprint("hca", i))...)
	}
	r.pair = &pair{a: side(0, "ann"), b: side(1, "bob")}
	loadBoth(r.a, r.b)
	r.mine, r.theirs = r.a.memory(n), r.b.memory(n).seenBy(r.a)
	return r
}

func (r *roce) nets() []topo.Interface {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []topo.Interface{{Name: "lo", Up: true, Loopback: true, Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}}
	for i, has := range r.has {
		f := topo.Interface{Name: fmt.Sprint("roce", i), Index: 2 + i, Up: true}
		for _, a := range has {
			bits := 24
			if a.Is6() {
				bits = 64
			}
			f.Addrs = append(f.Addrs, netip.PrefixFrom(a, bits))
		}
		list = append(list, f)
	}
	return list
}

// gets gives an interface an address, which is entered into the GID table, and tells the engine.
func (r *roce) gets(host, index int, addr string) {
	a := netip.MustParseAddr(addr)
	r.mu.Lock()
	r.has[host] = append(slices.Clone(r.has[host]), a)
	r.mu.Unlock()
	r.gids.Set(host, index, a, fmt.Sprint("roce", host))
	r.events(host)
}

// loses takes all addresses of an interface, and tells the engine.
func (r *roce) loses(host int) {
	r.empty(host)
	r.events(host)
}

// empty takes all addresses of an interface.
func (r *roce) empty(host int) {
	r.mu.Lock()
	r.has[host] = nil
	r.mu.Unlock()
	for i := range 4 {
		r.gids.Set(host, i, netip.Addr{}, "")
	}
}

// events tells the engine of a host that addresses and GIDs have changed.
func (r *roce) events(host int) {
	if r.pair != nil {
		r.h.lib.Event(host, imitation.GIDChange, 1)
		[]*agent{r.a, r.b}[host].watcher.readdressed()
	}
}

// atEachHost runs a test of a pair over RoCE for each host, whose address it changes.
func atEachHost(t *testing.T, f func(t *testing.T, r *roce, host int)) {
	for host := range 2 {
		t.Run(fmt.Sprint("host ", host), func(t *testing.T) {
			t.Parallel()
			f(t, onRoCE(t, v4, 1<<20), host)
		})
	}
}

// works posts in a direction until a transfer is through.
func (r *roce) works(op int) {
	r.h.Helper()
	r.mine.b[5]++
	r.theirs.b[9]++
	x := r.a.whole(op, r.mine, r.theirs)
	defer x.release()
	until(r.h, "a transfer is through", func() bool {
		_, err := x.Post()
		return err == nil && x.wait() == done
	})
	r.same()
}

// The address of a RoCE device's interface is replaced at either end, or at both in turn; while nothing is under way, or in the middle of a transfer.
// The kernel puts the new address at the same index of the GID table or at another one. The session goes on over the new addresses.
func TestVerbsAddressReplaced(t *testing.T) {
	t.Parallel()
	for _, hosts := range [][]int{{0}, {1}, {0, 1}} {
		for index, wire := range []string{v4, v6} {
			for _, busy := range []bool{false, true} {
				t.Run(fmt.Sprint(hosts, wire, " index ", index, " busy ", busy), func(t *testing.T) {
					t.Parallel()
					r := onRoCE(t, wire, 4<<20)
					r.h.lib.Set("async", 1)
					for i, host := range hosts {
						r.works(transfer.Write)
						x := r.a.whole(transfer.Write, r.mine, r.theirs)
						if busy {
							r.mine.b[7]++
							x.post()
						}
						r.loses(host)
						now := fmt.Sprint(wire, 66+i)
						r.gets(host, index, now)
						until(t, "the rail has moved", func() bool {
							return r.h.log.has(fmt.Sprintf("%s%d of roce%d is gone, now %s", wire, host+1, host, now))
						})
						if busy && x.wait() == done {
							r.same()
						}
						x.release()
						r.works(transfer.Write)
						r.works(transfer.Read)
					}
				})
			}
		}
	}
}

// A RoCE device's interface loses its address, and the index of the GID table is filled by an address of another subnet, which no peer reaches. The
// rail does not take that one while its own subnet may come back. Transfers end with an error; with an address of the subnet they work.
func TestVerbsAddressOfAnotherSubnet(t *testing.T) {
	t.Parallel()
	atEachHost(t, func(t *testing.T, r *roce, host int) {
		r.works(transfer.Write)
		r.empty(host)
		r.h.lib.Event(host, imitation.GIDChange, 1)
		until(t, "the device has said so", func() bool { return r.h.log.has(fmt.Sprintf("GID table change: 10.9.0.%d is gone", host+1)) })
		r.gets(host, 0, "192.0.2.9")
		until(t, "the rail is known to be away", func() bool { return r.h.log.has(fmt.Sprintf("roce%d", host), "has lost its address") })
		x := r.a.whole(transfer.Read, r.mine, r.theirs)
		x.post()
		require.False(t, r.h.log.has("192.0.2.9 at index"), "the rail took it")
		r.gets(host, 1, "10.9.0.66")
		until(t, "the rail has moved", func() bool { return r.h.log.has("is gone, now 10.9.0.66") })
		x.wait()
		x.release()
		r.works(transfer.Write)
		r.works(transfer.Read)
		require.False(t, r.h.log.has("192.0.2.9 at index"), "the rail took it")
		require.False(t, r.h.log.has("cannot open a new endpoint for a link", "agent=ann"), "it waits for the address, and keeps its session")
	})
}

// The kernel looks for the neighbour of a new connection, and meanwhile the address of the connection's own end is replaced. The index that
// the connection was about to use has another address then, from which the peer takes nothing. The connection is not used, and the log says
// why.
func TestVerbsAddressReplacedWhileConnecting(t *testing.T) {
	t.Parallel()
	atEachHost(t, func(t *testing.T, r *roce, host int) {
		r.h.lib.Set("async", 1)
		r.works(transfer.Write)
		r.h.lib.Set("hold_rtr", 1<<host)
		t.Cleanup(func() { r.h.lib.Set("hold_rtr", 0) })
		r.h.lib.Break()
		x := r.a.whole(transfer.Write, r.mine, r.theirs)
		x.post()
		until(t, "an endpoint is being connected", func() bool { return r.h.lib.Count("held") > 0 })
		r.loses(host)
		r.gets(host, 0, "10.9.0.66")
		r.h.lib.Set("hold_rtr", 0)
		until(t, "the rail has moved", func() bool {
			return r.h.log.has(fmt.Sprintf("10.9.0.%d of roce%d is gone, now 10.9.0.66", host+1, host))
		})
		s := x.wait()
		t.Log(errcode.Status(s))
		x.release()
		require.True(t, r.h.log.has(fmt.Sprintf("connect from 10.9.0.%d, which is not at index 0 of the GID table any more", host+1)))
		r.works(transfer.Write)
		r.works(transfer.Read)
	})
}
