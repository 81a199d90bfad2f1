package session

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// startLinks starts the links over a rail that have never had an endpoint on both sides.
func (r *Initiator) startLinks(rl *rails.Rail) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if l.Rail == rl {
			r.startLink(l)
		}
	}
}

// startLink opens our endpoint of a link that is not up yet. It requests the peer's endpoint with a FENCE. Under mu.
func (r *Initiator) startLink(l *Link) {
	if r.state != ready || l.Up || l.Shared() && !l.added {
		return
	}
	if l.Phase == Fencing {
		l.StartAgain = true
		return
	}
	r.s.Links.closeUnused(l)
	ep, err := l.Rail.OpenEndpoint()
	if err != nil {
		r.s.Log.Debug("cannot start a link yet: our endpoint did not open", "peer", r.name, "rail", l.Rail.Name(), "err", err)
		return
	}
	l.EP, l.StartAgain = ep, false
	l.Enter(Fencing, time.Now())
	r.sendFence(l, ep.Addr())
}

// started handles the peer's answer: the link begins with a probe. Under mu.
func (r *Initiator) started(l *Link, err error) {
	if err == nil {
		r.change(func() {
			if err = r.s.Links.Attach(l, r.sess, core.Initiator, true); err == nil {
				l.CameUpLate = !l.added
				l.Enter(Probing, time.Now())
				l.Core.SetWeight(r.Weight(l))
			}
		})
	}
	if err == nil {
		return
	}
	r.s.Log.Debug("cannot start a link yet: the peer's endpoint cannot be reached", "peer", r.name, "rail", l.Rail.Name(), "err", err)
	l.Fault = err
	_ = r.s.Links.Quiesce(l) // Quiesce logs the error
	r.s.Links.closeUnused(l)
	r.change(func() { l.Enter(BackingOff, time.Now()) })
	if l.Up { // Attach failed halfway
		r.fenceAfter(l, FirstBackoff, "retry")
	} else if l.StartAgain { // the peer's rail came up before the answer arrived
		r.startLink(l)
	} else {
		r.settlePairs()
	}
}

// reaches returns true if a rail of ours reaches the peer over the offered rail, which reaches must try. It logs what
// prevents two agents of one host: they use the next best rail. As use.
func (r *Initiator) reaches(o wire.RailOffer) bool {
	if r.s.own.Boot == "" || r.s.own.Boot != r.blob.Boot {
		return false
	}
	for _, own := range r.s.Links.Rails.List {
		p, ok := own.Rail.(provider.Host)
		if !ok || own.Device().Fabric != o.Fabric || own.Device().Subnet != o.Subnet {
			continue
		}
		way, err := p.Reach(o.Proof)
		if err == nil && way != "" {
			r.ways[own.Index] = way
			r.s.Log.Info("rail reaches a peer of this host, though not in its best way", "peer", r.name, "rail", own.Name(), "way", way)
		}
		// The control connection reports a process that has ended. Without a free descriptor nothing was tried: the
		// endpoint tries again.
		if err == nil || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			return true
		}
		r.s.Log.Warn("rail not used for a peer of this host", "peer", r.name, "rail", own.Name(), "err", err)
	}
	return false
}

func (s *Initiators) newSession(name string, raw []byte, blob wire.ConnBlob) (*Initiator, error) {
	r := &Initiator{s: s, number: s.Life.NextID(), name: name, raw: raw, blob: blob, ways: map[int]string{},
		keys: keys{regions: map[wire.Claim]*region.Region{}, byTarget: map[uint64]*region.Region{}, requests: map[uint64][]*region.Region{}}}
	r.failover.Timeout = s.Options.RailTimeout
	r.conn = newConn(r)
	pairs := r.pair()
	r.warnNVLink(pairs)
	if len(pairs) == 0 {
		err := errcode.PeerUnreachable.Errorf("agent %q offers no rail that our rails can reach: the agent's rails %v, ours %v (options provider, devices)",
			name, railNames(blob.Rails), railNames(s.own.Rails))
		s.Log.Error("peer not usable", "peer", name, "err", err) // NIXL tries other backends and does not report our error
		return nil, err
	}
	r.peer = s.Transfers.NewPeer(name, blob.Engine == s.own.Engine, blob.Rails, r)
	r.use(pairs)
	return r, nil
}

// warnNVLink warns of two engines with NVLink between hosts whose GPUs do not reach each other. pairs are those of the session.
func (r *Initiator) warnNVLink(pairs []rails.Pair) {
	for _, own := range r.s.own.Rails {
		for _, o := range r.blob.Rails {
			if own.Fabric == provider.NVLink && o.Fabric == own.Fabric && o.Subnet != own.Subnet && len(pairs) > 0 && !r.s.Links.Rails.List[pairs[0].Own].Device().Host {
				r.s.Log.Warn("NVLink between hosts not used for a peer: its GPUs have another "+otherPart(own.Subnet, o.Subnet), "peer", r.name, "ours", own.Subnet, "peers", o.Subnet,
					"advice", "nvidia-smi -q | grep -A5 Fabric on both hosts: GPUs reach each other within one ClusterUUID and CliqueId, which a reboot or a new partition of the rack may change")
			}
		}
	}
}

// otherPart names the part in which two domains of GPUs, cluster/clique, differ.
func otherPart(ours, peers string) string {
	a, _, _ := strings.Cut(ours, "/")
	b, _, _ := strings.Cut(peers, "/")
	if a == b {
		return "clique in the same cluster"
	}
	return "cluster UUID"
}

// use makes the session's links those of the pairs. Under mu, or before the session is known.
func (r *Initiator) use(pairs []rails.Pair) {
	if r.wide = r.isWide(pairs); r.wide {
		r.linkPairs = r.firstPairs()
		pairs = r.possible()
		if n := r.s.Options.QPsPerRail; n > 1 && !r.s.Links.Rails.Wide() { // else the log has it
			r.s.Log.Warn("option qps_per_rail has no effect for this peer: it has more devices than its max_rails, and each pair of rails has one link", "peer", r.name, "qps_per_rail", n)
		}
	} else {
		r.linkPairs = r.spread(pairs)
	}
	r.linkPairs = r.withSlots(r.linkPairs)
	r.peer.SetPairs(pairs, len(r.linkPairs), r.wide)
}

// leaveHost connects over the other rails to a peer of this host whose shared memory the two cannot open, although we reach it: one of them
// has changed its user or its root folder since it has loaded us, or a filter refuses its calls. Transfers and notifications that wait go on
// waiting. False: that is not why the connection has failed, or there are no other rails. Under mu.
func (r *Initiator) leaveHost(failed error) bool {
	var refused *peer.RejectError
	rejected := errors.As(failed, &refused) && refused.Proved && refused.Code == wire.CodeRails
	own := r.s.Links.Rails.List[r.linkPairs[0].Own]
	if r.state != connecting || r.leftHost || !own.Device().Host || !rejected && !errors.Is(failed, errLocal) || host.Exhausted(failed) {
		return false
	}
	r.leftHost = true
	pairs := r.pair()
	if len(pairs) == 0 {
		return false
	}
	r.s.Log.Warn("rail not used for a peer of this host", "peer", r.name, "rail", own.Name(), "err", failed, "instead", r.s.Links.Rails.List[pairs[0].Own].Name())
	r.conn.requests.End()
	r.s.Links.Drop(r.links, r.sess, int32(errcode.SessionLost.Status), nil)
	r.change(func() {
		r.hasSess, r.sess = false, core.Session{}
		r.links, r.failover.Links, r.notifLink, r.conn = nil, nil, nil, newConn(r)
	})
	r.unpair()
	r.use(pairs)
	r.dial()
	return true
}

// spread gives every pair as many links as both sides want. It works in rounds, so that the links are even among the
// pairs.
func (r *Initiator) spread(pairs []rails.Pair) (linkPairs []rails.Pair) {
	n := min(r.s.Options.QPsPerRail, max(1, int(r.blob.Links)), core.MaxLinks/len(pairs))
	for round := range n {
		for _, p := range pairs {
			if round == 0 || !r.s.Links.Rails.List[p.Own].Can().SharedEndpoint {
				linkPairs = append(linkPairs, p)
			}
		}
	}
	return linkPairs
}

func railNames(offers []wire.RailOffer) []string {
	var names []string
	for _, o := range offers {
		if o.Shard == 0 {
			names = append(names, o.Fabric+"/"+o.Name+" "+o.Subnet)
		}
	}
	return names
}

// pair chooses the rails for this peer: all that reach a rail of the peer. As use: under mu, or before the session is known.
func (r *Initiator) pair() []rails.Pair {
	r.offered = r.usableRails()
	return r.pairOffered()
}

// pairOffered is pair, from what is known now. As use.
func (r *Initiator) pairOffered() []rails.Pair {
	same := r.oneNetwork()
	devices := r.s.Links.Rails.Devices()
	usable := r.offered
	all := rails.Match(devices, usable, same, r.known())
	if slices.ContainsFunc(r.s.Links.Rails.List, (*rails.Rail).Waits) {
		all = r.addLatePairs(all, devices, usable, same)
	}
	return all[:min(core.MaxLinks, len(all))]
}

// oneNetwork reports that both engines are in one network namespace.
func (r *Initiator) oneNetwork() bool {
	own := r.s.own
	return own.Boot != "" && own.Boot == r.blob.Boot && own.NetNS != 0 && own.NetNS == r.blob.NetNS
}

// usableRails are the peer's rails that may be reached. As pair.
func (r *Initiator) usableRails() []wire.RailOffer {
	return slices.DeleteFunc(slices.Clone(r.blob.Rails), func(o wire.RailOffer) bool {
		return len(o.Proof) > 0 && (r.leftHost || !r.reaches(o)) || o.Fabric == provider.NVLink && r.blob.Engine == r.s.own.Engine
	})
}

// addLatePairs puts the pairs that exist without the late rails in front. A late rail waits for its interface, which may
// never come up.
func (r *Initiator) addLatePairs(all []rails.Pair, devices []provider.Device, usable []wire.RailOffer, same bool) []rails.Pair {
	for i, rl := range r.s.Links.Rails.List {
		if rl.Waits() {
			devices[i] = provider.Device{Fabric: "\x00"} // pairs with nothing
		}
	}
	now := rails.Match(devices, usable, same, r.known())
	for _, p := range all {
		if r.s.Links.Rails.List[p.Own].Waits() {
			now = append(now, p)
		}
	}
	return now
}
