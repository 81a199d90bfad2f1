package initiator

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/stats"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// Where a loaded peer stands.
//
//	               Welcome             silence, a broken path, an error of ours or of the peer's
//	connecting ----------------> ready ----------------------------------------------------------> suspended
//	   ^  |                        |                                                                 |   ^
//	   |  +--- peer is dead ---+   +--- peer is dead ---+                                            |   |
//	   |                       v                        v                                            |   |
//	   |                      lost --- (new metadata) --> another Session                            |   |
//	   +---------------------------------- next post or notification --------------------------------+   |
//	      connecting ------------------- not reached within connect_timeout ------------------------------+
//	any -> closed (disconnect, replacement, end of the engine)
const (
	connecting = transfer.Connecting
	ready      = transfer.Ready
	suspended  = transfer.Suspended
	lost       = transfer.Lost
	closed     = transfer.Closed
)

var (
	errClosed = errors.New("engine closed")
	errOurs   = errors.New("local failure") // marks a failure of this side's
)

// Session is a peer whose connection blob was loaded: the session in which we are the initiator.
type Session struct {
	s      *Sessions
	number uint64 // later ones are higher
	name   string
	raw    []byte
	blob   wire.ConnBlob
	lanes  []rail.Pair    // the pairs of rails in use, once for each link
	peer   *transfer.Peer // what transfers know of us

	watched atomic.Bool // the last look at its links is not over

	mu      sync.RWMutex
	state   transfer.State
	err     error       // why it is suspended, lost or closed
	code    status.Code // what transfers in flight got, and posts to a lost peer get
	leaving *departure  // the application has let go of it, and the session lives on to deliver; else nil
	conn    *conn       // the connection that is there or being made; never nil
	dials   failedDials
	wires
	keys
	outbox
}

// wires are the links of the connection that is ready. Under Session.mu.
type wires struct {
	sess      core.Session
	hasSess   bool
	links     []*link.Link
	failover  failover.Session // the same links
	home      *link.Link       // notifications go out here
	connected bool             // a link of theirs is proved, and the log has it
	dialed    time.Time        // the connection
}

// keys are what is known of the peer's memory. Under Session.mu; what transfers read of regions is written with transfer.Peer.mu, too: see change.
type keys struct {
	regions  map[wire.Range]*region.Region
	byTarget map[uint64]*region.Region
	unloaded []*region.Region // keyed, and forgotten by the agent but not by prepared transfers; some may have no pin left
	requests map[uint64][]*region.Region
	wanted   []*region.Region // their keys are asked for when there is time
	revokes  []*revocation
	early    map[uint64]bool // regions revoked while their keys were asked for
}

// outbox are notifications that were accepted, for the next connection. Under Session.mu.
type outbox struct {
	notifs    []core.Taken
	after     uint64    // the connection before, whose numbers the next one goes on from; 0: there was none
	gap       bool      // the target may hold notifications behind one that was given up
	keptUntil time.Time // they are given up then; zero: none was kept
	notifLen  uint64    // what they count towards notif_queue
}

func (s *Sessions) newSession(name string, raw []byte, blob wire.ConnBlob) (*Session, error) {
	r := &Session{s: s, number: s.Life.NextID(), name: name, raw: raw, blob: blob,
		keys: keys{regions: map[wire.Range]*region.Region{}, byTarget: map[uint64]*region.Region{}, requests: map[uint64][]*region.Region{}}}
	r.failover.Timeout = s.Options.RailTimeout
	r.conn = newConn(r)
	pairs := r.pair()
	if len(pairs) == 0 {
		err := status.Errorf(status.ErrNotSupported, "agent %q offers no rail that ours can reach: its rails %v, ours %v (options provider, devices)",
			name, railNames(blob.Rails), railNames(s.own.Rails))
		s.Log.Error("peer not usable", "peer", name, "err", err) // NIXL tries other backends and says nothing of ours
		return nil, err
	}
	r.lanes = r.spread(pairs)
	r.peer = s.Transfers.NewPeer(name, blob.Engine == s.own.Engine, pairs, len(r.lanes), r)
	return r, nil
}

// Peer is what transfers know of the session.
func (r *Session) Peer() *transfer.Peer { return r.peer }

// change makes a change of what posts look at, links, keys and the state, and publishes it: see transfer.Peer.Change. f may be nil. Under mu.
func (r *Session) change(f func()) { r.peer.Change(r.publish(f)) }

// changeAndKick is change, with which transfers may begin that wait: before what is posted after it. Under mu.
func (r *Session) changeAndKick(f func()) { r.peer.ChangeAndKick(r.publish(f)) }

func (r *Session) publish(f func()) func(v *transfer.View) {
	return func(v *transfer.View) {
		if f != nil {
			f()
		}
		*v = transfer.View{State: r.state, Leaving: r.leaving != nil, Why: r.err, Code: r.code}
		if r.state != ready {
			return
		}
		v.Live = r.conn
		for _, l := range r.links {
			if l.Up {
				v.Routes = append(v.Routes, transfer.Route{Link: l.Core, Rail: l.Rail, Peer: l.Peer, Epoch: l.Epoch,
					Working: l.Phase == failover.Working, Away: l.Away()})
			}
		}
	}
}

// spread gives every pair as many links as both sides want, in rounds: what fits is even.
func (r *Session) spread(pairs []rail.Pair) (lanes []rail.Pair) {
	n := min(r.s.Options.QPsPerRail, max(1, int(r.blob.Links)), core.MaxLinks/len(pairs))
	for round := range n {
		for _, p := range pairs {
			if round == 0 || !r.s.Links.Rails.List[p.Own].Can.SharedEndpoint {
				lanes = append(lanes, p)
			}
		}
	}
	return lanes
}

func railNames(offers []wire.RailOffer) []string {
	names := make([]string, len(offers))
	for i, o := range offers {
		names[i] = o.Fabric + "/" + o.Name + " " + o.Subnet
	}
	return names
}

// pair chooses the rails for this peer: all that reach one of its.
func (r *Session) pair() []rail.Pair {
	own := r.s.own
	same := own.Boot != "" && own.Boot == r.blob.Boot && own.NetNS != 0 && own.NetNS == r.blob.NetNS
	devices := r.s.Links.Rails.Devices()
	usable := slices.DeleteFunc(slices.Clone(r.blob.Rails), func(o wire.RailOffer) bool {
		return int(o.Index) >= core.Slots(r.s.Options.MaxRails) || len(o.Proof) > 0 && !r.reaches(o, same) // no slot for its keys, or no way there
	})
	all := rail.Match(devices, usable, same)
	if slices.ContainsFunc(r.s.Links.Rails.List, (*rails.Rail).Waits) {
		all = r.besideLate(all, devices, usable, same)
	}
	return all[:min(core.MaxLinks, len(all))]
}

// besideLate adds, in front, the pairs that there would be without the rails that wait for their interface: these may never come.
func (r *Session) besideLate(all []rail.Pair, devices []provider.Device, usable []wire.RailOffer, same bool) []rail.Pair {
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

// view: under mu.
func (r *Session) view() link.View {
	return link.NewView(stats.Peer{Agent: r.name, Engine: r.blob.Engine.String(), Direction: stats.Initiator, State: r.state.String()},
		r.links, r.PeerRail)
}

// PeerRail is the name of a rail of the peer's. Implements transfer.Session.
func (r *Session) PeerRail(n int) string {
	for _, o := range r.blob.Rails {
		if int(o.Index) == n {
			return o.Fabric + "/" + o.Name
		}
	}
	return ""
}

// Mbps is the speed of a pair of rails, in Mbit/s; 0: unknown. Implements transfer.Session.
func (r *Session) Mbps(own *rails.Rail, peer int) uint64 {
	speed := own.Device().Mbps
	for _, o := range r.blob.Rails {
		if int(o.Index) == peer && o.Mbps > 0 && (speed == 0 || o.Mbps < speed) {
			speed = o.Mbps
		}
	}
	return speed
}

// Weight is the link's part of the speed of its pair of rails, in Mbit/s; 0: unknown.
func (r *Session) Weight(l *link.Link) uint64 {
	speed, links := r.Mbps(l.Rail, l.Peer), uint64(0)
	for _, p := range r.lanes {
		if p.Own == l.Rail.Index && p.Peer == l.Peer {
			links++
		}
	}
	return (speed + links - 1) / links
}

// path names the rails in use. Under mu.
func (r *Session) path() []string { return link.Names(link.InUse(r.links)) }

// Path names the rails in use. Implements transfer.Session.
func (r *Session) Path() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.path()
}

// out is the session's on the control channel; nil until it is dialed. Under mu.
func (r *Session) out() *peer.Out { return r.conn.out }
