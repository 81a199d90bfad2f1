package peer

import (
	"log/slog"
	"net"
	"time"

	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// The defaults of Config.
const (
	DefaultPeerTimeout    = time.Minute
	DefaultConnectTimeout = 30 * time.Second
	defaultMaxSessions    = 4096
	defaultQueueLimit     = 64 << 20
	defaultMemory         = 256 << 20
)

// maxHeartbeat bounds the base of all heartbeat intervals: a quarter of it between pings, and a third of it in
// silence before another path is tried. A larger PeerTimeout only lets the session wait longer.
const maxHeartbeat = 5 * time.Second

// maxReach bounds the time for an address to accept a connection, and for the handshake of an unauthenticated
// connection.
const maxReach = 5 * time.Second

// maxProof bounds the time for each of the two steps of a handshake after the Open, which has shown the token. A host that starves for processor time took longer
// than maxReach: where 64 agents all met on two cores, of 6,000 handshakes 970 were ended after TLS, and began again.
const maxProof = 30 * time.Second

// Config of a Node. A zero duration or limit selects the default.
type Config struct {
	Identity       wire.ConnBlob   // of this engine, with its token; Control is unused
	Key            *trust.Key      // of this engine, the one that Identity.Pin names
	Operator       *trust.Operator // proves who operates this engine, and checks peers; nil: nobody
	CertifiedNames bool            // a peer's certificate must have its agent's name
	PeerTimeout    time.Duration   // a session is lost if its peer shows no sign of life for this long, on any path
	ConnectTimeout time.Duration   // for a whole dial, handshake included
	MaxSessions    int             // inbound sessions; one more is refused as busy, and may end the session with the longest silent peer
	MaxPerSource   int             // inbound sessions from one address; default three quarters of MaxSessions
	Memory         int             // bytes of frames that all inbound sessions may hold; above it, the session with the most is ended
	QueueLimit     int             // bytes that may wait to be sent or acknowledged on one session; large answers need at least 4 MiB
	Listen         []string        // "ip:port", port 0 for any; no wildcard address, because peers get these addresses
	Later          []string        // the same for interfaces that are down; they accept connections as soon as they are up
	CloseInForks   host.ForkCloser // nil: children of fork may inherit our sockets
	Heard          func()          // called for each frame that comes; it must not wait. nil: nobody wants to know
	Log            *slog.Logger    // nil: no log
	Limits         *limits.Counts

	acks func(c net.Conn, recent time.Duration) bool // Acknowledges, except in tests
}

// withDefaults fills in zero fields.
func (cfg Config) withDefaults() Config {
	if cfg.PeerTimeout <= 0 {
		cfg.PeerTimeout = DefaultPeerTimeout
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = defaultMaxSessions
	}
	if cfg.MaxPerSource <= 0 {
		cfg.MaxPerSource = (3*cfg.MaxSessions + 3) / 4
	}
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory
	}
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = defaultQueueLimit
	}
	if cfg.acks == nil {
		cfg.acks = acknowledges
	}
	if cfg.Heard == nil {
		cfg.Heard = func() {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// heartbeat is the base of the intervals of pings and of reconnects over other paths.
func (c *Config) heartbeat() time.Duration { return min(c.PeerTimeout, maxHeartbeat) }

// reach is the time for an address to accept a connection, and for an unauthenticated connection to prove itself.
func (c *Config) reach() time.Duration { return min(c.ConnectTimeout, maxReach) }

// proof is the time for the first record of TLS, and again for TLS and the Hello.
func (c *Config) proof() time.Duration { return min(c.ConnectTimeout, maxProof) }
