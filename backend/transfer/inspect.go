package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/rails"
	"gorail/backend/stats"
)

// InFlight describes the transfers in flight, the oldest first: most of them, and how many more there are.
func (tab *Table) InFlight(most int) (list []stats.Transfer, more int) {
	list = []stats.Transfer{}
	for _, t := range tab.active(func(*Transfer) bool { return true }) {
		if s, ok := t.describe(); ok {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b stats.Transfer) int { return cmp.Compare(b.Age, a.Age) })
	more = max(len(list)-most, 0)
	return list[:len(list)-more], more
}

// describe returns false if the transfer has ended meanwhile.
func (t *Transfer) describe() (s stats.Transfer, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peer.mu.RLock() // a queued post starts under it alone
	defer t.peer.mu.RUnlock()
	if t.freed() || !t.x.Running() {
		return s, false
	}
	began, last := t.x.Posted(), t.x.LastProgress()
	now := core.Now()
	done := t.x.Done()
	s = stats.Transfer{Handle: t.Handle(), Peer: t.peer.Name, Op: OpName(t.op), State: stats.IsPosted, Bytes: t.bytes,
		Left: t.bytes - min(t.bytes, done), Age: max(now-began, 0).Seconds(), Idle: stats.Since(max(now-last, 0)), Rails: []string{}}
	if t.reason != nil {
		s.Reason = t.reason.Error()
	}
	switch {
	case t.zombie.Load():
		s.State = stats.IsFreed
	case !t.aborted.IsZero():
		s.State = stats.IsAborted
	case t.run.Load() != nil:
		s.State = stats.IsStaged
	case t.session == 0 || t.rec.State() == Queued:
		s.State = stats.IsQueued
		since := time.Since(t.posted)
		s.Age, s.Idle, s.Left = since.Seconds(), stats.Since(since), t.bytes
	}
	for i := range t.peer.view.Routes {
		r := &t.peer.view.Routes[i]
		if t.linksOfReadySession() && t.x.Share(r.Link) > 0 {
			s.Rails = append(s.Rails, r.Rail.Name())
		}
	}
	return s, true
}

// OpName is the name of an operation.
func OpName(op int) string {
	if op == Read {
		return "READ"
	}
	return "WRITE"
}

// Sampled is the post whose time Estimate knows. Bulk reports whether the transfer is one post of a bulk rail. Unlogged reports
// that the path of its last run is not in the log yet.
func (t *Transfer) Sampled() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sampled
}
func (t *Transfer) Bulk() bool     { return t.bulk }
func (t *Transfer) Unlogged() bool { return t.unlogged.Load() }

// logPath logs the path of the transfer's last run, if the log takes debug lines. A run that was posted through Go has its
// line. Runs that were posted without Go have one line together: the last of them, and how many they are. Under t.mu, without
// a cached post.
func (t *Transfer) logPath() {
	if !t.tab.debug || t.x.Running() {
		return
	}
	reposts := t.x.Reposts() - t.reposts
	if !t.unlogged.Load() && reposts == 0 {
		return
	}
	t.unlogged.Store(false)
	t.reposts += reposts
	code, _ := t.x.Err()
	took, _ := t.x.Took()
	t.tab.Log.Debug("transfer ended", "peer", t.peer.Name, "op", OpName(t.op), "bytes", t.bytes, "status", errcode.Status(code).String(),
		"took", took, "reposts", reposts, "paths", t.paths())
}

// logReposts is logPath for a transfer with a cached post, which stays. Under t.mu.
func (t *Transfer) logReposts() {
	if !t.tab.debug || !t.x.HasCachedPost() {
		return
	}
	p := t.peer
	p.mu.RLock() // nothing that the cached post relies on changes meanwhile
	defer p.mu.RUnlock()
	if !t.x.DropCachedPost() || t.x.Running() || t.x.NeedsFinalize() {
		return // the next post goes through Go
	}
	t.logPath()
	if t.checked == p.epoch {
		t.x.CachePost()
	}
}

// paths lists the rail pairs that carried the last run, with the bytes of each: "net/eth0>net/eth1:1048576".
func (t *Transfer) paths() []string {
	var list []string
	for _, p := range t.x.Paths() {
		list = append(list, fmt.Sprintf("%s>%s:%d", t.tab.Rails.List[p.Own].Name(), t.peer.placeName(p.Peer), p.Bytes))
	}
	return list
}

// logBounces logs once for each pair of memories that transfers go through bounce buffers of a rail. Staging logs the larger ones.
func (p *Peer) logBounces(c Class, r *rails.Rail) {
	if _, logged := p.bounced.LoadOrStore(c, true); !logged {
		p.tab.Log.Info("transfers go through bounce buffers", "peer", p.Name, "between", c.String(), "reason", "the rail's device cannot reach memory of GPUs",
			"rail", r.Name(), "most", r.Can().Bounces)
	}
}
