package engine

import (
	"encoding/json"
	"os"
)

// writeStats writes the counters to the file of the option stats_file, as JSON.
func (e *Engine) writeStats() {
	if e.opt.StatsFile == "" {
		return
	}
	s := map[string]any{"agent": e.name, "core": e.core.Counters()}
	if e.node != nil {
		s["control"] = e.node.Stats()
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = os.WriteFile(e.opt.StatsFile, append(b, '\n'), 0o644)
	}
	if err != nil {
		e.log.Warn("stats_file not written", "file", e.opt.StatsFile, "err", err)
	}
}
