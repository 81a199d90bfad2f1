package engine

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"gorail/backend/fastpath"
	"gorail/backend/peer"
	"gorail/backend/rail"
	"gorail/backend/status"
	"gorail/backend/wire"
	"gorail/backend/xfer"
)

// remoteState is where a loaded peer stands.
//
//	Connecting -> Ready -> Lost -> (new metadata) a new remote
//	any -> Closed (disconnect, replacement, end of the engine)
type remoteState int

const (
	connecting remoteState = iota
	ready
	lost
	closed
)

// remote is a peer whose connection blob was loaded: the session in which we are the initiator. Posts hold mu for
// reading; whatever opens or closes links holds it for writing.
type remote struct {
	e     *Engine
	name  string
	raw   []byte
	blob  wire.ConnBlob
	self  bool
	pairs []rail.Pair // the rails in use, ours and the peer's
	lanes []rail.Pair // the same, once for each link

	mu       sync.RWMutex
	state    remoteState
	err      error       // why it is lost
	code     status.Code // what posts to a lost peer get
	out      *peer.Out
	sess     fastpath.Session
	hasSess  bool
	links    []*link
	home     *link  // notifications go out here
	epoch    uint64 // grows when keys or links change: a transfer checked under an older one is checked again
	waiting  []*transfer
	notifs   [][]byte // accepted before the link was up
	notifLen uint64
	regions  map[wire.Range]*region
	rates    rates
	byTarget map[uint64]*region
	unloaded []*region // keyed, and forgotten by the agent but not by prepared transfers; some may have no pin left
	requests map[uint64][]*region
	wanted   []*region // their keys are asked for when there is time
	revokes  []*revocation
	asked    *asking
	early    map[uint64]bool // regions revoked while their keys were asked for
	leaving  *parting        // of the session's end
	held     []held
	heldFrom time.Time // when the first of them ended
	heldTo   time.Time
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

// LoadConn takes a peer's connection blob and begins to connect; the same blob again changes nothing, a different one
// or one of a lost peer replaces what we held.
func (e *Engine) LoadConn(name string, raw []byte) error {
	if err := e.usable(); err != nil {
		return err
	}
	blob, err := wire.DecodeConn(raw)
	if err != nil {
		return status.Errorf(status.ErrMismatch, "connection blob of agent %q: %w", name, err)
	}
	e.mu.RLock()
	old := e.remotes[name]
	e.mu.RUnlock()
	if old != nil && bytes.Equal(old.raw, raw) && old.alive() {
		return nil
	}
	r, err := e.newRemote(name, bytes.Clone(raw), blob)
	if err != nil {
		return err
	}
	e.mu.Lock()
	old = e.remotes[name]
	e.remotes[name] = r
	e.mu.Unlock()
	if old != nil {
		old.close("replaced by new metadata")
	}
	r.dial()
	return nil
}

func (e *Engine) newRemote(name string, raw []byte, blob wire.ConnBlob) (*remote, error) {
	r := &remote{e: e, name: name, raw: raw, blob: blob, self: blob.Engine == e.id, regions: map[wire.Range]*region{},
		byTarget: map[uint64]*region{}, requests: map[uint64][]*region{}, asked: newAsking()}
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
	n := min(r.e.opt.QPsPerRail, max(1, int(r.blob.Links)), fastpath.MaxLinks/len(r.pairs))
	for round := range n {
		for _, p := range r.pairs {
			if round == 0 || !r.e.rails[p.Own].caps.SharedEndpoint {
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
	devices := r.e.devices()
	usable := slices.DeleteFunc(slices.Clone(r.blob.Rails), func(o wire.RailOffer) bool {
		return int(o.Index) >= fastpath.Slots(r.e.opt) || len(o.Proof) > 0 && !r.proved(o, same) // no slot for its keys, or no way there
	})
	all := rail.Match(devices, usable, same)
	return all[:min(fastpath.MaxLinks, len(all))]
}

func (r *remote) alive() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.state == connecting || r.state == ready
}

func (r *remote) dial() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == connecting && r.out == nil {
		r.out = r.e.node.Dial(r.blob, initiatorHandler{r})
	}
}

// remote finds a peer by name; our own name gives the session with ourselves, made on first use.
func (e *Engine) remote(name string) *remote {
	e.mu.RLock()
	r := e.remotes[name]
	e.mu.RUnlock()
	if r != nil || name != e.name {
		return r
	}
	if e.LoadConn(name, e.conn) != nil {
		return nil
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.remotes[name]
}

// Connect begins to connect to a loaded peer, or to ourselves, and returns.
func (e *Engine) Connect(name string) error {
	if name == e.name {
		return nil // the session with ourselves is made on first use
	}
	if e.remote(name) == nil {
		return status.Errorf(status.ErrNotFound, "connect: no connection info of agent %q is loaded", name)
	}
	return nil
}

// Disconnect forgets a peer; transfers in flight to it end in an error.
func (e *Engine) Disconnect(name string) error {
	e.mu.Lock()
	r := e.remotes[name]
	delete(e.remotes, name)
	e.mu.Unlock()
	if r == nil {
		return status.Errorf(status.ErrNotFound, "disconnect: agent %q is not loaded", name)
	}
	r.close("disconnected by the application")
	return nil
}

// close ends the session on purpose.
func (r *remote) close(why string) {
	r.mu.Lock()
	out := r.out
	was := r.state
	r.state = closed
	var drained <-chan struct{}
	if was == connecting || was == ready {
		r.err = errors.New(why)
		drained = r.down(int32(status.ErrBackend))
	}
	for rng, g := range r.regions {
		delete(r.regions, rng)
		r.retire(g)
	}
	r.mu.Unlock()
	if out != nil && (was == connecting || was == ready) {
		r.goodbye(out, drained, why)
	}
}

// goodbye tells the peer of the session's end, once drained: the peer forgets our address with the session, not while operations are on
// their way to it.
func (r *remote) goodbye(out *peer.Out, drained <-chan struct{}, why string) {
	if drained == nil {
		out.Close(why)
		return
	}
	r.e.late.Go(func() {
		select {
		case <-drained:
		case <-time.After(goodbyeWait):
		}
		out.Close(why)
	})
}

// goodbyeWait is how long a session's end is held back for what is in flight.
const goodbyeWait = 10 * time.Second
