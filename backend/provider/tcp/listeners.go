package tcp

import (
	"net/netip"
	"sync"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/handshake"
)

// listeners has one listener for all shards of a device: a firewall passes one port for each device. The ticket of an opening
// says which shard it is for.
type listeners struct {
	mu     sync.Mutex
	shared map[netip.Addr]*sharedListener
}

type sharedListener struct {
	*handshake.Listener
	users int
}

// get returns the listener of a device's shard. The caller calls leave when nobody waits for connections any more; the last one
// closes the listener.
func (s *listeners) get(d provider.Device, addr netip.Addr, how handshake.Sockets, first, last uint16) (l *handshake.Listener, leave func(), err error) {
	if d.Shards <= 1 {
		l, err = how.Listen(addr, first, last)
		return l, l.Close, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	with := s.shared[addr]
	if with == nil {
		if l, err = how.Listen(addr, first, last); err != nil {
			return nil, nil, err
		}
		if with = (&sharedListener{Listener: l}); s.shared == nil {
			s.shared = map[netip.Addr]*sharedListener{}
		}
		s.shared[addr] = with
	}
	with.users++
	return with.Listener, func() { s.leave(addr) }, nil
}

func (s *listeners) leave(addr netip.Addr) {
	s.mu.Lock()
	l := s.shared[addr]
	l.users--
	last := l.users == 0
	if last {
		delete(s.shared, addr)
	}
	s.mu.Unlock()
	if last {
		l.Close()
	}
}
