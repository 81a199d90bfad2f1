package initiator

import (
	"slices"
	"strings"
	"time"

	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/provider"
)

// pathPause is the least time between two lines about a peer's path. A rail that goes down and up all the time gives
// one line each time.
const pathPause = time.Second

// pathLog is what the log says of the path of transfers to the peer. Under Session.mu.
type pathLog struct {
	unmapped string // why memory of the peer's GPUs is staged although a rail maps such memory; "": none is

	logged  string    // the path of the last line
	seen    string    // the path after the last change
	changes int       // changes since the last line
	at      time.Time // of the last line
	waits   bool      // a timer will log the changes
}

// notePath logs a change of the path, at most one a pathPause. Under mu.
func (r *Session) notePath() {
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

func (r *Session) pathLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path.waits = false; r.path.changes > 0 && r.connected && r.state == ready {
		r.logPath()
	}
}

// logPath logs the change since the last line. Under mu.
func (r *Session) logPath() {
	args := []any{"peer", r.name, "engine", r.blob.Engine.String(), "from", r.path.logged, "to", r.path.seen}
	if r.path.changes > 1 {
		args = append(args, "suppressed", r.path.changes-1)
	}
	r.s.Log.Info("path to peer changed", args...)
	r.path.logged, r.path.changes, r.path.at = r.path.seen, 0, time.Now()
}

// pathText is the path of each type of memory: the rails that work, and for VRAM how they move it. Under mu.
func (r *Session) pathText() string {
	works := slices.DeleteFunc(slices.Clone(r.links), func(l *link.Link) bool { return !l.Up || l.Phase != failover.Working })
	text := "DRAM:" + orNone(r.railNames(works))
	if r.s.Regions.HasVRAM.Load() {
		path := vramPath(works, r.s.Regions.GPURails.Load())
		if path == "ipc" && r.path.unmapped != "" {
			path += " or staged (" + r.path.unmapped + ")"
		}
		text += " VRAM:" + path
	}
	return text
}

// railNames are the rails of links, with the way to a peer of this host if it is not the best. Under mu.
func (r *Session) railNames(links []*link.Link) (names []string) {
	for _, l := range links {
		name := l.Rail.Name()
		if way := r.ways[l.Rail.Index]; way != "" {
			name += " by " + way
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

// vramPath is how memory of GPUs moves over links: ipc (the GPU copies to the peer's GPU), direct (the device reads and
// writes the GPU), or staged (bounce buffers, also a rail's own). registered has the rails that took memory of a GPU.
func vramPath(works []*link.Link, registered uint64) string {
	path := "staged"
	for _, l := range works {
		if _, ok := l.Rail.Inner().(provider.VRAM); !ok || registered&(1<<l.Rail.Index) == 0 {
			continue
		}
		if l.Rail.Can.Bulk {
			return "ipc"
		}
		if l.Rail.Can.Bounces == 0 {
			path = "direct"
		}
	}
	return path
}
