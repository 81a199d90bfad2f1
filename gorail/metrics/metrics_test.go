package metrics

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"gorail/backend/peer"
	"gorail/backend/stats"
	"gorail/gorail/live"
)

// scrape asks a handler as Prometheus does, and parses the answer.
func scrape(t *testing.T, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	r, err := http.Get(s.URL + "/metrics")
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(r.Body)
	require.NoError(t, err)
	return families
}

func handler(t *testing.T, c *Collector) http.Handler {
	h, err := Handler(c, nil)
	require.NoError(t, err)
	return h
}

func labels(m *dto.Metric) string {
	var list []string
	for _, l := range m.Label {
		list = append(list, l.GetName()+"="+l.GetValue())
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// find returns the series of a family whose labels contain all words.
func find(t *testing.T, families map[string]*dto.MetricFamily, name string, words ...string) *dto.Metric {
	t.Helper()
	require.Contains(t, families, name)
	var found []*dto.Metric
	for _, m := range families[name].Metric {
		has := strings.Fields(strings.ReplaceAll(labels(m), "backing off", "backing_off"))
		if !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(has, w) }) {
			found = append(found, m)
		}
	}
	require.Len(t, found, 1, "%s %v", name, words)
	return found[0]
}

func value(t *testing.T, families map[string]*dto.MetricFamily, name string, words ...string) float64 {
	t.Helper()
	m := find(t, families, name, words...)
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

func TestValues(t *testing.T) {
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	serve(t, folder, "2", snapshot("zoe", 2))
	c := &Collector{Source: live.Source{Folder: folder}}
	f := scrape(t, handler(t, c))
	for _, x := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{1, "gorail_engine_up", []string{"agent=ann", "pid=7", "engine=1"}},
		{1, "gorail_engine_info", []string{"agent=ann", "version=1.2.3", "command=python3", "host=h"}},
		{1_800_000_000, "gorail_engine_start_time_seconds", []string{"agent=ann"}},
		{5, "gorail_transfers_in_flight", []string{"agent=ann"}},
		{12.5, "gorail_oldest_transfer_age_seconds", []string{"agent=ann"}},
		{2, "gorail_oldest_transfer_idle_seconds", []string{"agent=ann"}},
		{1, "gorail_sessions", []string{"agent=ann", "direction=initiator", "state=ready"}},
		{0, "gorail_sessions", []string{"agent=ann", "direction=target", "state=suspended"}},
		{10, "gorail_transfers_total", []string{"agent=ann"}},
		{20, "gorail_transfers_total", []string{"agent=zoe"}},
		{1, "gorail_transfers_failed_total", []string{"agent=ann"}},
		{5, "gorail_sessions_established_total", []string{"agent=ann"}},
		{3, "gorail_handshakes_refused_total", []string{"agent=ann", "reason=token"}},
		{2, "gorail_limit_hits_total", []string{"agent=ann", "limit=sessions"}},
		{0, "gorail_limit_hits_total", []string{"agent=ann", "limit=fences"}},
		{400, "gorail_staged_bytes_total", []string{"agent=ann"}},
		{300, "gorail_staged_compressed_bytes_total", []string{"agent=ann"}},
		{210, "gorail_staged_compressed_to_bytes_total", []string{"agent=ann"}},
		{1000, "gorail_rail_written_bytes_total", []string{"agent=ann", "rail=tcp/eth0"}},
		{1000, "gorail_rail_read_bytes_total", []string{"agent=zoe", "rail=tcp/eth0"}},
		{2, "gorail_rail_retries_total", []string{"agent=ann", "rail=tcp/eth0"}},
		{12.5e9, "gorail_rail_nominal_bytes_per_second", []string{"agent=ann"}}, // only of eth0
		{1, "gorail_rail_idle_seconds", []string{"agent=ann"}},                  // only of eth0
		{1, "gorail_rail_state", []string{"agent=ann", "rail=tcp/eth0", "state=up"}},
		{0, "gorail_rail_state", []string{"agent=ann", "rail=tcp/eth1", "state=up"}},
		{1, "gorail_rail_state", []string{"agent=ann", "rail=tcp/eth1", "state=down"}},
		{2, "gorail_rail_links", []string{"agent=ann", "rail=tcp/eth0", "phase=working"}},
		{1, "gorail_rail_links", []string{"agent=ann", "rail=tcp/eth1", "phase=backing_off"}},
		{4, "gorail_rail_operations_in_flight", []string{"agent=ann", "rail=tcp/eth0"}},
		{25, "gorail_rail_credits", []string{"agent=ann", "rail=tcp/eth0"}},
		{1, "gorail_rail_links_without_credits", []string{"agent=ann", "rail=tcp/eth0"}},
		{4096, "gorail_rail_in_flight_bytes", []string{"agent=ann", "rail=tcp/eth0"}},
		{9, "gorail_rail_untimed_transfers_total", []string{"agent=ann", "size_class=larger"}},
		{0, "gorail_engines_left_out", nil},
	} {
		require.Equal(t, x.want, value(t, f, x.name, x.labels...), "%s %v", x.name, x.labels)
	}
	h := find(t, f, "gorail_rail_transfer_seconds", "agent=ann", "size_class=4KiB").GetHistogram()
	require.EqualValues(t, 100, h.GetSampleCount())
	require.InDelta(t, (0.75+98*1.5+3)*1e-6, h.GetSampleSum(), 1e-12)
	require.Len(t, h.Bucket, stats.TimeBuckets, "powers of two of microseconds, and +Inf")
	for i, count := range []uint64{1, 99, 100, 100} {
		require.InEpsilon(t, 1e-6*float64(int(1)<<i), h.Bucket[i].GetUpperBound(), 1e-9)
		require.Equal(t, count, h.Bucket[i].GetCumulativeCount())
	}
	require.EqualValues(t, 4, find(t, f, "gorail_staged_transfer_seconds", "agent=ann", "size_class=1MiB").GetHistogram().GetSampleCount())
}

// Names and help follow Prometheus's rules, also in the form of OpenMetrics.
func TestLint(t *testing.T) {
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	c := &Collector{Source: live.Source{Folder: folder}}
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
	for range 2 { // Describe and Collect agree
		require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(""), "gorail_none"))
	}
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	w := httptest.NewRecorder()
	handler(t, c).ServeHTTP(w, r)
	require.Contains(t, w.Header().Get("Content-Type"), "application/openmetrics-text")
	require.True(t, strings.HasSuffix(w.Body.String(), "# EOF\n"))
	require.Contains(t, w.Body.String(), "# TYPE gorail_rail_written_bytes counter\n")
}

// quick scrapes up to four times. One of the scrapes takes less than 20 s; three, unless this host starves.
func quick(t *testing.T, h http.Handler) (f map[string]*dto.MetricFamily) {
	t.Helper()
	var took []time.Duration
	for range 4 {
		begin := time.Now()
		f = scrape(t, h)
		if took = append(took, time.Since(begin)); took[len(took)-1] < 20*time.Second {
			return f
		}
	}
	require.Fail(t, "slow", "%v", took)
	return nil
}

// A stopped process costs a scrape a bounded time, and its engine is down under the same labels. It is up again later.
func TestStopped(t *testing.T) {
	folder := t.TempDir()
	serve(t, folder, "1", snapshot("ann", 1))
	stop, resume := child(t, folder)
	var lines []string
	c := &Collector{Source: live.Source{Folder: folder}, Log: func(f string, a ...any) { lines = append(lines, fmt.Sprintf(f, a...)) }}
	h := handler(t, c)
	who := []string{"agent=child", "pid=7", "engine=child"}
	require.EqualValues(t, 1, value(t, scrape(t, h), "gorail_engine_up", who...))
	stop()
	for range 2 {
		f := quick(t, h)
		require.EqualValues(t, 0, value(t, f, "gorail_engine_up", who...))
		require.EqualValues(t, 1, value(t, f, "gorail_engine_up", "agent=ann"))
		require.Len(t, f["gorail_transfers_total"].Metric, 1, "no counters of the stopped one")
	}
	resume()
	require.EqualValues(t, 1, value(t, scrape(t, h), "gorail_engine_up", who...))
	require.Len(t, lines, 2, "%v", lines)
	require.Contains(t, lines[0], "the process is stopped")
	require.Contains(t, lines[1], "agent child, process 7 answers again")
}

// The series of an engine end with it, and those of others stay. Another engine of the same name has other series.
func TestEnds(t *testing.T) {
	folder := t.TempDir()
	first := serve(t, folder, "1", snapshot("ann", 5))
	serve(t, folder, "2", snapshot("zoe", 1))
	c := &Collector{Source: live.Source{Folder: folder}}
	h := handler(t, c)
	require.EqualValues(t, 50, value(t, scrape(t, h), "gorail_transfers_total", "agent=ann", "engine=1"))
	first.Close()
	f := scrape(t, h)
	require.Len(t, f["gorail_transfers_total"].Metric, 1)
	require.Len(t, f["gorail_engine_up"].Metric, 1)
	require.Len(t, c.known, 1, "ended engines are forgotten")
	serve(t, folder, "3", snapshot("ann", 1))
	require.EqualValues(t, 10, value(t, scrape(t, h), "gorail_transfers_total", "agent=ann", "engine=3"))
}

// Many engines are asked at once. Names that peers and applications choose make no more series.
func TestMany(t *testing.T) {
	engines := 64
	if testing.Short() {
		engines = 8
	}
	folder := t.TempDir()
	one := snapshot("\xff"+strings.Repeat("é", 300), 1)
	one.Peers = append(one.Peers, slices.Repeat(one.Peers, 5)...)
	one.Rails[1].Name = one.Rails[0].Name
	for i := range engines {
		serve(t, folder, fmt.Sprint(i), one)
	}
	stop, _ := child(t, folder)
	stop()
	h := handler(t, &Collector{Source: live.Source{Folder: folder}})
	var f map[string]*dto.MetricFamily
	for range 20 { // an engine that got no CPU time counts as silent
		if f = scrape(t, h); len(f["gorail_engine_info"].GetMetric()) == engines {
			break
		}
	}
	require.Len(t, f["gorail_engine_up"].Metric, engines+1)
	require.Len(t, f["gorail_engine_info"].Metric, engines)
	require.EqualValues(t, 1, value(t, f, "gorail_rail_state", "engine=7", "rail=tcp/eth0#1", "state=down"))
	series := 0
	for _, family := range f {
		series += len(family.Metric)
		for _, m := range family.Metric {
			for _, l := range m.Label {
				require.LessOrEqual(t, len(l.GetValue()), mostLabel+2)
			}
		}
	}
	require.Less(t, series, engines*150)
}

// The names that the engine's counters have are those asked for.
func TestKeys(t *testing.T) {
	b, err := json.Marshal(peer.Stats{})
	require.NoError(t, err)
	var control map[string]float64
	require.NoError(t, json.Unmarshal(b, &control))
	for _, n := range ofControl {
		require.Contains(t, control, n.key)
	}
	core, err := os.ReadFile("../../backend/core/core.go")
	require.NoError(t, err)
	for _, n := range ofCore {
		require.Contains(t, string(core), `"`+n.key+`"`)
	}
	meter, err := os.ReadFile("../../backend/session/link_view.go")
	require.NoError(t, err)
	for _, phase := range phases {
		require.True(t, phase == stats.Working || strings.Contains(string(meter), `"`+phase+`"`), phase)
	}
	require.Equal(t, reflect.TypeFor[stats.Counts]().NumField()+6, len(ofRail), "each counter of a rail has a metric")
}
