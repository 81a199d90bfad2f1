package peer

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// direction of what flows over a connection.
type direction int

const (
	toTarget direction = iota
	toInitiator
	directions
)

// faultKind is what a path does. The first ones last, the others happen at one time.
type faultKind int

const (
	slower faultKind = iota // more latency
	stall                   // silence in one or both directions; what is in flight comes afterwards
	refuse                  // connection requests are refused
	hang                    // connection requests get no answer
	route                   // no route to the host
	lastingKinds
	reset   faultKind = iota - 1 // both ends of all connections get a reset
	fin                          // both ends read the end
	lone                         // one end gets a reset
	swallow                      // nothing comes through all connections any more, and nobody says so
	flip                         // a bit is flipped in one direction of all connections
	faultKinds
)

var faultNames = [faultKinds]string{"slow", "stall", "refuse", "hang", "route", "reset", "fin", "lone", "swallow", "flip"}

// fault is one entry of a schedule. Its times count from the begin of the simulation.
type fault struct {
	kind     faultKind
	path     int
	from, to time.Duration // to: of kinds that last
	dirs     [directions]bool
	bytes    int           // flip: distance to the byte
	delay    time.Duration // slower: more latency
}

// simPath is an address of the target, with all that happens to it.
type simPath struct {
	local, addr netip.AddrPort
	begun       time.Time
	base        time.Duration // latency without faults, in one direction
	faults      []fault
	accepted    chan net.Conn
	down        chan struct{} // closed with the listener
	closeOnce   sync.Once

	mu    sync.Mutex
	conns [][directions]*simConn // the end that reads what flows in that direction
}

// during returns the fault of a kind at a time, if there is one.
func (p *simPath) during(kind faultKind, at time.Time) *fault {
	since := at.Sub(p.begun)
	for i := range p.faults {
		if f := &p.faults[i]; f.kind == kind && f.from <= since && since < f.to {
			return f
		}
	}
	return nil
}

func (p *simPath) latency(at time.Time) time.Duration {
	if f := p.during(slower, at); f != nil {
		return p.base + f.delay
	}
	return p.base
}

// stalledUntil returns when a direction is no longer silent. The zero time: it is not.
func (p *simPath) stalledUntil(dir direction, at time.Time) (until time.Time) {
	for _, f := range p.faults {
		begin, end := p.begun.Add(f.from), p.begun.Add(f.to)
		if f.kind == stall && f.dirs[dir] && !at.Before(begin) && at.Before(end) && end.After(until) {
			until = end
		}
	}
	return until
}

// dial implements base.dial for one address.
func (p *simPath) dial(ctx context.Context) (net.Conn, error) {
	fails := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	sleep := func(d time.Duration) error {
		switch {
		case pause(ctx, d):
			return nil
		case ctx.Err() == context.DeadlineExceeded:
			return fails(os.ErrDeadlineExceeded)
		}
		return fails(ctx.Err())
	}
	now := time.Now()
	if f := p.during(hang, now); f != nil {
		if err := sleep(time.Until(p.begun.Add(f.to))); err != nil {
			return nil, err
		}
	}
	for dir := range directions {
		if err := sleep(time.Until(p.stalledUntil(dir, time.Now()))); err != nil {
			return nil, err
		}
	}
	if err := sleep(2 * p.latency(time.Now())); err != nil {
		return nil, err
	}
	switch now := time.Now(); {
	case p.during(refuse, now) != nil:
		return nil, fails(syscall.ECONNREFUSED)
	case p.during(route, now) != nil:
		return nil, fails(syscall.EHOSTUNREACH)
	}
	return p.connect()
}

func (p *simPath) connect() (net.Conn, error) {
	var flows [directions]*flow
	for dir := range flows {
		flows[dir] = &flow{path: p, dir: direction(dir), changed: make(chan struct{})}
	}
	near := &simConn{in: flows[toInitiator], out: flows[toTarget], local: p.local, remote: p.addr}
	far := &simConn{in: flows[toTarget], out: flows[toInitiator], local: p.addr, remote: p.local}
	select {
	case p.accepted <- far:
	default:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, [directions]*simConn{toTarget: far, toInitiator: near})
	return near, nil
}

// strike does what a fault does to the connections that there are.
func (p *simPath) strike(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ends := range p.conns {
		for dir, end := range ends {
			switch f.kind {
			case reset:
				end.reset()
			case fin:
				end.out.change(func() { end.out.cut = true; end.out.queue(nil, time.Now()) })
			case lone:
				if f.dirs[dir] {
					end.reset()
				}
			case swallow:
				end.in.change(func() { end.in.vanished = true })
			case flip:
				if f.dirs[dir] {
					end.in.change(func() { end.in.flips = append(end.in.flips, f.bytes) })
				}
			default:
			}
		}
	}
}

// open counts the connections with an end that its side has not closed; spoiled: those that brought that end a flipped bit.
func (p *simPath) open() (all, spoiled int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ends := range p.conns {
		for _, end := range ends {
			if end.isClosed() {
				continue
			}
			all++
			if end.in.spoiled {
				spoiled++
			}
		}
	}
	return all, spoiled
}

// Accept implements net.Listener.
func (p *simPath) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.down:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *simPath) Close() error {
	p.closeOnce.Do(func() { close(p.down) })
	return nil
}

// Addr implements net.Listener.
func (p *simPath) Addr() net.Addr { return net.TCPAddrFromAddrPort(p.addr) }
