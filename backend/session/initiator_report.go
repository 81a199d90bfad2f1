package session

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/stats"
	"gorail/backend/wire"
)

var stateNames = map[core.LinkState]string{core.LinkUp: "up", core.LinkStopped: "stopped", core.LinkDead: "ended", core.LinkProbing: "not proved"}

// reportWait is how long a report waits for the session.
const reportWait = 100 * time.Millisecond

// Report describes the peer and each link, as attributes of log lines, and says which packets do not arrive. Links with the most bytes in
// flight come first. Implements transfer.Session.
func (r *Initiator) Report() (about []any, links [][]any, lost string) {
	for until := time.Now().Add(reportWait); !r.mu.TryRLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return []any{"session", "busy: it closes or opens endpoints"}, nil, ""
		}
	}
	defer r.mu.RUnlock()
	about = []any{"engine", r.blob.Engine.String(), "control_addresses", strings.Join(r.blob.Control, ","), "session", r.state.String()}
	if out := r.conn.out; out != nil {
		about = append(about, "control_connection", out.Remote().String())
		about = appendAgo(about, "heard_ago", heardAgo(out))
		why, counters := out.Packets()
		if lost = why; counters != "" {
			about = append(about, "packets", counters)
		}
	}
	if r.hasSess {
		about = append(about, "queued_notification_bytes", r.sess.Queued())
	}
	held := map[*Link]core.LinkStats{}
	for _, l := range r.links {
		if l.Up {
			held[l] = l.Core.Stats()
		}
	}
	sorted := slices.Clone(r.links)
	slices.SortStableFunc(sorted, func(a, b *Link) int { return cmp.Compare(held[b].InflightBytes, held[a].InflightBytes) })
	for _, l := range sorted {
		line := []any{"link", l.Num, "rail", l.Ends(), "peer_rail", r.peer.RailName(l.Peer), "phase", l.PhaseName()}
		s, up := held[l]
		if !up {
			links = append(links, line)
			continue
		}
		if o, ok := l.EP.(provider.Listener); ok {
			why, counters := o.Packets(r.heard())
			if lost = cmp.Or(lost, why); counters != "" {
				line = append(line, "packets", counters)
			}
		}
		line = append(line, "state", stateNames[s.State])
		if idle := Idle(l.Core.Tally().Last); idle != stats.Never {
			line = append(line, "last_progress_ago", time.Duration(idle).Round(time.Millisecond))
		}
		links = append(links, append(line, "in_flight", fmt.Sprintf("%d requests, %d bytes", s.InflightOps, s.InflightBytes), "window", s.Window,
			"credits", s.Credits, "queued_messages", s.QueuedMsgs, "queued_transfers", s.QueuedSubs, "completions", s.Completions, "errors", s.Errors))
	}
	return about, links, lost
}

// heard reports that the control connection gets through. Under mu.
func (r *Initiator) heard() bool {
	ago, ok := heardAgo(r.conn.out).Duration()
	return ok && r.state == ready && ago < r.s.Options.PeerTimeout/2
}

// heardAgo is the time since the peer was last heard on the control channel.
func heardAgo(out *peer.Out) wire.Ago {
	if out == nil {
		return 0
	}
	at := out.LastHeard()
	if at.IsZero() {
		return 0
	}
	return wire.NewAgo(time.Since(at))
}

// appendAgo appends a time to the attributes of a line, unless there is none.
func appendAgo(line []any, key string, a wire.Ago) []any {
	if d, ok := a.Duration(); ok {
		line = append(line, key, d)
	}
	return line
}

// ask sends a question, unless one waits for its answer. The channel has room for the answer.
func (q *question) ask(id uint64, send func(id uint64)) <-chan wire.Snapshot {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answer = make(chan wire.Snapshot, 1)
	if q.id == 0 {
		q.id = id
		send(id)
	}
	return q.answer
}

// answered drops a snapshot that nobody has asked for.
func (q *question) answered(f wire.Snapshot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.id != 0 && f.ID == q.id {
		q.id = 0
		q.answer <- f
	}
}

// Snapshot handles the peer's answer.
func (c *conn) Snapshot(f wire.Snapshot) { c.question.answered(f) }

// peerAnswer is how long a report waits for the peer's snapshot. A peer that works answers within a round trip.
const peerAnswer = time.Second

// PeerReport asks the peer for its view of the session, and calls f once with the lines of the report. f runs in another
// goroutine, at once, with the answer, at the end of the session, or after peerAnswer. One caller at a time. Implements
// transfer.Session.
func (r *Initiator) PeerReport(f func(text string, about []any, links [][]any)) {
	go func() {
		r.mu.RLock()
		c, out, state, own := r.conn, r.conn.out, r.state, r.ownSide()
		r.mu.RUnlock()
		if out == nil || state != ready {
			f("peer was not asked", []any{"reason", "the session is " + state.String()}, nil)
			return
		}
		asked := time.Now()
		answer := c.question.ask(r.s.Life.NextID(), out.AskSnapshot)
		timer := time.NewTimer(peerAnswer)
		defer timer.Stop()
		select {
		case s := <-answer:
			about, links := own.describe(s)
			f("peer answered", append([]any{"after", time.Since(asked).Round(time.Microsecond)}, about...), links)
		case <-out.Done():
			f("peer did not answer", []any{"reason", "the session has ended"}, nil)
		case <-timer.C:
			f("peer did not answer", appendAgo([]any{"within", peerAnswer, "means", silent}, "heard_ago", heardAgo(out)), nil)
		}
	}()
}

// silent is what a peer without an answer means. Its kernel may still acknowledge.
const silent = "the peer's process is stopped or starved of CPU time, or the network is down"

// ownSide is what our side knows of a session when it asks.
type ownSide struct {
	sent uint64 // notifications with a number
	up   map[uint8]bool
}

// ownSide: under mu.
func (r *Initiator) ownSide() ownSide {
	own := ownSide{up: map[uint8]bool{}}
	if r.hasSess {
		own.sent = r.sess.Sent()
	}
	for _, l := range r.links {
		own.up[uint8(l.Num)] = l.Up && l.Proved
	}
	return own
}

// describe makes the lines of a snapshot: numbers, and texts of ours. Links that are not up come first.
func (own ownSide) describe(s wire.Snapshot) (about []any, links [][]any) {
	about = []any{"session", s.State.String(), "means", own.means(s)}
	if s.Uptime == 0 {
		return about, nil
	}
	about = appendAgo(appendAgo(appendAgo(about, "ticker_late", s.Late), "heard_ago", s.Heard), "uptime", s.Uptime)
	about = append(about, "sessions", s.Sessions, "transfers_in_flight", s.Transfers)
	if s.State != wire.SnapshotServing && s.State != wire.SnapshotEnding {
		return about, nil
	}
	about = append(about, "notifications_sent", own.sent, "notifications_received", s.NextSeq, "notifications_waiting", s.Waiting,
		"bounce_buffers", s.Rings, "copies", s.Copies, "links", len(s.Links))
	sorted := slices.Clone(s.Links)
	slices.SortStableFunc(sorted, func(a, b wire.LinkView) int { return cmp.Compare(upLast(a), upLast(b)) })
	for _, l := range sorted {
		line := appendAgo([]any{"link", l.Number, "state", l.State.String()}, "last_progress_ago", l.Progress)
		links = append(links, append(line, "in_flight", fmt.Sprintf("%d messages, %d bytes", l.Ops, l.Bytes), "credits", l.Credits, "queued_messages", l.Queued,
			"messages_received", l.Received, "completions", l.Completions, "errors", l.Errors))
	}
	return about, links
}

func upLast(l wire.LinkView) int {
	if l.State == wire.LinkUp {
		return 1
	}
	return 0
}

// A peer whose ticker was so late was stopped, or does not get the processor. The ticker has a quarter of a second, and a busy host
// may be late by some of it.
const starved = time.Second

// means is what a snapshot says to an operator, the most likely cause first.
func (own ownSide) means(s wire.Snapshot) string {
	late, _ := s.Late.Duration()
	switch s.State {
	case wire.SnapshotRefused:
		return "the peer gives no more snapshots for now: its limit snapshots is reached"
	case wire.SnapshotNone, wire.SnapshotEnding:
		return "the peer ends or has ended the session: see its log"
	}
	if late >= starved {
		return "the peer's process was stopped or starved of CPU time in the last 20 s"
	}
	if s.State == wire.SnapshotBusy {
		return "the peer opens or closes endpoints of the session"
	}
	var down []string
	waits := false
	for _, l := range s.Links {
		if own.up[l.Number] && l.State != wire.LinkUp {
			down = append(down, fmt.Sprint(l.Number))
		}
		waits = waits || l.Ops > 0 || l.Queued > 0
	}
	switch {
	case len(down) > 0:
		return "up here, and down at the peer: link " + strings.Join(down, ",")
	case s.NextSeq < own.sent:
		return fmt.Sprintf("the peer lacks notifications from number %d on: the network or a rail loses or delays them", s.NextSeq)
	case waits:
		return "the peer has messages for this side that do not get through"
	case s.Copies > 0:
		return "the peer copies to or from bounce buffers"
	}
	return "the peer is idle and has all notifications sent so far: it waits for this side or for the network"
}

// moves is what the session has moved, as it was counted last, and as the last tick saw it.
type moves struct {
	counted atomic.Pointer[wire.Moves]
	seen    wire.Moves // of the engine's sweeper
}

// Moves implements peer.InitiatorHandler. It returns the last numbers while the session is locked.
func (c *conn) Moves() (m wire.Moves) {
	r := c.r
	if !r.mu.TryRLock() {
		if last := r.moves.counted.Load(); last != nil {
			m = *last
		}
		return m
	}
	defer r.mu.RUnlock()
	for _, l := range r.links {
		t := l.meter.read()
		m.Written, m.Read = m.Written+t.BytesWritten, m.Read+t.BytesRead
	}
	r.moves.counted.Store(&m)
	return m
}

// tellMoves keeps pings coming while the session moves bytes: transfers may begin and end between two ticks. It is for the engine's
// sweeper.
func (r *Initiator) tellMoves() {
	if !r.mu.TryRLock() {
		return
	}
	c, out := r.conn, r.conn.out
	if r.state != ready {
		out = nil
	}
	r.mu.RUnlock()
	if out == nil {
		return
	}
	if now := c.Moves(); now != r.moves.seen {
		r.moves.seen = now
		out.Busy()
	}
}
