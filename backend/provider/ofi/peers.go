package ofi

// peer is an address in the address vector. Some providers count how often it was inserted, EFA doesn't: so we do, and insert once.
type peer struct {
	addr  []byte
	index fiAddr
	users int
}

// join gives the address's place, with one user more. Under hold.
func (r *rail) join(addr []byte) (*peer, error) {
	p := r.peers[string(addr)]
	if p == nil {
		index, err := r.lib().insert(r.av, addr)
		if err != nil {
			return nil, err
		}
		p = &peer{addr: addr, index: index}
		r.peers[string(addr)] = p
	}
	p.users++
	return p, nil
}

// leave undoes a join; nil is nobody. Under hold.
func (r *rail) leave(p *peer) {
	if p == nil {
		return
	}
	if p.users--; p.users == 0 {
		delete(r.peers, string(p.addr))
		remove(r.av, p.index)
	}
}
