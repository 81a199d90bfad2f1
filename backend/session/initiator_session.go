package session

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/staging"
	"gorail/backend/stats"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// The states of a session with a loaded peer.
//
//	               Welcome             silence, a failed path, an error of ours or of the peer
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
	errLocal  = errors.New("local failure") // marks a failure of this side
)

// Initiator is a peer whose connection blob was loaded: the session in which we are the initiator. Comments say which methods run under mu,
// or within change (change is called under mu). The others take mu, or need none.
type Initiator struct {
	s      *Initiators
	number uint64 // a later session has a higher number
	name   string
	raw    []byte
	blob   wire.ConnBlob
	ways   map[int]string // by our rail's index: the way to a peer of this host, if it is not the best (provider.Host)
	peer   *transfer.Peer // the transfers' view of this session

	once

	mu      sync.RWMutex
	state   transfer.State
	err     error          // why the session is suspended, lost or closed
	code    *errcode.Code  // of transfers in flight, and of posts to a lost peer
	leaving *disconnection // set while the session only delivers, after the application has disconnected the peer; else nil
	conn    *conn          // the current or next connection; never nil
	dials   failedDials
	control []string // the peer's control addresses of now, as it has said; nil: the blob's
	sessionLinks
	keys
	outbox
	moves moves
}

// once are events that wait once at most, however often they come.
type once struct {
	watched atomic.Bool              // a run of fenceStuck is queued or running
	told    atomic.Pointer[[]string] // control addresses that a queued run of peerMoved takes
}

// sessionLinks are the links of the connection that is ready. Under Initiator.mu.
type sessionLinks struct {
	linkPairs []rails.Pair // the rail pair of each link of a Hello
	pairings
	offered     []wire.RailOffer // the peer's rails that may be reached
	apart       []railPair       // that did not connect in this session
	apartLogged bool             // the log says that rails of the peer do not reach some of ours
	leftHost    bool             // shared memory is not used for this peer, although it was reached: see leaveHost
	sess        core.Session
	hasSess     bool
	links       []*Link
	failover    Failover  // over the same links
	notifLink   *Link     // carries the notifications without a transfer
	connected   bool      // a link is proved, and the log says so
	dialed      time.Time // start of the last dial
	path        pathLog
}

// keys are the known keys of the peer's memory. Under Initiator.mu. Fields of regions that transfers read are written with
// transfer.Peer.mu as well: see change.
type keys struct {
	slab     region.Slab
	regions  map[wire.Claim]*region.Region
	byTarget map[uint64]*region.Region
	// regions with keys that the agent has unloaded while prepared transfers still pinned them; some may have no pin
	// left
	unloaded []*region.Region
	requests map[uint64][]*region.Region
	wanted   []*region.Region // their keys are requested when fewer than MostPulled requests are in flight
	revokes  []*revocation
	early    map[uint64]bool // regions revoked while a key request is in flight
	wider    wider
}

// outbox are accepted notifications for the next connection. Under Initiator.mu.
type outbox struct {
	notifs []core.Taken
	// the connection before, whose numbers the next connection continues; 0: there was none
	after     uint64
	gap       bool      // the target may hold notifications behind one that was given up
	keptUntil time.Time // the notifications are dropped after this time; zero: no time is set
	redials   bool      // a timer will connect again
	notifLen  uint64    // their size in notif_queue
}

// InitiatorConfig holds the parts of the engine that the sessions use.
type InitiatorConfig struct {
	Options   *option.Options
	Log       *slog.Logger
	Life      *core.Lifetime
	Core      *core.Core
	Links     *Set
	Regions   *region.Registry
	Staging   *staging.Side
	Transfers *transfer.Table
	Past      *History
	Limits    *limits.Counts

	// Widen registers host memory on more rails, in the background.
	Widen func(on uint64)

	// Whereabouts returns the control addresses that an engine has told us in a session of its own; nil: none.
	Whereabouts func(wire.EngineID) []string
}

// Initiators are all sessions in which we are the initiator. Safe for concurrent use.
type Initiators struct {
	InitiatorConfig
	node *peer.Node
	own  wire.ConnBlob // our connection blob
	raw  []byte        // own, encoded

	reach        reachOf       // what was learned of pairs of rails
	loads        Locks[string] // by agent name: one caller at a time loads a peer
	stopDelivery chan struct{} // closed: disconnecting sessions stop waiting for peers

	mu            sync.RWMutex
	byName        map[string]*Initiator
	disconnecting map[*Initiator]*disconnection // removed from byName; they deliver their last notifications
}

// conn is one connection to a session's peer. It implements the control channel's callbacks (peer.InitiatorHandler), and
// what staged runs ask of a session (staging.Session). A suspended session that connects again has a new conn.
type conn struct {
	r        *Initiator
	requests *staging.Requests
	handles  *handleAsks
	question question

	// Guarded by Initiator.mu.
	out     *peer.Out        // nil before the dial
	parting *parting         // the end of this connection; nil: it needs no FENCE
	rings   []*region.Region // the peer's bounce buffers for this connection
	resumed time.Time        // when the control channel had another connection last
	forget  func()           // cancels proofLate; nil: nothing awaits a proof
}

// question asks for the peer's snapshot (report.go). One question at a time has no answer yet, so a peer that answers none costs
// one frame.
type question struct {
	mu     sync.Mutex
	id     uint64 // 0: none waits for its answer
	answer chan wire.Snapshot
}

// disconnection is a disconnection by the application. The session stays while the peer may lack notifications.
type disconnection struct {
	why   error
	ended chan struct{} // closed when the session has ended, or the application has loaded the peer again
	final bool          // nothing is left to deliver, so Load cannot take the session back; under Initiator.mu

	// Guarded by Initiator.mu.
	drainSent bool          // a Drain is in flight or answered
	next      uint64        // the Drain asks for all notifications below this number
	drained   chan struct{} // closed when the peer has them
}

// revocation is a REVOKE that waits for transfers to drain.
type revocation struct {
	id      uint64
	renewed bool // the regions stay registered
	all     bool
	gone    map[*region.Region]bool // its regions that we had
	left    map[*transfer.Transfer]struct{}
}

// parting is the end of a connection while its control channel works. It asks the target to close the target's end of
// the links on which operations failed.
type parting struct {
	s     *Initiators
	out   *peer.Out
	until time.Time

	mu   sync.Mutex
	left map[uint64]struct{} // FENCEs without an answer
}

// Peer is the transfers' view of the session.
func (r *Initiator) Peer() *transfer.Peer { return r.peer }

// view: under mu.
func (r *Initiator) view() View {
	return NewView(stats.Peer{Agent: r.name, Engine: r.blob.Engine.String(), Direction: stats.Initiator, State: r.state.String(), Session: r.sess.ID},
		r.links, r.peer.RailName)
}

// Weight is the link's share of the speed of its pair of rails, in Mbit/s; 0: unknown. Under mu.
func (r *Initiator) Weight(l *Link) uint64 {
	speed, links := r.peer.Mbps(l.Rail, l.Peer), uint64(0)
	for _, o := range r.links {
		if o.Rail == l.Rail && o.Peer == l.Peer {
			links++
		}
	}
	return (speed + links - 1) / links
}

// inUse names the rails in use. Under mu.
func (r *Initiator) inUse() []string { return Names(InUse(r.links)) }

func newConn(r *Initiator) *conn {
	c := &conn{r: r}
	c.requests = staging.NewRequests(r.s.Staging, r.name, c, r.s.Options.XferTimeout)
	c.handles = &handleAsks{send: c.Send, id: r.s.Life.NextID, waits: map[uint64]chan *wire.Handles{}}
	return c
}

// current returns true if c is the session's connection, and not an earlier one. Under Initiator.mu.
func (c *conn) current() bool { return c.r.conn == c }
