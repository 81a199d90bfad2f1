package engine

import (
	"errors"
	"fmt"
	"net/netip"

	"gorail/backend/core"
	"gorail/backend/rails"
	"gorail/backend/rlimit"
	"gorail/backend/wire"
)

// initiatorHandler is what the control channel calls for a session of ours.
type initiatorHandler struct {
	r     *remote
	asked *asking // of this session; the remote's own has another one once it is suspended and connected again
}

// session is the handler of the session that is there or being made. Under mu.
func (r *remote) session() initiatorHandler { return initiatorHandler{r, r.asked} }

// current says that the session is the remote's, not one before it. Under mu.
func (h initiatorHandler) current() bool { return h.r.asked == h.asked }

// Offers opens our endpoints for the session.
func (h initiatorHandler) Offers() ([]wire.EndpointOffer, error) {
	r := h.r
	if !r.e.enter() {
		return nil, errClosing
	}
	defer r.e.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != connecting || !h.current() {
		return nil, errors.New("the peer was closed")
	}
	var offers []wire.EndpointOffer
	var last error
	for _, p := range r.lanes {
		l, err := r.e.openLink(len(r.links), p.Own, p.Peer)
		l.remote = r
		r.links = append(r.links, l)
		o := wire.EndpointOffer{Rail: uint8(p.Peer), Own: uint8(p.Own), ID: l.id}
		switch {
		case err == nil:
			o.Addr = l.ep.Addr()
		case l.rail.Waits(): // in the log since the engine was made
			last = fmt.Errorf("rail %s: %w", l.rail.Name(), err)
		default:
			last = err
			r.e.log.Warn("rail not used for a peer until its device comes up", "peer", r.name, "rail", l.rail.Name(), "err", rlimit.Advise(err))
		}
		offers = append(offers, o)
	}
	if len(inUse(r.links)) == 0 {
		return nil, fmt.Errorf("%w: %w", errOurs, last)
	}
	return offers, nil
}

// Ready brings the links up and starts what has been waiting.
func (h initiatorHandler) Ready(w wire.Welcome) {
	r := h.r
	if !r.e.enter() {
		return
	}
	defer r.e.leave()
	r.mu.Lock()
	if r.state != connecting || !h.current() {
		r.mu.Unlock()
		return
	}
	err := r.bringUp(w)
	if err == nil {
		r.change()
		r.state = ready
		r.flushNotifs(w)
		r.kick()
		r.pull()
	}
	r.mu.Unlock()
	if err != nil {
		h.giveUp(fmt.Errorf("bring the link up: %w", err))
		return
	}
	h.awaitProof()
}

func (r *remote) bringUp(w wire.Welcome) error {
	offers := w.Offers
	s, err := r.e.core.NewSession(r.e.ids.Add(1), r.name)
	if err != nil {
		return err
	}
	r.sess, r.hasSess = s, true
	s.Continue(firstNumber(w), false)
	if len(offers) != len(r.links) {
		return fmt.Errorf("the peer answers %d endpoints for our %d", len(offers), len(r.links))
	}
	r.connected = false
	from := []netip.Addr{r.out.Remote()}
	var last error
	for i, l := range r.links {
		if l.peerID = offers[i].ID; l.ep == nil {
			continue
		}
		err := errors.New("the peer could not open an endpoint for it")
		if len(offers[i].Addr) > 0 {
			err = r.e.connect(l, s, offers[i], from, core.Initiator, true)
		}
		switch {
		case err != nil && !l.up: // see startLink
			last = err
			_ = r.e.quiesce(l) // it is in the log
			l.enter(resting)
			r.e.log.Info("rail not used for a peer until its device comes up", "peer", r.name, "rail", l.rail.Name(), "peer_rail", r.peerRail(l.peer), "err", err)
		case err != nil:
			return err
		default:
			l.enter(probing)
		}
		if l.up {
			l.l.SetWeight(r.weight(l))
			if r.home == nil {
				r.home = l
				s.SetHome(l.l)
			}
		}
	}
	if r.home == nil {
		return last
	}
	return nil
}

// mbps is the speed of a pair of rails, in Mbit/s; 0: unknown.
func (r *remote) mbps(own *rails.Rail, peer int) uint64 {
	speed := own.Device().Mbps
	for _, o := range r.blob.Rails {
		if int(o.Index) == peer && o.Mbps > 0 && (speed == 0 || o.Mbps < speed) {
			speed = o.Mbps
		}
	}
	return speed
}

// weight is the link's part of the speed of its pair of rails, in Mbit/s; 0: unknown.
func (r *remote) weight(l *link) uint64 {
	speed, links := r.mbps(l.rail, l.peer), uint64(0)
	for _, p := range r.lanes {
		if p.Own == l.rail.Index && p.Peer == l.peer {
			links++
		}
	}
	return (speed + links - 1) / links
}

// path names the rails in use.
func (r *remote) path() []string { return names(inUse(r.links)) }

// errOurs marks a failure of this side's.
var errOurs = errors.New("local failure")
