package engine

import (
	"encoding/json"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/stats"
)

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
