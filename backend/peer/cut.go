package peer

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"gorail/backend/host"
)

// soughtEvery bounds how often connections without answers have the session look for another one: each costs a handshake, and fences of links. Where small packets
// alone get through there were five a second.
const soughtEvery = time.Second

// aheadAfter is the time without an acknowledgement after which a session tries other connections, beside the one in use: half of what passes before the kernel
// sends again at the earliest. The other side's kernel may put its acknowledgement off for 40 ms if the process there has no processor time for its answer. Then
// the attempt costs a connection without a handshake, since the answer comes first.
const aheadAfter = 15 * time.Millisecond

// aheads bounds such attempts of this process: they are guesses, and one costs about 300 us of processor time here and there. Sessions beyond wait for the kernel
// to send again.
var aheads = rate.NewLimiter(100, 16)

// earlyAsks bounds the early questions of this process, which cost about 50 us here and there.
var earlyAsks = rate.NewLimiter(500, 50)

// overdue is about what the target owes. The stream's lock guards it.
type overdue struct {
	ahead  time.Time // when a connection without an acknowledgement had the session try others last
	sought time.Time // when connections without answers had it look for another one last
}

// Overdue is called every few milliseconds while something that the target owes does not come. The target is asked whether it lives, by a ping. If our kernel
// sends on the session's connection again, and gets no acknowledgement, the session looks for another connection, without the silence that it waits for
// otherwise: its requests find the end of a cut before TCP sends again. Both sides hear of the other connection then, even if the one in use has come to life.
// Before, while the ping is without an acknowledgement, other addresses are tried: that of the target may be gone. A target that answers meanwhile ends that.
// unanswered: no connection of the fabric is acknowledged either.
func (o *Out) Overdue(unanswered bool) {
	s, now := o.stream, time.Now()
	s.mu.Lock()
	c, ready := s.path.conn, s.state == Ready
	s.mu.Unlock()
	if !ready || c == nil {
		return
	}
	if ask, roused := s.live.TakeAsk(now, earlyAsks.Allow); ask {
		if roused {
			s.rearm()
		}
		s.writing.ping()
	}
	info, ok := host.TCPInfo(c.Conn)
	own := ok && c.unanswered.Look(&info, now)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.path.conn != c || s.state != Ready:
	case o.reconnect != nil && o.reconnect.renew:
	case (own || unanswered) && now.Sub(o.overdue.sought) >= soughtEvery:
		o.cfg.Log.Debug("the network to a peer does not answer: looking for another connection", "peer", o.String())
		o.overdue.sought = now
		o.replace()
	case o.reconnect == nil && ok && o.waits(&info, now) && aheads.AllowN(now, 1):
		o.cfg.Log.Debug("a peer does not acknowledge: trying other connections", "peer", o.String())
		o.overdue.ahead = now
		o.findConnection(false, netip.Addr{})
	}
}

// waits reports that the target was asked, and has neither answered nor acknowledged that in the time for it. Once a second at most. It needs the stream's lock.
func (o *Out) waits(i *unix.TCPInfo, now time.Time) bool {
	trip := time.Duration(i.Rtt) * time.Microsecond
	return i.Unacked > 0 && o.stream.live.Unanswered(now) > max(aheadAfter, 2*trip) && now.Sub(later(o.overdue.ahead, o.overdue.sought)) >= soughtEvery
}

// replace looks for another connection, over any address. The one in use stays until the target has answered. It needs the stream's lock.
func (o *Out) replace() {
	o.findConnection(true, netip.Addr{})
	if o.reconnect != nil {
		o.reconnect.renew = true
	}
}

// repeats reports that the kernel sends on the connection again, and gets no acknowledgement.
func (l lockedStream) repeats() bool {
	if !l.Connected() {
		return false
	}
	info, ok := host.TCPInfo(l.s.path.conn.Conn)
	return ok && host.Repeats(&info)
}

// requestPause is the pause between two requests for a connection to an address.
func (k *reconnect) requestPause(to netip.Addr) time.Duration {
	var trip time.Duration
	k.out.stream.Do(func(lockedStream) { trip = k.out.trips.of(to) })
	return host.RequestPause(time.Since(k.begun), trip)
}

// trips are the least times that addresses took to accept a connection: the address of another process of this host says nothing of the way to the peer.
type trips map[netip.Addr]time.Duration

// mostTrips bounds the addresses: a peer names as many as it likes.
const mostTrips = 64

func (t *trips) note(of netip.Addr, took time.Duration) {
	if *t == nil || len(*t) >= mostTrips {
		*t = trips{}
	}
	if least, known := (*t)[of]; !known || took < least {
		(*t)[of] = took
	}
}

// of is the time of an address, or that of the slowest: a request that ends before its answer can come is none. 0: no address has accepted.
func (t trips) of(a netip.Addr) (trip time.Duration) {
	if trip, known := t[a]; known {
		return trip
	}
	for _, other := range t {
		trip = max(trip, other)
	}
	return trip
}
