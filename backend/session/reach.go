package session

// What this engine has learned of pairs of its rails and those of other hosts: on some fabrics rail i reaches rail i alone, and addresses do not tell.

import (
	"maps"
	"sync"
	"time"

	"gorail/backend/rails"
)

const (
	// mostReach is how long a host is remembered after a pair was found apart. Then pairs by number are tried again.
	mostReach = 10 * time.Minute
	// mostHosts and mostReachPairs bound what is remembered: 256 hosts of 8 rails take 1 MiB.
	mostHosts      = 256
	mostReachPairs = 1024
)

// reachOf remembers pairs by host. Safe for concurrent use. The zero value is empty.
type reachOf struct {
	now func() time.Time // nil: time.Now

	mu    sync.Mutex
	hosts map[string]*hostReach
}

// hostReach is what is known of a host. It has a pair that is apart.
type hostReach struct {
	at    time.Time // when the last pair was found apart
	pairs map[railPair]rails.Reach
}

// railPair has the names of two rails, ours and the peer's. Numbers differ between the engines of a host.
type railPair struct{ own, peer string }

func (m *reachOf) time() time.Time {
	if m.now == nil {
		return time.Now()
	}
	return m.now()
}

// note notes what was learned of pairs of a host: that one did not connect, or that some work.
func (m *reachOf) note(host string, what rails.Reach, list ...railPair) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, now := m.known(host), m.time()
	switch {
	case h == nil && what == rails.Works:
		return // as everywhere
	case h == nil:
		m.room(now)
		h = &hostReach{pairs: map[railPair]rails.Reach{}}
		m.hosts[host] = h
	}
	for _, p := range list {
		if what == rails.Apart && h.pairs[p] != rails.Apart {
			h.at = now
		}
		if len(h.pairs) >= mostReachPairs {
			clear(h.pairs)
		}
		h.pairs[p] = what
	}
}

// of is what is known of a host's pairs; nil: none is apart.
func (m *reachOf) of(host string) map[railPair]rails.Reach {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.known(host); h != nil {
		return maps.Clone(h.pairs)
	}
	return nil
}

// known: under mu.
func (m *reachOf) known(host string) *hostReach {
	h := m.hosts[host]
	if h != nil && m.time().Sub(h.at) > mostReach {
		delete(m.hosts, host)
		return nil
	}
	return h
}

// room makes room for another host: it forgets the one that was learned about longest ago. Under mu.
func (m *reachOf) room(now time.Time) {
	if m.hosts == nil {
		m.hosts = map[string]*hostReach{}
	}
	maps.DeleteFunc(m.hosts, func(_ string, h *hostReach) bool { return now.Sub(h.at) > mostReach })
	if len(m.hosts) < mostHosts {
		return
	}
	oldest := ""
	for name, h := range m.hosts {
		if oldest == "" || h.at.Before(m.hosts[oldest].at) {
			oldest = name
		}
	}
	delete(m.hosts, oldest)
}
