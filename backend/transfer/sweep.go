package transfer

import (
	"fmt"
	"log/slog"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/provider"
)

// Sweep enforces deadlines: of transfers without progress, and of aborted ones that do not drain. Each peer is swept on its
// own, asynchronously, and not behind the session's events.
func (tab *Table) Sweep() {
	of := map[*Peer][]*Transfer{}
	for _, rec := range tab.records.CollectActive(func(*Record[*Transfer]) bool { return true }) {
		of[rec.Value.peer] = append(of[rec.Value.peer], rec.Value)
	}
	for p, list := range of {
		if p.swept.Swap(true) {
			continue // the last sweep is still running
		}
		p.ends.Do(tab.Life, func() {
			defer p.swept.Store(false)
			running := false
			for _, t := range list {
				running = running || t.x.Running()
				t.sweep()
			}
			if running {
				p.busy()
			}
		})
	}
}

// busy tells the session that a transfer runs.
func (p *Peer) busy() {
	p.mu.RLock()
	busy := p.view.Busy
	p.mu.RUnlock()
	if busy != nil {
		busy()
	}
}

func (t *Transfer) sweep() {
	switch {
	case t.x.Running() || t.x.NeedsFinalize():
		t.checkDeadlines(time.Now())
	case t.zombie.Load():
		if t.reap() {
			t.peer.finishRevokes()
		}
	default:
		t.mu.Lock()
		if !t.freed() && !t.x.Running() {
			t.retire()
		}
		t.mu.Unlock()
	}
}

// retire removes an ended transfer and its cached post from the active list. The next post enters it again. A transfer that is
// posted repeatedly stays. Under t.mu.
func (t *Transfer) retire() {
	t.sample()
	t.logReposts()
	if t.x.HasCachedPost() && core.Now()-t.x.LastProgress() < t.tab.Options.XferTimeout {
		return
	}
	if !t.x.DropCachedPost() || t.x.Running() {
		return // posted meanwhile
	}
	t.tab.records.Retire(t.rec)
	t.logPath()
}

// slowMapping is how long a transfer waits for the peer's memory to be mapped here before it is staged. There may be thousands
// of VMM handles, which take up to 10 ms each.
const slowMapping = 100 * time.Millisecond

// notMapped stops a transfer that waits for memory to be mapped. finalize starts it again, over bounce buffers. Under mu.
// False: it does not wait for a mapping. A transfer that waits for others keeps its cached post.
func (t *Transfer) notMapped() bool {
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if !p.mapping() || !t.x.DropCachedPost() || !t.linksOfReadySession() || !t.x.Running() || !t.x.Unposted() {
		return false
	}
	t.restart = slowToMap
	t.tab.Core.Abort(t.x, int32(errcode.ErrNotSupported))
	return true
}

// mapping reports that the rail of a working link still has memory of peers to map. Under mu.
func (p *Peer) mapping() bool {
	for i := range p.view.Routes {
		r := &p.view.Routes[i]
		if m, ok := r.Rail.Inner().(provider.Mapper); ok && r.Working && m.Mapping() {
			return true
		}
	}
	return false
}

// checkDeadlines checks the deadlines of one transfer in flight.
func (t *Transfer) checkDeadlines(now time.Time) {
	o := t.tab.Options
	t.mu.Lock()
	if t.freed() || !t.x.Running() || t.x.Posting() || t.run.Load() != nil { // a staged run checks its own deadlines
		t.mu.Unlock()
		return
	}
	last := max(core.Now()-t.x.LastProgress(), 0)
	if since := now.Sub(t.posted); since < last {
		last = since
	}
	aborted, moving := t.aborted, t.x.InFlight()
	if t.bulk && t.inner == nil && aborted.IsZero() && last > slowMapping && t.notMapped() ||
		t.gpu && aborted.IsZero() && last > slowRail && t.offRails() || last > o.RailTimeout && t.peer.isWide() && aborted.IsZero() && t.offLinks() {
		t.mu.Unlock()
		return
	}
	overdue := !aborted.IsZero() && moving && now.Sub(aborted) > o.CancelTimeout
	if overdue {
		t.aborted = now
	}
	late := aborted.IsZero() && !t.revoked.IsZero() && moving && now.Sub(t.revoked) > o.CancelTimeout
	if late {
		t.revoked = now
	}
	t.mu.Unlock()
	switch {
	case late:
		t.fenceSoon("a transfer over memory that the peer has revoked did not drain within cancel_timeout", false)
	case !aborted.IsZero():
		if overdue {
			t.fenceSoon("an aborted transfer did not drain within cancel_timeout", true)
		}
	case last > o.XferTimeout:
		t.timeout(last)
	}
}

// fenceSoon queues fence for the session: other deadlines do not wait for the close of an endpoint.
func (t *Transfer) fenceSoon(why string, overdue bool) {
	t.peer.Events.Do(t.tab.Life, func() { t.fence(why, overdue) })
}

// mostLinks is the most links that a report names, of each side. A report has at most twelve lines.
const mostLinks = 4

// timeout aborts a transfer without progress, and logs what is known of its peer. idle is the time since its last progress. The end of
// the transfer waits for no line: its own line, "transfer failed", comes after these, because Peer.ends is serial.
func (t *Transfer) timeout(idle time.Duration) {
	o, left := t.tab.Options, t.bytes-min(t.x.Done(), t.bytes)
	lost := ""
	log := t.tab.Log.With("peer", t.peer.Name, "transfer", fmt.Sprintf("%#x", t.Handle()))
	report := func() {}
	if more, ok := t.peer.reports.Next(time.Now()); ok {
		ops, posted := len(t.Ops()), t.x.InFlight()
		about, links, packets := t.peer.session.Report() // what the abort changes is read before
		if packets != "" {
			lost = "; " + packets
		}
		report = func() {
			log.Error("timeout report: transfer", "op", OpName(t.op), "bytes", t.bytes, "bytes_left", left, "operations", ops, "links", len(links),
				"posted", posted, "last_progress_ago", idle.Round(time.Millisecond), "suppressed", more)
			log.Error("timeout report: peer", about...)
			for _, l := range links[:min(len(links), mostLinks)] {
				log.Error("timeout report: link", l...)
			}
			t.peer.reportPeer(log)
		}
	}
	why := errcode.TransferTimedOut.Errorf("no progress for %v (option xfer_timeout) to peer %q on rails %v, %d of %d bytes left%s",
		o.XferTimeout, t.peer.Name, t.peer.path(), left, t.bytes, lost)
	t.Abort(why)
	log.Error("transfer timed out", "reason", why, errcode.Key, errcode.Of(why))
	report()
}

// reportPeer logs what the peer sees, when it answers. Nothing waits for that: our side is in the log already, and a process that ends
// loses no more than the answer. One report of a peer waits at a time.
func (p *Peer) reportPeer(log *slog.Logger) {
	if p.asking.Swap(true) {
		log.Error("timeout report: peer was not asked", "reason", "the report before waits for its answer")
		return
	}
	p.session.PeerReport(func(text string, about []any, links [][]any) {
		log.Error("timeout report: "+text, about...)
		for _, l := range links[:min(len(links), mostLinks)] {
			log.Error("timeout report: link at the peer", l...)
		}
		p.asking.Store(false)
	})
}
