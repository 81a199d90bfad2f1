package initiator

import (
	"errors"
	"slices"
	"syscall"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/rlimit"
	"gorail/backend/wire"
)

// reaches returns true if a rail of ours reaches the peer over the offered rail, which reaches must try. It logs what
// prevents two agents of one host: they use the next best rail.
func (r *Session) reaches(o wire.RailOffer) bool {
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

func (s *Sessions) newSession(name string, raw []byte, blob wire.ConnBlob) (*Session, error) {
	r := &Session{s: s, number: s.Life.NextID(), name: name, raw: raw, blob: blob, ways: map[int]string{},
		keys: keys{regions: map[wire.Claim]*region.Region{}, byTarget: map[uint64]*region.Region{}, requests: map[uint64][]*region.Region{}}}
	r.failover.Timeout = s.Options.RailTimeout
	r.conn = newConn(r)
	pairs := r.pair()
	if len(pairs) == 0 {
		err := errcode.PeerUnreachable.Errorf("agent %q offers no rail that our rails can reach: the agent's rails %v, ours %v (options provider, devices)",
			name, railNames(blob.Rails), railNames(s.own.Rails))
		s.Log.Error("peer not usable", "peer", name, "err", err) // NIXL tries other backends and does not report our error
		return nil, err
	}
	r.peer = s.Transfers.NewPeer(name, blob.Engine == s.own.Engine, r)
	r.use(pairs)
	return r, nil
}

// use makes the session's links those of the pairs. Under mu, or before the session is known.
func (r *Session) use(pairs []rail.Pair) {
	r.linkPairs = r.spread(pairs)
	r.peer.SetPairs(pairs, len(r.linkPairs))
}

// leaveHost connects over the other rails to a peer of this host whose shared memory the two cannot open, although we reach it: one of them
// has changed its user or its root folder since it has loaded us, or a filter refuses its calls. Transfers and notifications that wait go on
// waiting. False: that is not why the connection has failed, or there are no other rails. Under mu.
func (r *Session) leaveHost(failed error) bool {
	var refused *peer.RejectError
	rejected := errors.As(failed, &refused) && refused.Proved && refused.Code == wire.CodeRails
	own := r.s.Links.Rails.List[r.linkPairs[0].Own]
	if r.state != connecting || r.leftHost || !own.Device().Host || !rejected && !errors.Is(failed, errLocal) || rlimit.Exhausted(failed) {
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
	r.use(pairs)
	r.dial()
	return true
}

// spread gives every pair as many links as both sides want. It works in rounds, so that the links are even among the
// pairs.
func (r *Session) spread(pairs []rail.Pair) (linkPairs []rail.Pair) {
	n := min(r.s.Options.QPsPerRail, max(1, int(r.blob.Links)), core.MaxLinks/len(pairs))
	for round := range n {
		for _, p := range pairs {
			if round == 0 || !r.s.Links.Rails.List[p.Own].Can.SharedEndpoint {
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

// pair chooses the rails for this peer: all that reach a rail of the peer.
func (r *Session) pair() []rail.Pair {
	own := r.s.own
	same := own.Boot != "" && own.Boot == r.blob.Boot && own.NetNS != 0 && own.NetNS == r.blob.NetNS
	devices := r.s.Links.Rails.Devices()
	usable := slices.DeleteFunc(slices.Clone(r.blob.Rails), func(o wire.RailOffer) bool {
		return int(o.Index) >= r.s.Options.Slots() || len(o.Proof) > 0 && (r.leftHost || !r.reaches(o)) // no key slot, or not reachable
	})
	all := rail.Match(devices, usable, same)
	if slices.ContainsFunc(r.s.Links.Rails.List, (*rails.Rail).Waits) {
		all = r.addLatePairs(all, devices, usable, same)
	}
	return all[:min(core.MaxLinks, len(all))]
}

// addLatePairs puts the pairs that exist without the late rails in front. A late rail waits for its interface, which may
// never come up.
func (r *Session) addLatePairs(all []rail.Pair, devices []provider.Device, usable []wire.RailOffer, same bool) []rail.Pair {
	for i, rl := range r.s.Links.Rails.List {
		if rl.Waits() {
			devices[i] = provider.Device{Fabric: "\x00"} // pairs with nothing
		}
	}
	now := rail.Match(devices, usable, same)
	for _, p := range all {
		if r.s.Links.Rails.List[p.Own].Waits() {
			now = append(now, p)
		}
	}
	return now
}
