package tcp

import (
	"net/netip"
	"sync"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
)

// paces are those of connections with compression=auto, by session and addresses: shards share a wire.
type paces struct {
	mu  sync.Mutex
	all map[paceKey]*paced
}

type paceKey struct {
	session    provider.Salt
	here, peer netip.Addr
}

type paced struct {
	is   *sock.Paces
	refs int
}

// take counts one connection. nil: there is no memory, and the connection stays in clear.
func (p *paces) take(k paceKey) *sock.Paces {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.all[k]
	if of == nil {
		is, err := sock.NewPaces()
		if err != nil {
			return nil
		}
		if p.all == nil {
			p.all = map[paceKey]*paced{}
		}
		of = &paced{is: is}
		p.all[k] = of
	}
	of.refs++
	return of.is
}

// give ends a take, once the connection is closed.
func (p *paces) give(k paceKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.all[k]
	if of.refs--; of.refs == 0 {
		of.is.Free()
		delete(p.all, k)
	}
}
