package transfer

import (
	"fmt"

	"gorail/backend/errcode"
	"gorail/backend/rails"
)

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
		list = append(list, fmt.Sprintf("%s>%s:%d", t.tab.Rails.List[p.Own].Name(), t.peer.RailName(p.Peer), p.Bytes))
	}
	return list
}

// logBounces logs once for each pair of memories that transfers go through bounce buffers of a rail. Staging logs the larger ones.
func (p *Peer) logBounces(c Class, r *rails.Rail) {
	if _, logged := p.bounced.LoadOrStore(c, true); !logged {
		p.tab.Log.Info("transfers go through bounce buffers", "peer", p.Name, "between", c.String(), "reason", "the rail's device cannot reach memory of GPUs",
			"rail", r.Name(), "most", r.Can.Bounces)
	}
}
