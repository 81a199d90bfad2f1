package live

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"gorail/backend/stats"
)

// event is an entry of the Trace Event Format, which chrome://tracing and ui.perfetto.dev read. Times are microseconds.
type event struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"` // X: with a duration, i: a moment, M: a name
	TS    float64        `json:"ts"`
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// WriteChrome writes traces as one document of the Trace Event Format. Each engine is a process of it. Transfers that overlap
// get lanes of their own.
func WriteChrome(w io.Writer, traces []stats.Trace) error {
	doc := struct {
		Unit   string         `json:"displayTimeUnit"`
		Other  map[string]any `json:"otherData"`
		Events []event        `json:"traceEvents"`
	}{Unit: "ms", Other: map[string]any{}, Events: []event{}}
	var first time.Time
	for _, t := range traces {
		if first.IsZero() || t.Now.Before(first) {
			first = t.Now
		}
	}
	for i, t := range traces {
		offset := float64(t.Now.Sub(first).Microseconds())
		doc.Events = append(doc.Events, event{Name: "process_name", Phase: "M", PID: i + 1,
			Args: map[string]any{"name": fmt.Sprintf("%s (%s, process %d)", t.Agent, t.Command, t.PID)}})
		doc.Events = append(doc.Events, transfers(t, i+1, offset)...)
		for _, l := range t.Lines {
			doc.Events = append(doc.Events, event{Name: l.Text, Phase: "i", TS: offset + float64(l.Time.Sub(t.Now).Microseconds()), PID: i + 1, Scope: "p",
				Args: map[string]any{"level": l.Level}})
		}
		doc.Other[fmt.Sprintf("%s %d", t.Agent, t.PID)] = map[string]any{"version": t.Version, "began": t.Now, "seconds": t.Seconds,
			"transfers": len(t.Transfers), "transfers_lost": t.Lost, "lines_lost": t.LostLines}
	}
	return json.NewEncoder(w).Encode(doc)
}

// transfers gives each transfer the first lane that is free when it begins.
func transfers(t stats.Trace, pid int, offset float64) (list []event) {
	sorted := slices.Clone(t.Transfers)
	slices.SortStableFunc(sorted, func(a, b stats.TracedTransfer) int {
		switch {
		case a.Begin < b.Begin:
			return -1
		case a.Begin > b.Begin:
			return 1
		}
		return 0
	})
	var lanes []float64 // when each is free again
	for _, x := range sorted {
		lane := slices.IndexFunc(lanes, func(free float64) bool { return free <= x.Begin })
		if lane < 0 {
			lane = len(lanes)
			lanes = append(lanes, math.Inf(-1))
		}
		lanes[lane] = x.End
		list = append(list, event{Name: fmt.Sprintf("%s %s", x.Op, x.Peer), Phase: "X", TS: offset + x.Begin, Dur: x.End - x.Begin, PID: pid, TID: lane + 1,
			Args: map[string]any{"bytes": x.Bytes, "rails": strings.Join(x.Rails, " "), "status": x.Status, "begin_inexact": x.Coarse,
				"GB/s": math.Round(float64(x.Bytes)/max(x.End-x.Begin, 1e-3)) / 1e3}})
	}
	return list
}
