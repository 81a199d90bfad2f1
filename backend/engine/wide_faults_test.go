package engine

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/session"
	"gorail/backend/transfer"
	"gorail/test/fake"
)

// faulty is a provider whose devices may fail, by their names; nil: none does.
type faulty struct {
	provider.Provider
	open, endpoint, connect func(name string) error
}

func (p *faulty) Open(d provider.Device) (provider.Rail, error) {
	if err := fails(p.open, d.Name); err != nil {
		return nil, err
	}
	r, err := p.Provider.Open(d)
	return &faultyRail{r, p}, err
}

func fails(f func(name string) error, name string) error {
	if f == nil {
		return nil
	}
	return f(name)
}

type faultyRail struct {
	provider.Rail
	p *faulty
}

func (r *faultyRail) OpenEndpoint() (provider.Endpoint, error) {
	if err := fails(r.p.endpoint, r.Device().Name); err != nil {
		return nil, err
	}
	ep, err := r.Rail.OpenEndpoint()
	if l, ok := ep.(provider.Listener); ok && err == nil {
		return &struct {
			provider.Endpoint
			provider.Listener
		}{&faultyEndpoint{ep, r}, l}, nil
	}
	return &faultyEndpoint{ep, r}, err
}

type faultyEndpoint struct {
	provider.Endpoint
	r *faultyRail
}

func (e *faultyEndpoint) Connect(peer []byte) error {
	if err := fails(e.r.p.connect, e.r.Device().Name); err != nil {
		return err
	}
	return e.Endpoint.Connect(peer)
}

// wideFaulty makes two agents with six rails on each of two NUMA nodes. A region is on three of them. The devices of the first agent fail as f says.
// The session's first two links are up. Both agents have memory of node 1, on rails 6 to 8.
func wideFaulty(t *testing.T, caps fake.Caps, f faulty) *pair {
	h := onWide(t, 6, 3, caps)
	far := h.wrap
	h.wrap = func(p provider.Provider) provider.Provider {
		f.Provider = far(p)
		return &f
	}
	p := &pair{a: h.agent("ann")}
	h.wrap = far
	p.b = h.agent("bob")
	loadBoth(p.a, p.b)
	p.a.connected("bob")
	p.mine, p.theirs = p.a.on(1).memory(1<<20), p.b.on(1).memory(1<<20).seenBy(p.a)
	return p
}

// worksOver posts until all rails near to the memory of node 1 have links that work, but for those that may not. Each post ends well.
func (p *pair) worksOver(t *testing.T, rails ...int) {
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	defer x.release()
	until(t, fmt.Sprint("links over rails ", rails), func() bool {
		x.run("")
		p.same()
		r := p.a.remote("bob")
		for _, rail := range rails {
			if r.count(func(l *session.Link) bool { return l.Proved && l.Rail.Index == rail }) == 0 {
				return false
			}
		}
		return true
	})
}

// An endpoint or a connection of a link that begins fails once, or always, or the device does not open: the other links carry the bytes, and what
// fails once is tried again. A session is never lost by it.
func TestWideFaults(t *testing.T) {
	t.Parallel()
	once := func(err error) func(string) error {
		var failed atomic.Bool
		return func(name string) error {
			if name == "fake7" && !failed.Swap(true) {
				return err
			}
			return nil
		}
	}
	always := func(names string, err error) func(string) error {
		return func(name string) error {
			if name >= "fake6" && name <= names {
				return err
			}
			return nil
		}
	}
	full := fmt.Errorf("%w: %w", provider.ErrEndpoint, syscall.EMFILE)
	for name, c := range map[string]struct {
		f    func() faulty
		want []int
	}{
		"an endpoint fails once":         {func() faulty { return faulty{endpoint: once(full)} }, []int{6, 7, 8}},
		"a connection fails once":        {func() faulty { return faulty{connect: once(provider.ErrBadAddress)} }, []int{6, 7, 8}},
		"an endpoint always fails":       {func() faulty { return faulty{endpoint: always("fake6", full)} }, []int{7, 8}},
		"a device does not open":         {func() faulty { return faulty{open: always("fake6", syscall.EACCES)} }, []int{7, 8}},
		"no device near to memory opens": {func() faulty { return faulty{open: always("fake8", syscall.EACCES)} }, nil},
		"no endpoint near to it opens":   {func() faulty { return faulty{endpoint: always("fake8", full)} }, nil},
	} {
		for kind, caps := range map[string]fake.Caps{"ordered": fake.TCPCaps(), "secured": fake.SecuredCaps(), "shared": sharedCaps()} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				p := wideFaulty(t, caps, c.f())
				p.worksOver(t, c.want...)
				require.Equal(t, transfer.Ready, p.a.remote("bob").Peer().View().State)
			})
		}
	}
}

// Memory of eight places at each side needs more pairs of rails than a session may have links: each two places get some.
func TestWideManyPlaces(t *testing.T) {
	t.Parallel()
	h := onWide(t, 16, 4, fake.SecuredCaps())
	for i := range h.links {
		h.links[i].Node = 1 + i/4
	}
	p := &pair{a: h.agent("ann"), b: h.agent("bob")}
	loadBoth(p.a, p.b)
	var mine, theirs []*memory
	for node := range 8 {
		mine, theirs = append(mine, p.a.on(node).memory(1<<16)), append(theirs, p.b.on(node).memory(1<<16).seenBy(p.a))
	}
	for i := range mine {
		for j := range theirs {
			p.mine, p.theirs = mine[i].fill(uint64(8*i+j)), theirs[j]
			x := p.a.whole(transfer.Write, p.mine, p.theirs)
			x.run("")
			p.same()
			x.release()
		}
	}
}

// A list may have memory of several places: all host memory has two rails in common.
func TestWideList(t *testing.T) {
	t.Parallel()
	h := onWide(t, 6, 3, fake.SecuredCaps())
	p := &pair{a: h.agent("ann"), b: h.agent("bob")}
	loadBoth(p.a, p.b)
	var here, there []Desc
	var bufs [2][]*memory
	for node := range 2 {
		mine, theirs := p.a.on(node).memory(1<<20), p.b.on(node).memory(1<<20)
		bufs[0], bufs[1] = append(bufs[0], mine.fill(uint64(node))), append(bufs[1], theirs)
		here, there = append(here, mine.desc(0, 1<<20)), append(there, theirs.seenBy(p.a).desc(0, 1<<20))
	}
	x := p.a.prep(transfer.Write, here, there, "bob")
	x.run("")
	for i := range bufs[0] {
		require.Equal(t, bufs[0][i].b, bufs[1][i].b)
	}
	x.release()
}
