package measure

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func timesOf(v []uint64) (t Times) {
	h := (&Times{}).HDR()
	for _, ns := range v {
		if err := h.RecordValue(int64(ns)); err != nil {
			panic(err)
		}
		t.Sum, t.Max = t.Sum+ns, max(t.Max, ns)
	}
	for _, n := range h.Export().Counts {
		t.N = append(t.N, uint64(n))
	}
	return t
}

// TestQuantiles: quantiles differ from the sorted values by at most a bucket's width.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOfN(rapid.Uint64Range(0, 1e9), 1, 300).Draw(t, "times")
		h := timesOf(v)
		slices.Sort(v)
		for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
			want := float64(v[max(0, int(math.Ceil(q*float64(len(v))))-1)])
			require.InDelta(t, want, h.Quantile(q), want/128+1)
		}
		require.EqualValues(t, len(v), h.Count())
	})
	require.Zero(t, (&Times{}).Quantile(0.5))
	require.Zero(t, (&Times{}).Mean())
}

func TestTimesAddAndJSON(t *testing.T) {
	a, b := timesOf([]uint64{10, 20}), timesOf([]uint64{30, 1 << 20})
	var all Times
	all.Add(a)
	all.Add(b)
	require.Equal(t, timesOf([]uint64{10, 20, 30, 1 << 20}), all)
	text, err := json.Marshal(all)
	require.NoError(t, err)
	require.Less(t, len(text), 200, "empty buckets are not written")
	var back Times
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, all, back)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Size":2560,"N":{"4":1}}`), &back), "another version")
	require.Error(t, json.Unmarshal([]byte(`{"Size":5120,"N":{"5120":1}}`), &back))
}

func TestRatio(t *testing.T) {
	p := Point{Op: "WRITE", Block: 1e9, Batch: 1, Depth: 1, Threads: 1}
	var r Run
	add := func(subject string, repeat int, seconds float64, failed string) {
		r.Samples = append(r.Samples, Sample{Subject: subject, Repeat: repeat, Point: p, Done: 1, Wall: time.Duration(seconds * 1e9), Failed: failed})
	}
	for i, s := range [][2]float64{{1, 2}, {1, 4}, {2, 6}} {
		add("a", i, s[0], "")
		add("b", i, s[1], "")
	}
	add("a", 3, 1, "")
	add("b", 3, 0, "it died")
	got := Ratio(r.Cell("a", p), r.Cell("b", p), Sample.GBps)
	require.InDelta(t, 3, got.Median, 1e-9)
	require.InDelta(t, 2, got.Low, 1e-9)
	require.InDelta(t, 4, got.High, 1e-9)
	require.Equal(t, "it died", r.Cell("b", p).Failed)
	require.InDelta(t, 1, r.Cell("a", p).Median(Sample.GBps), 1e-9)
	require.True(t, math.IsNaN(Ratio(r.Cell("a", p), r.Cell("c", p), Sample.GBps).Median))
	require.Equal(t, []Point{p}, r.Points())
}

// TestPlaces: no two descriptors of a point overlap or leave the room, and scattered descriptors keep their distance.
func TestPlaces(t *testing.T) {
	for range 200 {
		p := Point{Op: "WRITE", Block: 1 + rand.Uint64N(9000), Batch: 1 + rand.IntN(9), Depth: 1 + rand.IntN(4), Threads: 1 + rand.IntN(4), Dense: rand.IntN(2) == 0, Pool: rand.IntN(3)}
		w, end := p.Place(), uint64(0)
		for slot := range p.Slots() {
			for i := range p.Batch * p.Sets() {
				at := w.At(slot, i)
				require.GreaterOrEqual(t, at, end, "%+v", p)
				if end = at + p.Block; !p.Dense {
					end += gap
				}
				require.LessOrEqual(t, end, p.Room())
			}
		}
	}
}

func TestShapes(t *testing.T) {
	p, err := ParseShapes("4K,64x4K,10000x8KiB", []string{"READ"})
	require.NoError(t, err)
	require.Equal(t, []Point{{Op: "READ", Block: 4096, Batch: 1, Depth: 1, Threads: 1}, {Op: "READ", Block: 4096, Batch: 64, Depth: 1, Threads: 1},
		{Op: "READ", Block: 8192, Batch: 10000, Depth: 1, Threads: 1}}, p)
	require.Equal(t, "10,000 x 8 KiB", p[2].Shape())
	require.Len(t, Load(p, []int{1, 4}, []int{1, 2}), 12)
	for _, bad := range []string{"", "x4K", "0x4K", "4T", "0", "-1", "4K,", "99999999999G"} {
		_, err := ParseShapes(bad, []string{"READ"})
		require.Error(t, err, bad)
	}
}

func TestSubjects(t *testing.T) {
	got, err := ParseSubjects("GORAIL,UCX+UCX_TLS=tcp,self+num_workers=2,LIBFABRIC,GORAIL@here+log=info")
	require.NoError(t, err)
	none := map[string]string{}
	require.Equal(t, []Subject{{"GORAIL", "GORAIL", false, "", none, none},
		{"UCX+UCX_TLS=tcp,self+num_workers=2", "UCX", false, "", map[string]string{"num_workers": "2"}, map[string]string{"UCX_TLS": "tcp,self"}},
		{"LIBFABRIC", "LIBFABRIC", false, "", none, none}, {"GORAIL@here+log=info", "GORAIL", true, "", map[string]string{"log": "info"}, none}}, got)
	got, err = ParseSubjects("GORAIL@memfd,GORAIL@memfd@here")
	require.NoError(t, err)
	require.Equal(t, []Subject{{"GORAIL@memfd", "GORAIL", false, "memfd", none, none}, {"GORAIL@memfd@here", "GORAIL", true, "memfd", none, none}}, got)
	for _, bad := range []string{"", "GORAIL,", "GORAIL,GORAIL", "../x", "GORAIL@", "GORAIL@disk", "@here", "UCX+TLS", "UCX+=1"} {
		_, err := ParseSubjects(bad)
		require.Error(t, err, bad)
	}
	_, err = LimitSubjects([]string{"memcpy", "light"})
	require.ErrorContains(t, err, `"light"`)
}
