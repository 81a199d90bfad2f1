package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorail/backend/provider"
)

// pathPause is the least time between two lines about a peer's path. A rail that goes down and up all the time gives
// one line each time.
const pathPause = time.Second

// pathLog is what the log says of the path of transfers to the peer. Under Initiator.mu.
type pathLog struct {
	unmapped string // why memory of the peer's GPUs is staged although a rail maps such memory; "": none is

	logged  string    // the path of the last line
	seen    string    // the path after the last change
	changes int       // changes since the last line
	at      time.Time // of the last line
	waits   bool      // a timer will log the changes
}

// notePath logs a change of the path, at most one a pathPause. Under mu.
func (r *Initiator) notePath() {
	if !r.connected || r.state != ready {
		return
	}
	now := r.pathText()
	if now == r.path.seen {
		return
	}
	r.path.seen = now
	r.path.changes++
	if left := time.Until(r.path.at.Add(pathPause)); left > 0 {
		if !r.path.waits {
			r.path.waits = true
			r.s.Life.After(left, r.pathLater)
		}
		return
	}
	r.logPath()
}

// Unmapped implements staging.Session.
func (c *conn) Unmapped(why string) {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.current() {
		r.path.unmapped = why
		r.notePath()
	}
}

func (r *Initiator) pathLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path.waits = false; r.path.changes > 0 && r.connected && r.state == ready {
		r.logPath()
	}
}

// logPath logs the change since the last line. Under mu.
func (r *Initiator) logPath() {
	args := []any{"peer", r.name, "engine", r.blob.Engine.String(), "from", r.path.logged, "to", r.path.seen}
	if r.path.changes > 1 {
		args = append(args, "suppressed", r.path.changes-1)
	}
	r.s.Log.Info("path to peer changed", args...)
	r.path.logged, r.path.changes, r.path.at = r.path.seen, 0, time.Now()
}

// pathText is the path of each type of memory: the rails that work, and for VRAM how they move it. Under mu.
func (r *Initiator) pathText() string {
	works := slices.DeleteFunc(slices.Clone(r.links), func(l *Link) bool { return !l.Up || l.Phase != Working })
	text := "DRAM:" + orNone(r.railNames(slices.DeleteFunc(slices.Clone(works), func(l *Link) bool { return l.Rail.Can().VRAMOnly })))
	if r.s.Regions.HasVRAM.Load() {
		path := vramPath(works, r.s.Regions.GPURails.Load())
		if (path == "ipc" || path == provider.NVLink) && r.path.unmapped != "" {
			path += " or staged (" + r.path.unmapped + ")"
		}
		text += " VRAM:" + path
	}
	return text
}

// railNames are the rails of links, with the way to a peer of this host if it is not the best. Under mu.
func (r *Initiator) railNames(links []*Link) (names []string) {
	for _, l := range links {
		name := l.Rail.Name()
		if way := r.ways[l.Rail.Index]; way != "" {
			name += " by " + way
		}
		if l.Rail.Device().Encrypts {
			name += " encrypted"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

// vramPath is how memory of GPUs moves over links: ipc (the GPU copies to the peer's GPU), nvlink (the same, on another host), direct (the device reads and
// writes the GPU), or staged (bounce buffers, also a rail's own). registered has the rails that took memory of a GPU.
func vramPath(works []*Link, registered uint64) string {
	path := "staged"
	for _, l := range works {
		if _, ok := l.Rail.Inner().(provider.VRAM); !ok || registered&(1<<l.Rail.Index) == 0 {
			continue
		}
		if l.Rail.Can().Bulk && !l.Rail.Device().Host {
			return provider.NVLink
		}
		if l.Rail.Can().Bulk {
			return "ipc"
		}
		if l.Rail.Can().Bounces == 0 {
			path = "direct"
		}
	}
	return path
}

// A peer is connected after a message has gone both ways over a link: the initiator's probe and the target's answer. The
// control channel alone proves nothing, because a firewall may admit only its port.

var errUnproved = errors.New("no data connection was established within connect_timeout")

// announce logs that the peer is connected, once every link's first probe has a result. Under mu.
func (r *Initiator) announce() {
	if r.connected || !r.failover.FirstProbesDone() {
		return
	}
	r.connected = true
	works := Proved(r.links)
	now := r.pathText()
	r.path = pathLog{logged: now, seen: now, waits: r.path.waits}
	r.s.Log.Info("peer connected", "peer", r.name, "engine", r.blob.Engine.String(), "memory", "DRAM", "rails", strings.Join(Names(works), ","), "links", len(works),
		"path", now, "session", "initiator")
}

// awaitProof ends the session if no link is proved in time: transfers would wait for a link.
func (c *conn) awaitProof() {
	most := c.r.s.Options.ConnectTimeout
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if !c.current() || c.r.state != ready {
		return
	}
	left := max(time.Until(c.r.dialed.Add(most)), most/4)
	c.forget = c.r.s.Life.Later(left, c.proofLate) // canceled by down: the timer would keep a session that has ended, with its TLS state
}

func (c *conn) proofLate() {
	r := c.r
	r.mu.RLock()
	late := c.current() && r.state == ready && !r.failover.AnyProved()
	var why []string
	for _, l := range r.links {
		if l.Up && !slices.Contains(why, l.Reason()) {
			why = append(why, l.Reason())
		}
	}
	r.mu.RUnlock()
	if !late {
		return
	}
	c.GiveUp(fmt.Errorf("%w (%v): %s", errUnproved, r.s.Options.ConnectTimeout, strings.Join(why, "; ")))
}
