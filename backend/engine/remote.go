package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/wire"
	"gorail/backend/xfer"
)

// remoteState is where a loaded peer stands.
//
//	               Welcome             silence, a broken path, an error of ours or of the peer's
//	connecting ----------------> ready ----------------------------------------------------------> suspended
//	   ^  |                        |                                                                 |   ^
//	   |  +--- peer is dead ---+   +--- peer is dead ---+                                            |   |
//	   |                       v                        v                                            |   |
//	   |                      lost --- (new metadata) --> another remote                             |   |
//	   +---------------------------------- next post or notification --------------------------------+   |
//	      connecting ------------------- not reached within connect_timeout ------------------------------+
//	any -> closed (disconnect, replacement, end of the engine)
type remoteState int

const (
	connecting remoteState = iota
	ready
	suspended // no session, and no word that the peer is dead
	lost
	closed
)

// stateNames are as the counters have them.
var stateNames = [...]string{connecting: "connecting", ready: "ready", suspended: "suspended", lost: "lost", closed: "closed"}

// remote is a peer whose connection blob was loaded: the session in which we are the initiator. Posts hold mu for
// reading; whatever opens or closes links holds it for writing.
type remote struct {
	e      *Engine
	number uint64 // later ones are higher
	name   string
	raw    []byte
	blob   wire.ConnBlob
	self   bool
	pairs  []rail.Pair // the rails in use, ours and the peer's
	lanes  []rail.Pair // the same, once for each link

	events  serial      // what the core and the clock have for us
	swept   atomic.Bool // the sweeper's last look is not over
	watched atomic.Bool // nor is the one at its links

	mu        sync.RWMutex
	state     remoteState
	err       error       // why it is suspended, lost or closed
	code      status.Code // what transfers in flight got, and posts to a lost peer get
	leaving   *departure  // the application has let go of it, and the session lives on to deliver; else nil
	out       *peer.Out   // nil until it is dialed,
	dialed    time.Time   // then
	sess      core.Session
	hasSess   bool
	links     []*link
	connected bool   // a link of theirs is proved, and the log has it
	home      *link  // notifications go out here
	epoch     uint64 // grows when keys or links change: a transfer checked under an older one is checked again
	waiting   []*transfer
	notifs    []core.Taken // accepted, for the next session
	after     uint64       // the session before, whose numbers the next one goes on from; 0: there was none
	gap       bool         // the target may hold notifications behind one that was given up
	keptUntil time.Time    // they are given up then; zero: none was kept
	notifLen  uint64
	regions   map[wire.Range]*region.Region
	rates     rates
	byTarget  map[uint64]*region.Region
	unloaded  []*region.Region // keyed, and forgotten by the agent but not by prepared transfers; some may have no pin left
	requests  map[uint64][]*region.Region
	wanted    []*region.Region // their keys are asked for when there is time
	revokes   []*revocation
	asked     *asking         // of the session that is there or being made
	early     map[uint64]bool // regions revoked while their keys were asked for
	dials     failedDials
	held      []held
	heldFrom  time.Time // when the first of them ended
	heldTo    time.Time
}

// change comes before any change of what posts look at: state, links, keys. Transfers that were found good are looked at again
// with their next post, and nothing is posted past us until then. Under mu.
func (r *remote) change() {
	r.epoch++
	for _, rec := range r.e.xfers.CollectActive(func(rec *xfer.Record[*transfer]) bool {
		return rec.Value.remote == r && rec.Value.x.HasTicket()
	}) {
		rec.Value.x.TakeTicket() // should it have been freed meanwhile, and the slot be another's, that one goes through Go once
	}
}

func (e *Engine) newRemote(name string, raw []byte, blob wire.ConnBlob) (*remote, error) {
	r := &remote{e: e, number: e.ids.Add(1), name: name, raw: raw, blob: blob, self: blob.Engine == e.id, regions: map[wire.Range]*region.Region{},
		byTarget: map[uint64]*region.Region{}, requests: map[uint64][]*region.Region{}}
	r.asked = newAsking(r)
	r.pairs = r.pair()
	if len(r.pairs) == 0 {
		err := status.Errorf(status.ErrNotSupported, "agent %q offers no rail that ours can reach: its rails %v, ours %v (options provider, devices)",
			name, railNames(blob.Rails), railNames(e.blob.Rails))
		e.log.Error("peer not usable", "peer", name, "err", err) // NIXL tries other backends and says nothing of ours
		return nil, err
	}
	r.lanes = r.spread()
	return r, nil
}

// spread gives every pair as many links as both sides want, in rounds: what fits is even.
func (r *remote) spread() (lanes []rail.Pair) {
	n := min(r.e.opt.QPsPerRail, max(1, int(r.blob.Links)), core.MaxLinks/len(r.pairs))
	for round := range n {
		for _, p := range r.pairs {
			if round == 0 || !r.e.rails[p.Own].Can.SharedEndpoint {
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
func (r *remote) pair() []rail.Pair {
	own := r.e.blob
	same := own.Boot != "" && own.Boot == r.blob.Boot && own.NetNS != 0 && own.NetNS == r.blob.NetNS
	devices := r.e.railSet.Devices()
	usable := slices.DeleteFunc(slices.Clone(r.blob.Rails), func(o wire.RailOffer) bool {
		return int(o.Index) >= core.Slots(r.e.opt.MaxRails) || len(o.Proof) > 0 && !r.proved(o, same) // no slot for its keys, or no way there
	})
	all := rail.Match(devices, usable, same)
	if slices.ContainsFunc(r.e.rails, (*rails.Rail).Waits) {
		all = r.besideLate(all, devices, usable, same)
	}
	return all[:min(core.MaxLinks, len(all))]
}

// besideLate adds, in front, the pairs that there would be without the rails that wait for their interface: these may never come.
func (r *remote) besideLate(all []rail.Pair, devices []provider.Device, usable []wire.RailOffer, same bool) []rail.Pair {
	for i, rl := range r.e.rails {
		if rl.Waits() {
			devices[i] = provider.Device{Fabric: "\x00"} // pairs with nothing
		}
	}
	now := rail.Match(devices, usable, same)
	for _, p := range all {
		if r.e.rails[p.Own].Waits() {
			now = append(now, p)
		}
	}
	return now
}
