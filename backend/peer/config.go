package peer

import (
	"log/slog"
	"net"
	"time"

	"gorail/backend/peer/liveness"
	"gorail/backend/wire"
)

// Defaults of Config.
const (
	DefaultPeerTimeout    = time.Minute
	DefaultConnectTimeout = 30 * time.Second
	DefaultMaxSessions    = 4096
	DefaultQueueLimit     = 64 << 20
	DefaultMemory         = 256 << 20
)

// mostHeartbeat is the longest time that heartbeats are derived from: a quarter of it between pings, a third of silence before
// another path is tried. A larger PeerTimeout only lets the session wait longer.
const mostHeartbeat = 5 * time.Second

// mostReach bounds what is left to addresses that do not even accept a connection, and to handshakes of strangers.
const mostReach = 5 * time.Second

// Config of a Node. The zero value of a duration or limit is its default.
type Config struct {
	Identity       wire.ConnBlob // of this engine, with its token; Control is not used
	PeerTimeout    time.Duration // a session whose peer shows no sign of life for so long, on any path, is lost
	ConnectTimeout time.Duration // for all of a dial, handshake included
	MaxSessions    int           // that we serve; for one more the one whose peer is silent for longest gives way
	MaxPerSource   int           // of these, behind one address; default three quarters
	Memory         int           // bytes of frames that all sessions that we serve may hold; beyond it the one with the most ends
	QueueLimit     int           // bytes that may wait to be sent or acknowledged on one session; at least 4 MiB for large answers
	Listen         []string      // "ip:port", port 0 for any; no wildcard, for peers are told these addresses
	Later          []string      // the same of interfaces that are down: connections come once they are up
	Descriptors    Descriptors   // nil: children of fork may hold our sockets
	Log            *slog.Logger  // nil: none

	acks func(c net.Conn, recent time.Duration) bool // liveness.Acknowledges, but for tests
}

// withDefaults fills in what was left out.
func (cfg Config) withDefaults() Config {
	if cfg.PeerTimeout <= 0 {
		cfg.PeerTimeout = DefaultPeerTimeout
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = DefaultMaxSessions
	}
	if cfg.MaxPerSource <= 0 {
		cfg.MaxPerSource = (3*cfg.MaxSessions + 3) / 4
	}
	if cfg.Memory <= 0 {
		cfg.Memory = DefaultMemory
	}
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = DefaultQueueLimit
	}
	if cfg.acks == nil {
		cfg.acks = liveness.Acknowledges
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg
}

// heartbeat is what pings and the search for other paths are timed by.
func (c *Config) heartbeat() time.Duration { return min(c.PeerTimeout, mostHeartbeat) }

// reach is how long an address may take to accept a connection, and an unproved connection to prove itself.
func (c *Config) reach() time.Duration { return min(c.ConnectTimeout, mostReach) }
