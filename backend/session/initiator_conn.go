package session

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/backend/peer"
	"gorail/backend/region"
	"gorail/backend/staging"
	"gorail/backend/wire"
)

// Offers opens our endpoints for the session.
func (c *conn) Offers() ([]wire.EndpointOffer, error) {
	r := c.r
	if !r.s.Life.Enter() {
		return nil, core.ErrClosing
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != connecting || !c.current() {
		return nil, errors.New("the session with the peer was closed")
	}
	offers, last := r.offer()
	for tries := 0; r.wide && len(InUse(r.links)) == 0 && tries < mostFirst; tries++ { // other rails may open
		r.links, r.failover.Links = nil, nil
		r.linkPairs = r.withSlots(r.firstPairs())
		offers, last = r.offer()
	}
	if len(InUse(r.links)) == 0 {
		return nil, fmt.Errorf("%w: %w", errLocal, last)
	}
	return offers, nil
}

// mostFirst is how many other pairs of rails a Hello with a wide engine tries.
const mostFirst = 4

// offer opens our endpoints of the Hello's links. Under mu.
func (r *Initiator) offer() (offers []wire.EndpointOffer, last error) {
	last = errors.New("no pair of rails")
	for _, p := range r.linkPairs {
		l, err := r.s.Links.Open(len(r.links), p.Own, p.Peer)
		l.initiator, l.slot = r, r.slots[p.Peer]
		r.links, r.failover.Links = append(r.links, l), append(r.failover.Links, &l.LinkState)
		o := wire.EndpointOffer{Rail: uint8(p.Peer), Own: uint8(p.Own), ID: l.ID}
		switch {
		case err == nil:
			o.Addr = l.EP.Addr()
		case l.Rail.Waits(): // Open logged the reason when the engine was made
			last = fmt.Errorf("rail %s: %w", l.Rail.Name(), err)
		default:
			last, r.unopened = err, r.unopened|1<<p.Own
			r.s.Log.Warn("rail not used for a peer until the rail's device comes up", "peer", r.name, "rail", l.Rail.Name(), "err", host.Advise(err))
		}
		offers = append(offers, o)
	}
	return offers, last
}

// Ready brings the links up and starts the transfers and notifications that wait.
func (c *conn) Ready(w wire.Welcome) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	if r.state != connecting || !c.current() {
		r.mu.Unlock()
		return
	}
	err := r.bringUp(w)
	if err == nil {
		r.changeAndKick(func() {
			r.state = ready
			err = r.flushNotifs(w)
		})
		r.pull()
	}
	left := err != nil && r.leaveHost(fmt.Errorf("%w: %w", errLocal, err))
	r.mu.Unlock()
	if left {
		c.out.Close("the two agents take other rails")
		return
	}
	if err != nil {
		c.GiveUp(fmt.Errorf("bring the links up: %w", err))
		return
	}
	c.awaitProof()
}

// bringUp starts the links. It returns an error when no link starts. Under mu.
func (r *Initiator) bringUp(w wire.Welcome) error {
	offers := w.Offers
	s, err := r.s.Core.NewSession(r.s.Life.NextID(), r.name)
	if err != nil {
		return err
	}
	r.sess, r.hasSess = s, true
	s.Continue(firstNumber(w), false)
	if len(offers) != len(r.links) {
		return fmt.Errorf("the peer answered with %d endpoints, we offered %d", len(offers), len(r.links))
	}
	r.connected, r.failover.Answer = false, r.conn.out.Took()
	channel := r.conn.channel()
	var last error
	for i, l := range r.links {
		if l.PeerID = offers[i].ID; l.EP == nil {
			continue
		}
		err := errors.New("the peer could not open its endpoint for this link")
		if len(offers[i].Addr) > 0 {
			err = r.s.Links.Connect(l, s, offers[i].Addr, channel, true)
		}
		switch {
		case err != nil && !l.Up: // see startLink
			if last = err; len(offers[i].Addr) > 0 {
				l.Fault = err
			}
			_ = r.s.Links.Quiesce(l) // Quiesce logs the error
			l.Enter(BackingOff, time.Now())
			r.s.Log.Info("rail not used for a peer until the rail's device comes up", "peer", r.name, "rail", l.Rail.Name(), "peer_rail", r.peer.RailName(l.Peer), "err", err)
		case err != nil:
			return err
		default:
			l.Enter(Probing, time.Now())
		}
		if l.Up {
			l.Core.SetWeight(r.Weight(l))
			if r.notifLink == nil {
				r.notifLink = l
				s.SetNotifLink(l.Core)
			}
		}
	}
	if r.notifLink == nil {
		return last
	}
	return nil
}

// channel is what the links need of the control channel. Under mu, from Ready on.
func (c *conn) channel() Channel {
	return Channel{Role: core.Initiator, KeySalt: c.out.KeySalt(), Secret: c.out.LinkSecret, Handles: c.handles.ask}
}

// Lost ends the session when the control channel has failed. A dead peer's session is lost; any other session is
// suspended.
func (c *conn) Lost(err error) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !c.current() || r.leaveHost(err):
	case errors.Is(err, peer.ErrDead) && !r.peer.Self:
		r.lose(err)
	default:
		r.suspend(err)
	}
}

// Staged passes the target's answers to the staging requests.
func (c *conn) Staged(f wire.Frame) {
	if c.r.s.Life.Enter() {
		defer c.r.s.Life.Leave()
		if h, ok := f.(*wire.Handles); ok {
			c.handles.answered(h)
			return
		}
		c.requests.Answer(f)
	}
}

// Send sends a staging frame to the peer. The session is ready.
func (c *conn) Send(f wire.Frame) { c.out.Stage(f) }

// Load enters the peer's bounce buffers. They stay until the connection ends, also while the application has removed the peer.
func (c *conn) Load(claim wire.Claim) (*region.Region, error) {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.current() || r.state != ready {
		return nil, staging.ErrSessionOver
	}
	g, err := r.enter(claim)
	if err == nil {
		c.rings = append(c.rings, g)
		r.pull()
	}
	return g, err
}

// Notify queues a notification behind the transfers that are complete.
func (c *conn) Notify(msg []byte) error {
	r := c.r
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !c.current() || r.state != ready {
		return staging.ErrSessionOver
	}
	return r.notifLink.Core.Notify(msg)
}

// Quiet fences the links that have stopped. It returns true when no link is fencing or draining.
func (c *conn) Quiet() bool {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.current() || r.state != ready {
		return true
	}
	r.fenceBroken("a staging slot is released over a failed link")
	return !slices.ContainsFunc(r.links, func(l *Link) bool { return l.Phase == Fencing || l.Phase == Draining })
}
