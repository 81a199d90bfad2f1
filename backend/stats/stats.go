// Package stats says what an engine counts: typed snapshots, to be written as JSON or in any other form. Counters only grow
// while the engine lives; gauges say so.
package stats

import (
	"cmp"
	"slices"
)

// Counts are the counters of a link, and, summed up, of a rail or a peer.
type Counts struct {
	BytesWritten     uint64 `json:"bytes_written"` // by our WRITEs and READs; what was posted twice and came twice counts twice
	BytesRead        uint64 `json:"bytes_read"`
	WorkRequests     uint64 `json:"work_requests"` // RMA operations posted
	Completions      uint64 `json:"completions"`   // of work requests, messages and receives, well or not
	Errors           uint64 `json:"errors"`        // completions with an error while the link was in use, and posts refused for good
	Cancelled        uint64 `json:"cancelled"`     // completions with an error after it had stopped: consequences, or the end
	Retries          uint64 `json:"retries"`       // work requests and messages that had to be posted again, here or on another link
	EAGAIN           uint64 `json:"eagain"`        // posts refused for now
	MessagesSent     uint64 `json:"messages_sent"` // notifications, by fragments
	MessagesReceived uint64 `json:"messages_received"`
	Probes           uint64 `json:"probes"` // messages that only try a link
	Fences           uint64 `json:"fences"` // times the link was taken out of use, its endpoint closed or drained
	Stalls           uint64 `json:"stalls"` // of these, because nothing moved on it, or a probe was not answered
}

// Add adds another's counts.
func (c *Counts) Add(o Counts) {
	c.BytesWritten += o.BytesWritten
	c.BytesRead += o.BytesRead
	c.WorkRequests += o.WorkRequests
	c.Completions += o.Completions
	c.Errors += o.Errors
	c.Cancelled += o.Cancelled
	c.Retries += o.Retries
	c.EAGAIN += o.EAGAIN
	c.MessagesSent += o.MessagesSent
	c.MessagesReceived += o.MessagesReceived
	c.Probes += o.Probes
	c.Fences += o.Fences
	c.Stalls += o.Stalls
}

// Snapshot is what an engine has counted. Each counter was true at some moment while it was taken, not all at the same one.
type Snapshot struct {
	Agent string `json:"agent"`
	Rails []Rail `json:"rails"`
	Peers []Peer `json:"peers"`

	Staged Staged `json:"staged"`
}

// Staged is what went over rings, because no rail moves it by itself. The rails' counters have it, too, once for each way over a wire.
type Staged struct {
	Transfers uint64 `json:"transfers"` // runs that began
	Bytes     uint64 `json:"bytes"`     // of those that ended well
	Copies    uint64 `json:"copies"`    // that peers had us make
}

// RailState is how the links of a rail fare.
type RailState string

// States of a rail.
const (
	Idle     RailState = "idle"     // it has no links
	Up       RailState = "up"       // all of its links work
	Degraded RailState = "degraded" // some do
	Down     RailState = "down"     // none does, or its interface has not come up since the engine was made
)

// Rail is a device in use. Its counters have those of all its links since the engine was made, gone ones included.
type Rail struct {
	Index    int       `json:"index"`
	Name     string    `json:"name"`   // as in logs: fabric and device
	Device   string    `json:"device"` // eth0, mlx5_0
	Fabric   string    `json:"fabric"` // the library's provider: net, tcp, efa
	State    RailState `json:"state"`
	Links    int       `json:"links"`           // now
	InFlight uint64    `json:"bytes_in_flight"` // now: posted and not proved
	Counts

	ForPeers uint64 `json:"bytes_copied_for_peers"` // on one host: of their WRITEs and READs, while our application polled
	ByPeers  uint64 `json:"bytes_copied_by_peers"`  // of ours; they are among the bytes written and read
}

// Direction of a session.
type Direction string

// Directions.
const (
	Initiator Direction = "initiator" // we move data and send notifications
	Target    Direction = "target"    // the peer does; its bytes are in its own counters
)

// Peer is a session with another engine, or with ourselves; one for each direction. Those that have ended are kept for a
// while: an agent may be there several times.
type Peer struct {
	Agent     string    `json:"agent"`
	Engine    string    `json:"engine"` // its id: another one after a restart
	Direction Direction `json:"direction"`
	State     string    `json:"state"` // connecting, ready; lost, closed: it has ended
	InFlight  uint64    `json:"bytes_in_flight"`
	Counts
	Links []Link `json:"links"`
}

// Ended says that the session has.
func (p *Peer) Ended() bool { return p.State == "lost" || p.State == "closed" }

// Working is the phase of a link that carries traffic.
const Working = "working"

// Link is a session's share of a rail: what went that way.
type Link struct {
	Rail      string `json:"rail"` // ours
	Index     int    `json:"index"`
	PeerRail  string `json:"peer_rail"` // the initiator knows its name, the target its number only
	PeerIndex int    `json:"peer_index"`
	Number    int    `json:"number"` // of the session's links: a pair of rails may have several
	Phase     string `json:"phase"`  // connecting, working, fencing, draining, resting, probing, closed
	InFlight  uint64 `json:"bytes_in_flight"`
	Rate      uint64 `json:"rate"` // as measured, bytes per second; 0: not yet
	Counts
}

// New puts a snapshot together: peers get the sums over their links, rails their states, and all are sorted.
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
