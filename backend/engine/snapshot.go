package engine

import (
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/session"
	"gorail/backend/stats"
)

// Snapshot reads the counters of rails and peers. A post may wait while the queues of one link are counted. It returns
// ErrBackend if the engine is closed.
func (e *Engine) Snapshot() (s stats.Snapshot, err error) {
	err = e.inside(func() error { s = e.snapshot(); return nil })
	return s, err
}

// snapshot needs the core's rails: call it before they are freed.
func (e *Engine) snapshot() stats.Snapshot {
	live := e.views()
	var peers []stats.Peer
	for _, v := range append(e.past.Besides(live), live...) {
		peers = append(peers, v.Read())
	}
	rails := make([]stats.Rail, len(e.rails.List))
	for i, r := range e.rails.List {
		t, d := e.core.RailTally(r.Index), r.Device()
		t.Fences, t.Stalls = r.Fences.Load(), r.Stalls.Load()
		rails[i] = stats.Rail{Index: r.Index, Name: r.Name(), Device: d.Name, Fabric: d.Fabric, Links: t.Links,
			InFlight: t.InFlight, Mbps: d.Mbps, Idle: session.Idle(t.Last), Counts: stats.Counts(t.Counts)}
		times := stats.TimeCounts(e.core.RailTimes(r.Index))
		rails[i].Times = times.Times()
		if r.Waits() {
			rails[i].State = stats.Down
		}
		if h, ok := r.Inner().(provider.Host); ok {
			rails[i].ForPeers, rails[i].ByPeers = h.Assisted()
			rails[i].Mapped = h.Mapped()
		}
	}
	s := stats.New(e.name, rails, peers)
	s.Staged = e.staging.Counts()
	if e.regions != nil { // else the start failed
		s.CapsRefused = e.regions.CapsRefused()
	}
	if e.targets != nil {
		s.NameConflicts = e.targets.NameConflicts.Load()
	}
	s.PeersRefusedVersion = e.refused.Load()
	s.Limits = e.limits.Read()
	for limit, n := range e.rails.Limited() {
		s.Limits[limits.List[limit].Name] += n
	}
	return s
}

// views returns the live sessions.
func (e *Engine) views() (list []session.View) {
	if e.initiators != nil { // else the start failed
		list = e.initiators.Views()
	}
	if e.targets != nil {
		list = append(list, e.targets.Views()...)
	}
	return list
}
