package ofi

import "gorail/backend/provider/ofi/libfabric"

// peers are the addresses in a rail's address vector. Some providers count how often one was inserted, EFA doesn't: so we do, and insert once.
type peers struct {
	c      *libfabric.Rail
	byAddr map[string]*peer
}

type peer struct {
	addr  []byte
	place libfabric.Place
	users int
}

// join gives the address's place, with one user more. Under rail.setup.
func (p *peers) join(addr []byte) (*peer, error) {
	at := p.byAddr[string(addr)]
	if at == nil {
		place, err := p.c.Insert(addr)
		if err != nil {
			return nil, err
		}
		at = &peer{addr: addr, place: place}
		p.byAddr[string(addr)] = at
	}
	at.users++
	return at, nil
}

// leave undoes a join; nil is nobody. Under hold.
func (p *peers) leave(at *peer) {
	if at == nil {
		return
	}
	if at.users--; at.users == 0 {
		delete(p.byAddr, string(at.addr))
		p.c.Remove(at.place)
	}
}
