package engine

import (
	"encoding/json"
	"time"

	"gorail/backend/errcode"
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
		if p, ok := r.Inner().(provider.Reporter); ok {
			rails[i].Packed, rails[i].PackedBytes = p.Packed()
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

// statsTime limits how long the engine waits for stats_file: a terminal may be stopped, a file server may be down.
const statsTime = time.Second

// checkStatsFile checks stats_file when the engine is created. At the engine's end an error could only be logged.
func (e *Engine) checkStatsFile() (err error) {
	if file := e.opt.StatsFile; file != "" {
		if e.opt.StatsFile, err = stats.Check(stats.Expand(file, e.name)); err != nil {
			return errcode.StatsFileUnusable.Errorf("option stats_file=%s: %w", file, err)
		}
	}
	return nil
}

// startStats writes stats_file each stats_interval.
func (e *Engine) startStats() {
	if e.opt.StatsFile == "" {
		return
	}
	if every := e.opt.StatsInterval; every > 0 {
		every = max(every, 100*time.Millisecond)
		var again func()
		again = func() {
			e.writeStats()
			e.life.After(every, again)
		}
		e.life.After(every, again)
	}
}

// writeStats writes the counters as JSON to the file of the option stats_file. It needs the core's rails: call it inside the
// engine, or before they are freed.
func (e *Engine) writeStats() {
	if e.opt.StatsFile == "" {
		return
	}
	s := struct {
		stats.Snapshot
		Core    map[string]uint64 `json:"core"`
		Control any               `json:"control,omitempty"`
	}{e.snapshot(), e.core.Counters(), e.control()}
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = stats.Write(e.opt.StatsFile, append(b, '\n'), statsTime)
	}
	if err != nil {
		e.log.Warn("stats_file not written", "file", e.opt.StatsFile, "err", err)
	}
}

// control has the counters of the control channel, a peer.Stats; nil: there is none.
func (e *Engine) control() any {
	if e.node == nil {
		return nil
	}
	return e.node.Stats()
}
