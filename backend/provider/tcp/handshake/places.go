package handshake

import (
	"net"
	"net/netip"
	"slices"
)

// place holds a connection whose opening is not whole.
type place struct {
	c      *net.TCPConn
	source netip.Addr // as peer.SourceOf has it
}

// places are those of a listener. The listener's lock guards them.
type places struct {
	held    []*place // oldest first
	sources map[netip.Addr]int
}

// enter takes a place of so many. While all are taken, the oldest connection of the sources that have the most gives its own.
func (p *places) enter(n *place, most int) (evicted []*place) {
	for len(p.held) >= most {
		evicted = append(evicted, p.shed())
	}
	p.held = append(p.held, n) //limit:tcp_openings
	p.sources[n.source]++
	return evicted
}

// shed takes a place back; nil: none is taken.
func (p *places) shed() *place {
	if len(p.held) == 0 {
		return nil
	}
	most := 0
	for _, count := range p.sources {
		most = max(most, count)
	}
	evicted := p.held[slices.IndexFunc(p.held, func(h *place) bool { return p.sources[h.source] == most })]
	p.leave(evicted)
	return evicted
}

// leave gives the place back. It returns false if the connection was evicted before.
func (p *places) leave(n *place) bool {
	at := slices.Index(p.held, n)
	if at < 0 {
		return false
	}
	p.held = slices.Delete(p.held, at, at+1)
	if p.sources[n.source]--; p.sources[n.source] == 0 {
		delete(p.sources, n.source)
	}
	return true
}
