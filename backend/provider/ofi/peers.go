package ofi

import "gorail/backend/provider/ofi/libfabric"

// peers holds the addresses in a rail's address vector. Some providers count insertions of an address, EFA does not. So
// the count is kept here, and each address is inserted once.
type peers struct {
	c      *libfabric.Rail
	byAddr map[string]*peer
}

type peer struct {
	addr  []byte
	place libfabric.Place
	users int
}

// join returns the entry of an address and adds a user. Under rail.setup.
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

// leave undoes join; nil is ignored. Under hold.
func (p *peers) leave(at *peer) {
	if at == nil {
		return
	}
	if at.users--; at.users == 0 {
		delete(p.byAddr, string(at.addr))
		p.c.Remove(at.place)
	}
}
