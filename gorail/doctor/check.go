// Package doctor checks a machine for what GORAIL needs. Each check is a function of a Host: files of the kernel, limits,
// and functions that try something. The real Host uses the plugin's own code (package machine). Tests have machines as files.
package doctor

import (
	"fmt"
	"slices"
)

// Status is the outcome of a check.
type Status string

// The outcomes. A FAIL keeps GORAIL from working, or makes it work over a much slower path. A WARN costs less or may be intended.
const (
	Pass Status = "PASS"
	Warn Status = "WARN"
	Fail Status = "FAIL"
)

// Check is one line of the report.
type Check struct {
	ID       string   `json:"id"`
	Area     string   `json:"area"`
	Status   Status   `json:"status"`
	Text     string   `json:"text"`
	Remedy   string   `json:"remedy"`             // "" if there is nothing to do
	Commands []string `json:"commands,omitempty"` // of the remedy, for a shell
}

// SchemaVersion is the version of the JSON report. It grows when a field changes its meaning or goes away.
const SchemaVersion = 1

// Report is what one run found.
type Report struct {
	Version int     `json:"version"`
	Checks  []Check `json:"checks"`
}

// Failed says that a check failed.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Status == Fail })
}

// Pass adds a line.
func (r *Report) Pass(id, format string, args ...any) {
	r.add(id, Pass, fmt.Sprintf(format, args...), "", nil)
}

// Warn adds a line. commands carry the remedy out.
func (r *Report) Warn(id, text, remedy string, commands ...string) {
	r.add(id, Warn, text, remedy, commands)
}

// Fail adds a line. commands carry the remedy out.
func (r *Report) Fail(id, text, remedy string, commands ...string) {
	r.add(id, Fail, text, remedy, commands)
}

func (r *Report) add(id string, s Status, text, remedy string, commands []string) {
	r.Version = SchemaVersion
	r.Checks = append(r.Checks, Check{ID: id, Area: areaOf(id), Status: s, Text: text, Remedy: remedy, Commands: commands})
}

// areaOf panics for an id that the list lacks: docs/doctor.md would not explain it.
func areaOf(id string) string {
	i := slices.IndexFunc(List, func(r Row) bool { return r.ID == id })
	if i < 0 {
		panic("doctor: no check is called " + id)
	}
	return List[i].Area
}
