package peer

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// proxy is a path to a node: it forwards connections to the node, and can disturb them as a network does.
type proxy struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	limit func() int // bytes that the next connection carries before it is cut; nil: any number
	black bool       // drops all data silently
	shut  bool       // connections that are still being accepted are closed
	open  map[*tunnel]struct{}
	taken []byte // bytes that the initiator wrote on the last connection
}

// tunnel is one forwarded connection.
type tunnel struct {
	a, b *net.TCPConn
	left int // bytes until it is cut; negative: never
}

func newProxy(t *testing.T, to *Node) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, to: to.Addrs()[0], open: make(map[*tunnel]struct{})}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		p.close()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		there, err := net.Dial("tcp", p.to)
		if err != nil {
			c.Close()
			continue
		}
		tun := &tunnel{a: c.(*net.TCPConn), b: there.(*net.TCPConn), left: -1}
		p.mu.Lock()
		if p.shut {
			p.mu.Unlock()
			c.Close()
			there.Close()
			return
		}
		if p.limit != nil {
			tun.left = p.limit()
		}
		p.open[tun] = struct{}{}
		p.taken = nil
		p.mu.Unlock()
		p.wg.Go(func() { p.forward(tun, tun.a, tun.b, true) })
		p.wg.Go(func() { p.forward(tun, tun.b, tun.a, false) })
	}
}

func (p *proxy) forward(tun *tunnel, from, to *net.TCPConn, record bool) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		cut := tun.left >= 0 && n >= tun.left
		if tun.left >= 0 {
			n = min(n, tun.left)
			tun.left -= n
		}
		black := p.black
		if record {
			p.taken = append(p.taken, buf[:n]...)
		}
		p.mu.Unlock()
		if black && err != nil {
			return
		}
		if black {
			continue
		}
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err == io.EOF && !cut {
			_ = to.CloseWrite()
			return
		}
		if cut || err != nil {
			p.end(tun)
			return
		}
	}
}

// end cuts a connection, every second one with a reset.
func (p *proxy) end(tun *tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, tun)
	for _, c := range []*net.TCPConn{tun.a, tun.b} {
		if len(p.open)%2 == 0 && tun.left%2 == 0 {
			_ = c.SetLinger(0)
		}
		c.Close()
	}
}

// cut ends all connections. Later connections are forwarded.
func (p *proxy) cut() {
	p.mu.Lock()
	var all []*tunnel
	for tun := range p.open {
		all = append(all, tun)
	}
	p.mu.Unlock()
	for _, tun := range all {
		p.end(tun)
	}
}

// close makes the address refuse connections.
func (p *proxy) close() {
	p.l.Close()
	p.mu.Lock()
	p.shut = true
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) spoil(limit func() int, black bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit, p.black = limit, black
}

func (p *proxy) wrote() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]byte(nil), p.taken...)
}

// multipath is a ready session with a target behind several paths. It uses the first path.
type multipath struct {
	*pair
	paths []*proxy
}

func newMultipath(t *testing.T, paths int, change ...func(*Config)) *multipath {
	t.Helper()
	r := &multipath{pair: &pair{i: newInitiator(), s: newTarget()}}
	r.to, r.from = listen(t, r.s, change...), listen(t, newTarget(), change...)
	b := blob(r.to)
	b.Control = nil
	for range paths {
		p := newProxy(t, r.to)
		r.paths = append(r.paths, p)
		b.Control = append(b.Control, p.l.Addr().String())
	}
	r.dial(t, b)
	return r
}

func (r *multipath) dial(t *testing.T, to wire.ConnBlob) {
	t.Helper()
	r.out = r.from.Dial(to, 0, r.i)
	want[evOffers](t, r.i.events)
	r.in = want[evHello](t, r.s.events).in
	want[evReady](t, r.i.events)
}

// works makes a round trip over the session. No other event may have happened on it.
func (r *multipath) works(t *testing.T) {
	t.Helper()
	r.out.Fence(77, 1, 1, nil)
	require.Equal(t, uint64(77), want[evFenced](t, r.i.events).f.ID)
	r.in.Revoke(78, nil)
	require.Equal(t, uint64(78), want[evRevoke](t, r.i.events).id)
	require.Empty(t, r.i.events)
	require.Empty(t, r.s.events)
}

// resumed waits until both sides have resumed n times.
func (r *multipath) resumed(t *testing.T, n uint64) {
	t.Helper()
	eventually(t, func() bool { return r.from.Stats().Resumed >= n && r.to.Stats().Resumed >= n }, "resumed")
}
