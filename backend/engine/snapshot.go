package engine

import (
	"encoding/json"
	"maps"
	"slices"

	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/stats"
	"gorail/backend/status"
)

// Snapshot reads the counters of rails and peers. Nothing on a transfer's way waits for it. ErrBackend once the engine is
// closed.
func (e *Engine) Snapshot() (stats.Snapshot, error) {
	if !e.enter() {
		return stats.Snapshot{}, status.Errorf(status.ErrBackend, "the engine is closed")
	}
	defer e.leave()
	return e.snapshot(), nil
}

// snapshot wants the core's rails to be there.
func (e *Engine) snapshot() stats.Snapshot {
	live := e.views()
	var peers []stats.Peer
	for _, v := range append(e.past.all(live), live...) {
		peers = append(peers, v.read())
	}
	rails := make([]stats.Rail, len(e.rails))
	for i, r := range e.rails {
		t, d := e.core.RailTally(r.Index), r.Device()
		t.Fences, t.Stalls = r.Fences.Load(), r.Stalls.Load()
		rails[i] = stats.Rail{Index: r.Index, Name: r.Name(), Device: d.Name, Fabric: d.Fabric, Links: t.Links,
			InFlight: t.InFlight, Counts: stats.Counts(t.Counts)}
		if r.Waits() {
			rails[i].State = stats.Down
		}
		if h, ok := r.Inner().(provider.Helper); ok {
			rails[i].ForPeers, rails[i].ByPeers = h.Helped()
		}
	}
	s := stats.New(e.name, rails, peers)
	s.Staged = stats.Staged{Transfers: e.stage.transfers.Load(), Bytes: e.stage.bytes.Load(), Copies: e.stage.copies.Load()}
	return s
}

// views are the sessions that go on.
func (e *Engine) views() (list []view) {
	e.mu.RLock()
	targets := slices.Collect(maps.Values(e.targets))
	e.mu.RUnlock()
	for _, r := range e.sessions() {
		r.mu.RLock()
		if r.state == connecting || r.state == ready {
			list = append(list, r.view())
		}
		r.mu.RUnlock()
	}
	for _, t := range targets {
		t.mu.Lock()
		if !t.gone {
			list = append(list, t.view())
		}
		t.mu.Unlock()
	}
	return list
}

// view: under r.mu.
func (r *remote) view() view {
	return newView(stats.Peer{Agent: r.name, Engine: r.blob.Engine.String(), Direction: stats.Initiator, State: stateNames[r.state]},
		r.links, r.peerRail)
}

// peerRail is the name of a rail of the peer's.
func (r *remote) peerRail(n int) string {
	for _, o := range r.blob.Rails {
		if int(o.Index) == n {
			return o.Fabric + "/" + o.Name
		}
	}
	return ""
}

// view: under t.mu.
func (t *target) view() view {
	return newView(stats.Peer{Agent: t.in.Agent(), Engine: t.in.Engine().String(), Direction: stats.Target, State: "ready"},
		t.links, func(int) string { return "" })
}

// writeStats writes the counters to the file of the option stats_file, as JSON.
func (e *Engine) writeStats() {
	if e.opt.StatsFile == "" {
		return
	}
	s := struct {
		stats.Snapshot
		Core    map[string]uint64 `json:"core"`
		Control *peer.Stats       `json:"control,omitempty"`
	}{e.snapshot(), e.core.Counters(), nil}
	if e.node != nil {
		c := e.node.Stats()
		s.Control = &c
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = writeStatsFile(e.opt.StatsFile, append(b, '\n'), statsTime)
	}
	if err != nil {
		e.log.Warn("stats_file not written", "file", e.opt.StatsFile, "err", err)
	}
}
