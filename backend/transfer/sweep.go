package transfer

import (
	"fmt"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// Sweep enforces deadlines: of transfers without progress, and of aborted ones that do not drain. Each peer is swept on its
// own, asynchronously.
func (tab *Table) Sweep() {
	of := map[*Peer][]*Transfer{}
	for _, rec := range tab.records.CollectActive(func(*xfer.Record[*Transfer]) bool { return true }) {
		of[rec.Value.peer] = append(of[rec.Value.peer], rec.Value)
	}
	for p, list := range of {
		if p.swept.Swap(true) {
			continue // the last sweep is still running
		}
		p.Events.Do(tab.Life, func() {
			defer p.swept.Store(false)
			for _, t := range list {
				t.sweep()
			}
		})
	}
}

func (t *Transfer) sweep() {
	switch {
	case t.x.Running() || t.x.NeedsFinalize():
		t.checkDeadlines(time.Now())
	case t.zombie.Load():
		if t.reap() {
			t.peer.session.FinishRevokes()
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
	if t.x.HasCachedPost() && core.Now()-t.x.LastProgress() < t.tab.Options.XferTimeout {
		return
	}
	if t.x.DropCachedPost(); t.x.Running() {
		return // posted meanwhile
	}
	t.tab.records.Retire(t.rec)
	t.logPath()
}

// slowMapping is how long a transfer waits for the peer's memory to be mapped here before it is staged. There may be thousands
// of VMM handles, which take up to 10 ms each.
const slowMapping = 100 * time.Millisecond

// notMapped stops a transfer that waits for memory to be mapped. finalize starts it again, over bounce buffers. Under mu.
// False: it does not wait for a mapping.
func (t *Transfer) notMapped() bool {
	p := t.peer
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t.x.DropCachedPost(); !t.attached() || !t.x.Running() || !t.x.Unposted() || !p.mapping() {
		return false
	}
	t.restart = slowToMap
	t.tab.Core.Abort(t.x, int32(status.ErrNotSupported))
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
	if t.freed() || !t.x.Running() || t.run.Load() != nil { // a staged run checks its own deadlines
		t.mu.Unlock()
		return
	}
	last := max(core.Now()-t.x.LastProgress(), 0)
	if since := now.Sub(t.posted); since < last {
		last = since
	}
	aborted, done, moving := t.aborted, t.x.Done(), t.x.InFlight()
	if t.bulk && t.inner == nil && aborted.IsZero() && last > slowMapping && t.notMapped() ||
		t.gpu && aborted.IsZero() && last > slowRail && t.offRails() {
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
		t.fence("a transfer over memory that the peer has revoked did not drain within cancel_timeout")
	case !aborted.IsZero():
		if overdue {
			t.fence("an aborted transfer did not drain within cancel_timeout")
			t.peer.session.Unanswered(now)
		}
	case last > o.XferTimeout:
		why := fmt.Sprintf("no progress for %v (option xfer_timeout) to peer %q on rails %v, %d of %d bytes left",
			o.XferTimeout, t.peer.Name, t.peer.session.Path(), t.bytes-min(done, t.bytes), t.bytes)
		t.tab.Log.Error("transfer timed out", "reason", why, "links", t.peer.session.Texts())
		t.Abort(status.ErrBackend, why)
	}
}
