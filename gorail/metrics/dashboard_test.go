package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/stretchr/testify/require"

	"gorail/gorail/live"
)

var (
	selector  = regexp.MustCompile(`\b(gorail_\w+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(?:=~|!=|!~|=)\s*"((?:[^"\\]|\\.)*)"`)
	grouping  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	legend    = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	variable  = regexp.MustCompile(`label_values\((gorail_\w+)(?:\{([^}]*)\})?,\s*(\w+)\)`)
	templates = regexp.MustCompile(`\$(\w+)`)
)

type dashboard struct {
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, LegendFormat string }
	}
}

// exported has the label names and values of each series name, as Prometheus stores them.
type exported map[string]map[string]map[string]bool

func export(families map[string]*dto.MetricFamily) exported {
	x := exported{}
	put := func(name string, m *dto.Metric, more ...string) {
		if x[name] == nil {
			x[name] = map[string]map[string]bool{"instance": {}, "job": {}} // from the scrape
		}
		for _, l := range m.Label {
			if x[name][l.GetName()] == nil {
				x[name][l.GetName()] = map[string]bool{}
			}
			x[name][l.GetName()][l.GetValue()] = true
		}
		for _, name2 := range more {
			x[name][name2] = map[string]bool{}
		}
	}
	for name, f := range families {
		for _, m := range f.Metric {
			if f.GetType() != dto.MetricType_HISTOGRAM {
				put(name, m)
				continue
			}
			put(name+"_bucket", m, "le")
			put(name+"_sum", m)
			put(name+"_count", m)
		}
	}
	return x
}

// check returns what is wrong with a query: names and labels that the exporter does not have, values that no series has.
func (x exported) check(query string) (wrong []string) {
	found := selector.FindAllStringSubmatch(query, -1)
	if found == nil {
		return []string{"no metric"}
	}
	for _, s := range found {
		labels := x[s[1]]
		if labels == nil {
			wrong = append(wrong, "no metric "+s[1])
			continue
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			values, has := labels[m[1]]
			if !has {
				wrong = append(wrong, s[1]+" has no label "+m[1])
			}
			for _, v := range strings.Split(m[2], "|") {
				if has && !strings.HasPrefix(v, "$") && !values[v] {
					wrong = append(wrong, s[1]+" has no "+m[1]+"="+v)
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(query, -1) {
			for name := range strings.SplitSeq(g[1], ",") {
				if labels[strings.TrimSpace(name)] == nil {
					wrong = append(wrong, s[1]+" has no label "+strings.TrimSpace(name))
				}
			}
		}
	}
	if strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") {
		wrong = append(wrong, "brackets")
	}
	return wrong
}

// labelsOf are the labels that a query's result has: those of its first group, or of its metric.
func (x exported) labelsOf(query string) (list []string) {
	if g := grouping.FindStringSubmatch(query); g != nil {
		for name := range strings.SplitSeq(g[1], ",") {
			list = append(list, strings.TrimSpace(name))
		}
		return list
	}
	for name := range x[selector.FindStringSubmatch(query)[1]] {
		list = append(list, name)
	}
	return list
}

// The dashboard asks only for what the exporter has.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../examples/deploy/grafana-gorail.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(b, &d))
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	x := export(scrape(t, handler(t, &Collector{Source: live.Source{Folder: folder}})))

	defined := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		defined = append(defined, v.Name)
		if v.Type == "query" {
			m := variable.FindStringSubmatch(v.Query)
			require.NotNil(t, m, v.Query)
			require.Empty(t, x.check(m[1]+"{"+m[2]+"}"), v.Query)
			require.Contains(t, x[m[1]], m[3], v.Query)
		}
	}
	used := map[string]bool{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "panel %d twice", p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, q := range p.Targets {
			require.Empty(t, x.check(q.Expr), q.Expr)
			for _, m := range templates.FindAllStringSubmatch(q.Expr, -1) {
				require.Contains(t, defined, m[1], q.Expr)
			}
			for _, l := range legend.FindAllStringSubmatch(q.LegendFormat, -1) {
				require.Contains(t, x.labelsOf(q.Expr), l[1], q.Expr)
			}
			for _, s := range selector.FindAllStringSubmatch(q.Expr, -1) {
				used[s[1]] = true
			}
		}
	}
	for _, name := range []string{"gorail_rail_written_bytes_total", "gorail_rail_nominal_bytes_per_second", "gorail_transfers_in_flight",
		"gorail_oldest_transfer_age_seconds", "gorail_rail_transfer_seconds_bucket", "gorail_rail_errors_total", "gorail_rail_retries_total",
		"gorail_rail_fences_total", "gorail_rail_stalls_total", "gorail_sessions", "gorail_limit_hits_total", "gorail_engine_up"} {
		require.True(t, used[name], name)
	}
	for query, says := range map[string]string{ // the check finds what is wrong
		`rate(gorail_rail_bytes_total[5m])`:             "no metric gorail_rail_bytes_total",
		`gorail_rail_state{device="eth0"}`:              "has no label device",
		`gorail_rail_state{state="broken"}`:             "has no state=broken",
		`sum by (peer) (gorail_sessions)`:               "has no label peer",
		`rate(gorail_rail_written_bytes_total[5m]`:      "brackets",
		`histogram_quantile(0.5, gorail_rail_transfer)`: "no metric",
	} {
		require.True(t, slices.ContainsFunc(x.check(query), func(s string) bool { return strings.Contains(s, says) }), "%s: %v", query, x.check(query))
	}
}

// docs/stats.md names all metrics, and no others.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/stats.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(b), "\n## Prometheus\n")
	require.True(t, found)
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bgorail_\w+`).FindAllString(section, -1) {
		named[m] = true
	}
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	for name := range scrape(t, handler(t, &Collector{Source: live.Source{Folder: folder}})) {
		require.True(t, named[name], name)
		delete(named, name)
	}
	require.Empty(t, named)
}
