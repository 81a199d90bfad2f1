package transfer

import (
	"fmt"

	"gorail/backend/status"
)

// logPath logs the path of the transfer's last run, once a run, if the log takes debug lines. Otherwise it only checks a flag.
// Under t.mu.
func (t *Transfer) logPath() {
	if !t.unlogged.Load() || t.x.Running() {
		return
	}
	t.unlogged.Store(false)
	code, _ := t.x.Err()
	took, _ := t.x.Took()
	t.tab.Log.Debug("transfer ended", "peer", t.peer.Name, "op", t.opName(), "bytes", t.bytes, "status", status.Code(code).String(),
		"took", took, "paths", t.paths())
}

// paths lists the rail pairs that carried the last run, with the bytes of each: "net/eth0>net/eth1:1048576".
func (t *Transfer) paths() []string {
	var list []string
	for _, p := range t.x.Paths() {
		list = append(list, fmt.Sprintf("%s>%s:%d", t.tab.Rails.List[p.Own].Name(), t.peer.session.PeerRail(p.Peer), p.Bytes))
	}
	return list
}

func (t *Transfer) opName() string {
	if t.op == Write {
		return "WRITE"
	}
	return "READ"
}
