package peer

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestRefusedEverywhere(t *testing.T) {
	r := newMultipath(t, 3, minute)
	start := time.Now()
	for _, p := range r.paths {
		p.l.Close()
	}
	r.paths[0].cut()
	err := want[evLost](t, r.i.events).err
	assert.Less(t, time.Since(start), time.Second)
	assert.ErrorIs(t, err, ErrDropped)
	assert.ErrorContains(t, err, "refused")
	assert.ErrorContains(t, err, r.paths[2].l.Addr().String())
	assert.Empty(t, r.i.events)
	gone := want[evGone](t, r.s.events)
	assert.ErrorIs(t, gone.err, ErrDropped)
	assert.ErrorContains(t, gone.err, "process ended")
	assert.Less(t, time.Since(start), 3200*time.Millisecond, "well before peer_timeout")
}

// An address that never answered, and that does not refuse either, does not keep a dead peer alive.
func TestDeadPeerWithAnAddressThatIsNotItsOwn(t *testing.T) {
	i, s := newInitiator(), newTarget()
	to, from := listen(t, s, minute), listen(t, newTarget(), minute)
	dial := from.dial
	from.dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		if a.Port() == 1 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return dial(ctx, a)
	}
	b := blob(to)
	b.Control = append(b.Control, "127.0.0.1:1")
	from.Dial(b, 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	start := time.Now()
	vanish(to)
	assert.ErrorIs(t, want[evLost](t, i.events).err, ErrDropped)
	assert.Less(t, time.Since(start), 2*time.Second)
}

// While the links are down, the default route may lead to a host that refuses every connection. The peer is not dead
// then.
func TestRefusedThoughAlive(t *testing.T) {
	const timeout = 2 * time.Second
	r := &multipath{pair: &pair{i: newInitiator(), s: newTarget()}}
	change := func(c *Config) { c.PeerTimeout = timeout }
	r.to, r.from = listen(t, r.s, change), listen(t, newTarget(), change)
	path := newProxy(t, r.to)
	var down atomic.Bool
	var refused atomic.Int32
	dial := r.from.dial
	r.from.dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
		if down.Load() && refused.Add(1) < 6 {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		return dial(ctx, a)
	}
	b := blob(r.to)
	b.Control = []string{path.l.Addr().String(), r.to.Addrs()[0]}
	r.dial(t, b)
	down.Store(true)
	path.spoil(nil, true)
	r.out.Fence(1, 1, 1, nil)
	assert.Equal(t, uint64(1), want[evFenced](t, r.i.events).f.ID)
	r.resumed(t, 1)
}

// slow is a connection whose first bytes come late.
type slow struct {
	net.Conn
	once *sync.Once
}

func (s slow) Read(p []byte) (int, error) {
	s.once.Do(func() { time.Sleep(refusalPeriod + refusalPeriod/2) })
	return s.Conn.Read(p)
}

// Behind an address where the session never was, a slow or busy process that accepts connections may be the peer.
// Here it is the peer.
func TestPeerElsewhereIsSlowOrBusy(t *testing.T) {
	for name, spoil := range map[string]func(c net.Conn, dials int) net.Conn{
		"slow": func(c net.Conn, _ int) net.Conn { return slow{c, new(sync.Once)} },
		"late": func(c net.Conn, dials int) net.Conn { // the connection itself takes long
			if dials == 1 {
				time.Sleep(refusalPeriod + refusalPeriod/2)
			}
			return c
		},
		"busy": func(c net.Conn, dials int) net.Conn {
			if dials > 8 { // refusalPeriod is over
				return c
			}
			c.Close()
			here, there := net.Pipe()
			there.Close()
			return here
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &multipath{pair: &pair{i: newInitiator(), s: newTarget()}}
			r.to, r.from = listen(t, r.s, minute), listen(t, newTarget(), minute)
			r.paths = []*proxy{newProxy(t, r.to), newProxy(t, r.to)}
			other, dial := r.paths[1].l.Addr().String(), r.from.dial
			var dials atomic.Int32 // two requests may be under way
			r.from.dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
				c, err := dial(ctx, a)
				if err == nil && a.String() == other {
					c = spoil(c, int(dials.Add(1)))
				}
				return c, err
			}
			b := blob(r.to)
			b.Control = []string{r.paths[0].l.Addr().String(), other}
			r.dial(t, b)
			r.paths[0].close()
			r.works(t)
			r.resumed(t, 1)
		})
	}
}
