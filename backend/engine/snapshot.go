package engine

import (
	"encoding/json"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/link"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/stats"
	"gorail/backend/statsfile"
)

// Snapshot reads the counters of rails and peers. No transfer waits for it. It returns ErrBackend if the engine is
// closed.
func (e *Engine) Snapshot() (stats.Snapshot, error) {
	if !e.life.Enter() {
		return stats.Snapshot{}, errcode.EngineClosed.Errorf("the engine is closed")
	}
	defer e.life.Leave()
	return e.snapshot(), nil
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
			InFlight: t.InFlight, Counts: stats.Counts(t.Counts)}
		if r.Waits() {
			rails[i].State = stats.Down
		}
		if h, ok := r.Inner().(provider.Assistant); ok {
			rails[i].ForPeers, rails[i].ByPeers = h.Assisted()
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
	for _, r := range e.rails.List {
		if l, ok := r.Inner().(provider.Limiter); ok {
			for limit, n := range l.Limited() {
				s.Limits[limits.List[limit].Name] += n
			}
		}
	}
	return s
}

// views returns the live sessions.
func (e *Engine) views() (list []link.View) {
	if e.initiators != nil { // else the start failed
		list = e.initiators.Views()
	}
	if e.targets != nil {
		list = append(list, e.targets.Views()...)
	}
	return list
}

// writeStats writes the counters as JSON to the file of the option stats_file.
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
		err = statsfile.Write(e.opt.StatsFile, append(b, '\n'), statsTime)
	}
	if err != nil {
		e.log.Warn("stats_file not written", "file", e.opt.StatsFile, "err", err)
	}
}

// statsTime limits how long shutdown waits for stats_file: a terminal may be stopped, a file server may be down.
const statsTime = time.Second

// checkStatsFile checks stats_file when the engine is created. At the engine's end an error could only be logged.
func (e *Engine) checkStatsFile() (err error) {
	if file := e.opt.StatsFile; file != "" {
		if e.opt.StatsFile, err = statsfile.Check(file); err != nil {
			return errcode.StatsFileUnusable.Errorf("option stats_file=%s: %w", file, err)
		}
	}
	return nil
}
