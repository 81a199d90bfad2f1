package peer

import (
	"net/netip"
	"time"

	"gorail/backend/host"
)

// soughtEvery bounds how often connections without answers have the session look for another one: each costs a handshake, and fences of links. Where small packets
// alone get through there were five a second.
const soughtEvery = time.Second

// Overdue is called every few milliseconds while something that the target owes does not come. The target is asked whether it lives, by a ping. If our kernel
// sends on the session's connection again, and gets no acknowledgement, the session looks for another connection, without the silence that it waits for
// otherwise: its requests find the end of a cut before TCP sends again. Both sides hear of the other connection then, even if the one in use has come to life.
// unanswered: no connection of the fabric is acknowledged either.
func (o *Out) Overdue(unanswered bool) {
	s, now := o.stream, time.Now()
	s.mu.Lock()
	c, ready := s.path.conn, s.state == Ready
	s.mu.Unlock()
	if !ready || c == nil {
		return
	}
	if ask, roused := s.live.TakeAsk(now); ask {
		if roused {
			s.rearm()
		}
		s.writing.ping()
	}
	info, ok := host.TCPInfo(c.Conn)
	own := ok && c.unanswered.Look(&info, now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != c || s.state != Ready || o.reconnect != nil && o.reconnect.renew || !own && !unanswered || now.Sub(o.sought) < soughtEvery {
		return
	}
	o.cfg.Log.Debug("the network to a peer does not answer: looking for another connection", "peer", o.String())
	o.sought = now
	o.replace()
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

// requestPause is the pause between two requests for a connection.
func (k *reconnect) requestPause() time.Duration {
	var trip time.Duration
	k.out.stream.Do(func(lockedStream) { trip = k.out.trip })
	return host.RequestPause(time.Since(k.begun), trip)
}

// accepted notes how long an address took to accept a connection.
func (o *Out) accepted(took time.Duration) {
	o.stream.Do(func(lockedStream) {
		if o.trip == 0 || took < o.trip {
			o.trip = took
		}
	})
}
