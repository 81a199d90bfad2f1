package initiator

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/keylock"
	"gorail/backend/lifetime"
	"gorail/backend/link"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/staging"
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
	s         *Sessions
	number    uint64 // later ones are higher
	name      string
	raw       []byte
	blob      wire.ConnBlob
	linkPairs []rail.Pair    // the pairs of rails in use, once for each link
	peer      *transfer.Peer // what transfers know of us

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
	notifLink *link.Link       // notifications go out here
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

// Config is what the sessions need of their engine.
type Config struct {
	Options   *option.Options
	Log       *slog.Logger
	Life      *lifetime.Engine
	Core      *core.Core
	Links     *link.Set
	Regions   *region.Registry
	Staging   *staging.Side
	Transfers *transfer.Table
	Past      *link.History
}

// Sessions are all sessions of ours. Safe for concurrent use.
type Sessions struct {
	Config
	node *peer.Node
	own  wire.ConnBlob // what peers get of us,
	raw  []byte        // encoded

	loads keylock.Locks[string] // by agent name: each peer is loaded by one caller at a time
	hurry chan struct{}         // closed: sessions that are being left do not wait for peers any more

	mu      sync.RWMutex
	byName  map[string]*Session
	leavers map[*Session]*departure // no name leads to them any more: they deliver their last notifications
}

// conn is one connection to a session's peer: what the control channel calls for it (peer.InitiatorHandler), and what transfers and their runs ask of
// it (transfer.Live, staging.Session). A session that is suspended and connected again has another.
type conn struct {
	r        *Session
	requests *staging.Requests

	// Guarded by Session.mu.
	out     *peer.Out // nil until it is dialed
	parting *parting  // of its end; nil: it asks nothing
}

// departure is the application's letting go of a peer, which the session outlives while the peer may lack notifications.
type departure struct {
	why   error
	ended chan struct{} // closed when the session has ended, or the application has loaded the peer again
	final bool          // there is nothing to deliver, and no way back; under Session.mu

	// Guarded by Session.mu.
	asked   bool          // whether the peer has
	next    uint64        // all notifications below this one,
	drained chan struct{} // closed when it has
}

// revocation is a REVOKE that waits for transfers to drain.
type revocation struct {
	id   uint64
	all  bool
	gone map[*region.Region]bool // regions of it that we had
	left map[*transfer.Transfer]struct{}
}

// parting is the end of a connection of ours whose control channel works: the target is asked to close its end of the links on which operations
// failed. It implements link.Farewell.
type parting struct {
	s     *Sessions
	out   *peer.Out
	until time.Time

	mu   sync.Mutex
	left map[uint64]struct{} // FENCEs without an answer
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
	for _, p := range r.linkPairs {
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

func newConn(r *Session) *conn {
	c := &conn{r: r}
	c.requests = staging.NewRequests(r.s.Staging, r.name, c, r.s.Options.XferTimeout)
	return c
}

// current says that it is the session's, not one before it. Under Session.mu.
func (c *conn) current() bool { return c.r.conn == c }
