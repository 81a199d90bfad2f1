package tcp

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
)

const (
	lookEvery = time.Second
	leastBusy = 100_000 // microseconds with bytes in flight, between two looks: less says nothing about the rate
	leastPart = 10      // of that time, in which a buffer was the limit: with bbr its own pacing is the limit most of the time
	saidPeers = 64      // addresses that warnings name
)

// A buffer of the kernel that limits a connection.
const (
	noBuffer = iota
	ownBuffer
	peersBuffer
)

// flow is what looks at a connection remember.
type flow struct {
	last   unix.TCPInfo
	window uint64 // the widest that the peer had at a look
	found  int    // by the last look
}

// look compares a connection with the look before. It returns the buffer that limits the connection: in two looks in a row,
// pauses aside, so that windows that still grow do not count.
//
// A connection that is limited by a buffer moves one buffer a round trip, so its rate never shows what the path could carry. The
// kernel counts the time that the peer's window, or our send buffer, kept it from sending. Such time is no proof: a slow
// receiver shuts its window, too, and a full link keeps a send buffer full. In both cases rate times *least* round trip is much
// less than the buffer.
func (f *flow) look(now *unix.TCPInfo, sendBuffer uint64, bounds func() sysctls) (limited int) {
	last, before := f.last, f.found
	f.last = *now
	f.window = max(f.window, uint64(now.Snd_wnd), inFlight(now)) // Linux before 5.4 has no Snd_wnd
	busy := now.Busy_time - last.Busy_time
	if busy < leastBusy || now.Min_rtt == math.MaxUint32 { // not measured
		return noBuffer
	}
	f.found = noBuffer
	most := bounds()
	trip := now.Delivery_rate * uint64(now.Min_rtt) / 1e6 // bytes
	switch {
	case sendBuffer >= most.wmem[2] && trip >= most.wmem[2]/2 && (now.Sndbuf_limited-last.Sndbuf_limited >= busy/leastPart || full(now, sendBuffer)):
		f.found = ownBuffer
	case now.Rwnd_limited-last.Rwnd_limited >= busy/leastPart && f.window >= most.rmem[2]/8 && trip >= f.window/2:
		f.found = peersBuffer
	}
	if f.found != before {
		return noBuffer
	}
	return f.found
}

func inFlight(i *unix.TCPInfo) uint64 { return uint64(i.Unacked) * uint64(i.Snd_mss) }

// full says whether all that the send buffer has room for is in flight, and more would be allowed. The kernel's own count
// misses that with some algorithms of congestion control.
func full(i *unix.TCPInfo, sendBuffer uint64) bool {
	n := inFlight(i)
	return n >= sendBuffer/2 && uint64(i.Notsent_bytes) <= n/8 && i.Snd_cwnd > i.Unacked+i.Unacked/4 && uint64(i.Snd_wnd) > n+n/4
}

// sysctls are tcp_rmem and tcp_wmem of this network namespace: least, first, most.
type sysctls struct{ rmem, wmem [3]uint64 }

func readSysctls() (s sysctls) {
	for name, to := range map[string]*[3]uint64{"rmem": &s.rmem, "wmem": &s.wmem} {
		b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_" + name)
		if err == nil {
			_, err = fmt.Sscan(string(b), &to[0], &to[1], &to[2])
		}
		if err != nil {
			to[2] = math.MaxUint64 // nothing is that large
		}
	}
	return s
}

// buffers looks at the connections of a rail.
type buffers struct {
	mu     sync.Mutex
	ends   map[*endpoint]struct{} // that are open
	lookAt time.Time
	said   *said
}

// said is what warnings have named, of all rails.
type said struct {
	mu    sync.Mutex
	peers map[netip.Addr]bool
	own   bool // our send buffer
}

func (b *buffers) add(e *endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ends == nil {
		b.ends = map[*endpoint]struct{}{}
	}
	b.ends[e] = struct{}{}
}

func (b *buffers) remove(e *endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ends, e)
}

// due returns the endpoints to look at: all, once a second.
func (b *buffers) due() (list []*endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.lookAt) < lookEvery {
		return nil
	}
	b.lookAt = time.Now()
	for e := range b.ends {
		list = append(list, e)
	}
	return list
}

// first says whether no warning has named the buffer yet.
func (s *said) first(limited int, peer netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limited == ownBuffer {
		first := !s.own
		s.own = true
		return first
	}
	if s.peers[peer] || len(s.peers) >= saidPeers {
		return false
	}
	if s.peers == nil {
		s.peers = map[netip.Addr]bool{}
	}
	s.peers[peer] = true
	return true
}

// warnings looks at the connections of a device, once a second, and names the sysctl of a buffer that limits one.
func (b *buffers) warnings(dev provider.Device, addr netip.Addr) (all []string) {
	list := b.due()
	if len(list) == 0 {
		return nil
	}
	bounds := sync.OnceValue(readSysctls) // idle rails need none: reading took half of the ticks of 1,000 agents
	for _, e := range list {
		limited, rate, rtt, peer := e.look(bounds)
		if limited == noBuffer || !b.said.first(limited, peer) {
			continue
		}
		most := bounds()
		whose, sysctl, of := fmt.Sprintf("the receive buffer of %s", peer), "tcp_rmem", most.rmem
		where := "on the peer's host"
		if limited == ownBuffer {
			whose, sysctl, of, where = "the send buffer of this host", "tcp_wmem", most.wmem, "on this host"
		}
		all = append(all, fmt.Sprintf("%s limits a connection from %s (%s) to %s to %d MB/s, at a round trip of %.1f ms: %s set sysctl -w net.ipv4.%s=\"%d %d %d\", "+
			"or give peers more connections by option qps_per_rail", whose, dev.Label(), addr, peer, rate/1e6,
			float64(rtt)/1000, where, sysctl, of[0], of[1], enough(of[2], rtt, dev.Mbps)))
	}
	return all
}

// enough returns a size for the sysctl, in whole MiB: twice what the device carries in a round trip, if its speed is known, and
// at least twice what there is.
func enough(have, rtt, mbps uint64) uint64 {
	want := 4 * have
	if mbps > 0 {
		want = max(2*have, 2*mbps*rtt/8)
	}
	const mib = 1 << 20
	return min((want+mib-1)/mib*mib, math.MaxInt32)
}
