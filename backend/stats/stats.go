// Package stats defines an engine's counters as typed snapshots, to be written as JSON or in any other form. Counters
// only grow while the engine lives. Gauges are marked as such.
package stats

import (
	"cmp"
	"slices"
)

// Counts are the counters of a link. Their sums are the counters of a rail or a peer.
type Counts struct {
	BytesWritten     uint64 `json:"bytes_written"` // by our WRITEs and READs; bytes posted twice and completed twice count twice
	BytesRead        uint64 `json:"bytes_read"`
	WorkRequests     uint64 `json:"work_requests"` // RMA operations posted
	Completions      uint64 `json:"completions"`   // of work requests, messages and receives, successful or not
	Errors           uint64 `json:"errors"`        // completions with an error while the link was in use, and posts refused permanently
	Flushed          uint64 `json:"flushed"`       // posted operations that ended unfinished with their endpoint or transfer: mostly receives, at the end of a session
	Retries          uint64 `json:"retries"`       // work requests and messages posted again, on this or another link
	EAGAIN           uint64 `json:"eagain"`        // posts refused temporarily
	MessagesSent     uint64 `json:"messages_sent"` // notifications, counted by fragments
	MessagesReceived uint64 `json:"messages_received"`
	Probes           uint64 `json:"probes"` // messages that only test a link
	Fences           uint64 `json:"fences"` // times the link was taken out of use and its endpoint closed or drained
	Stalls           uint64 `json:"stalls"` // fences because nothing moved on the link or a probe got no answer
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.BytesWritten += o.BytesWritten
	c.BytesRead += o.BytesRead
	c.WorkRequests += o.WorkRequests
	c.Completions += o.Completions
	c.Errors += o.Errors
	c.Flushed += o.Flushed
	c.Retries += o.Retries
	c.EAGAIN += o.EAGAIN
	c.MessagesSent += o.MessagesSent
	c.MessagesReceived += o.MessagesReceived
	c.Probes += o.Probes
	c.Fences += o.Fences
	c.Stalls += o.Stalls
}

// Snapshot holds an engine's counters. Each counter was read while the snapshot was taken, not all at the same moment.
type Snapshot struct {
	Agent string `json:"agent"`
	Rails []Rail `json:"rails"`
	Peers []Peer `json:"peers"`

	Staged Staged            `json:"staged"`
	Limits map[string]uint64 `json:"limits"` // how often each bound of what peers take took effect, by its name in docs/limits.md

	CapsRefused   uint64 `json:"caps_refused"`   // ranges of registered memory that peers named without its capability
	NameConflicts uint64 `json:"name_conflicts"` // sessions of peers that began under the name of another engine

	PeersRefusedVersion uint64 `json:"peers_refused_version"` // connection metadata of another wire version that was loaded
}

// Queues are what waits on a link now. All are 0 for a link that has no endpoint.
type Queues struct {
	Window    uint64 `json:"window"`           // bytes that may be in flight
	Ops       uint32 `json:"ops_in_flight"`    // operations posted, SENDs included
	Credits   uint32 `json:"credits"`          // messages that the peer has receives for
	Messages  uint32 `json:"queued_messages"`  // notification fragments
	Transfers uint32 `json:"queued_transfers"` // transfers that have operations to post
}

// Staged counts transfers through bounce buffers, which no rail can move directly. The rails' counters include these
// bytes, once per wire crossing.
type Staged struct {
	Transfers uint64 `json:"transfers"` // posts that began
	Bytes     uint64 `json:"bytes"`     // of posts that succeeded
	Copies    uint64 `json:"copies"`    // copies that peers requested

	Packed      uint64 `json:"bytes_compressed"`    // bytes that GPUs of this side compressed (option compression), for our WRITEs and peers' READs
	PackedBytes uint64 `json:"compressed_to_bytes"` // how many they became

	Times []Times `json:"times"` // how long these transfers took
}

// RailState is the state of a rail's links.
type RailState string

// States of a rail.
const (
	Idle     RailState = "idle"     // the rail has no links
	Up       RailState = "up"       // all links work
	Degraded RailState = "degraded" // some links work
	Down     RailState = "down"     // no link works, or the interface has not come up since the engine was created
)

// Rail is a device in use. Its counters are the sums over all its links since the engine was created, closed links
// included.
type Rail struct {
	Index    int       `json:"index"`
	Name     string    `json:"name"`   // as in logs: fabric and device
	Device   string    `json:"device"` // eth0, mlx5_0
	Fabric   string    `json:"fabric"` // the library's provider: net, tcp, efa
	State    RailState `json:"state"`
	Links    int       `json:"links"`           // now
	InFlight uint64    `json:"bytes_in_flight"` // now: posted and not yet flushed
	Mbps     uint64    `json:"mbps"`            // nominal speed, in megabits per second; 0: unknown
	Idle     Since     `json:"idle_seconds"`    // since the last completion
	Times    []Times   `json:"times"`           // how long transfers took
	Counts

	ForPeers uint64 `json:"bytes_copied_for_peers"` // shared memory: bytes of peers' WRITEs and READs that we copied while polling
	ByPeers  uint64 `json:"bytes_copied_by_peers"`  // bytes of ours that peers copied; included in bytes written and read
	Mapped   uint64 `json:"bytes_mapped"`           // bytes of ours that we copied to and from mappings of peers' memory; included, too

	Packed      uint64 `json:"bytes_compressed"`    // tcp: bytes that went out compressed (option compression), our own and those that peers read
	PackedBytes uint64 `json:"compressed_to_bytes"` // how many they became
}

// Direction of a session.
type Direction string

// Directions.
const (
	Initiator Direction = "initiator" // we move data and send notifications
	Target    Direction = "target"    // the peer moves data; its own counters have the bytes
)

// Peer is a session with another engine or with this engine, one per direction. Ended sessions are kept for a while, so
// an agent may appear several times.
type Peer struct {
	Agent     string    `json:"agent"`
	Engine    string    `json:"engine"` // the engine's id; a restart changes it
	Direction Direction `json:"direction"`
	State     string    `json:"state"`   // connecting, ready, or ended: lost, closed
	Session   uint64    `json:"session"` // number of the session within the engine, which traces use; 0: none yet
	InFlight  uint64    `json:"bytes_in_flight"`
	Counts
	Moves *Moves `json:"moves,omitempty"` // of a target's session
	Links []Link `json:"links"`
}

// Moves is what a session's initiator says that it moves here. It says so in its pings and answers to
// pings: while it moves bytes, every 1.25 s (wire.Moves, peer.Told). Nothing checks it.
type Moves struct {
	Written     uint64  `json:"written"` // bytes since the session began
	Read        uint64  `json:"read"`
	WrittenRate float64 `json:"written_rate"` // bytes per second, when it said so last
	ReadRate    float64 `json:"read_rate"`
	Age         Since   `json:"age_seconds"` // since it said so last
}

// Ended reports whether the session has ended.
func (p *Peer) Ended() bool { return p.State == "lost" || p.State == "closed" }

// Working is the phase of a link that carries traffic.
const Working = "working"

// Link is a session's share of a rail.
type Link struct {
	Rail      string `json:"rail"` // our rail
	Index     int    `json:"index"`
	PeerRail  string `json:"peer_rail"` // the initiator has its name, the target only its number
	PeerIndex int    `json:"peer_index"`
	Number    int    `json:"number"` // number of the link in its session: a pair of rails may have several links
	Phase     string `json:"phase"`  // connecting, working, fencing, draining, backing off, probing, closed
	InFlight  uint64 `json:"bytes_in_flight"`
	Rate      uint64 `json:"rate"`         // measured, in bytes per second; 0: not measured yet
	Idle      Since  `json:"idle_seconds"` // since the last completion
	Queues
	Counts
}

// New builds a snapshot. Peers get the sums over their links, rails get their states, and all are sorted.
func New(agent string, rails []Rail, peers []Peer) Snapshot {
	s := Snapshot{Agent: agent, Rails: append([]Rail{}, rails...), Peers: append([]Peer{}, peers...)}
	works, fails := map[int]int{}, map[int]int{}
	for i := range s.Peers {
		p := &s.Peers[i]
		p.Counts, p.InFlight = Counts{}, 0
		for _, l := range p.Links {
			p.Add(l.Counts)
			p.InFlight += l.InFlight
			switch {
			case p.Ended():
			case l.Phase == Working:
				works[l.Index]++
			default:
				fails[l.Index]++
			}
		}
	}
	for i := range s.Rails {
		r := &s.Rails[i]
		switch w, f := works[r.Index], fails[r.Index]; {
		case r.State == Down: // its interface has not come up yet
		case w+f == 0:
			r.State = Idle
		case f == 0:
			r.State = Up
		case w == 0:
			r.State = Down
		default:
			r.State = Degraded
		}
	}
	slices.SortFunc(s.Rails, func(a, b Rail) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortStableFunc(s.Peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Direction, b.Direction))
	})
	return s
}
