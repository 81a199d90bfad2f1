package engine

import (
	"fmt"

	"gorail/backend/status"
)

// tell logs which way the bytes of the transfer's last run went, once a run, where the log takes debug lines; else it costs a
// look at a flag. Under t.mu.
func (t *transfer) tell() {
	if !t.untold.Load() || t.x.Running() {
		return
	}
	t.untold.Store(false)
	code, _ := t.x.Err()
	took, _ := t.x.Took()
	op := "READ"
	if t.op == opWrite {
		op = "WRITE"
	}
	t.e.log.Debug("transfer ended", "peer", t.remote.name, "op", op, "bytes", t.bytes, "status", status.Code(code).String(),
		"took", took, "paths", t.paths())
}

// paths are the pairs of rails that carried the last run, and how much each did: "net/eth0>net/eth1:1048576".
func (t *transfer) paths() []string {
	var list []string
	for _, p := range t.x.Paths() {
		list = append(list, fmt.Sprintf("%s>%s:%d", t.e.rails[p.Own].Name(), t.remote.peerRail(p.Peer), p.Bytes))
	}
	return list
}
