package stats_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
)

func TestTimes(t *testing.T) {
	var r stats.Recorder
	require.Equal(t, []stats.Times{}, r.Times())
	r.Add(0, -time.Second)
	r.Add(4096, time.Microsecond-1)
	r.Add(4096, time.Microsecond)
	r.Add(4097, 3*time.Microsecond)
	r.Add(1<<40, 100*time.Hour)
	require.Equal(t, []stats.Times{
		{Most: 4096, Buckets: []uint64{2, 1}},
		{Most: 64 << 10, Buckets: []uint64{0, 0, 1}},
		{Most: 0, Buckets: append(make([]uint64, stats.TimeBuckets-1), 1)},
	}, r.Times())
	one := stats.Times{Buckets: []uint64{0, 90, 0, 9, 1}, Coarse: 7}
	require.EqualValues(t, 107, one.Count())
	require.Equal(t, 2*time.Microsecond, one.Quantile(0.5))
	require.Equal(t, 2*time.Microsecond, one.Quantile(0.9))
	require.Equal(t, 8*time.Microsecond, one.Quantile(0.99))
	require.Equal(t, 16*time.Microsecond, one.Quantile(1))
	require.Zero(t, stats.Times{Coarse: 3}.Quantile(0.5))
}

func TestSince(t *testing.T) {
	for s, text := range map[stats.Since]string{stats.Never: "null", 0: "0", stats.Since(1500 * time.Millisecond): "1.5"} {
		b, err := json.Marshal(s)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
		got := stats.Since(77)
		require.NoError(t, json.Unmarshal(b, &got))
		require.Equal(t, s, got)
	}
}
