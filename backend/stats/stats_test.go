package stats_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
)

// counts sets every field to a different value times n.
func counts(n uint64) (c stats.Counts) {
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		v.Field(i).SetUint(n * uint64(i+1))
	}
	return c
}

func TestAdd(t *testing.T) {
	c := counts(1)
	c.Add(counts(10))
	require.Equal(t, counts(11), c, "every counter is added")
}

func TestNew(t *testing.T) {
	link := func(index int, phase string, n uint64) stats.Link {
		return stats.Link{Index: index, Phase: phase, InFlight: n, Counts: counts(n)}
	}
	s := stats.New("ann", []stats.Rail{{Index: 3}, {Index: 1}, {Index: 0}, {Index: 2}}, []stats.Peer{
		{Agent: "bob", Direction: stats.Target, State: "ready", Links: []stats.Link{link(0, stats.Working, 1)}},
		{Agent: "bob", Direction: stats.Initiator, State: "ready", InFlight: 99, Counts: counts(99), Links: []stats.Link{
			link(0, stats.Working, 2), link(1, "backing off", 3), link(2, "probing", 4)}},
		{Agent: "abe", Direction: stats.Initiator, State: "lost", Links: []stats.Link{link(3, "closed", 5)}},
		{Agent: "cid", Direction: stats.Initiator, State: "ready", Links: []stats.Link{link(1, stats.Working, 6)}},
	})
	var states []stats.RailState
	for i, r := range s.Rails {
		require.Equal(t, i, r.Index)
		states = append(states, r.State)
	}
	require.Equal(t, []stats.RailState{stats.Up, stats.Degraded, stats.Down, stats.Idle}, states)
	var names []string
	for _, p := range s.Peers {
		names = append(names, p.Agent+" "+string(p.Direction))
	}
	require.Equal(t, []string{"abe initiator", "bob initiator", "bob target", "cid initiator"}, names)
	require.Equal(t, counts(2+3+4), s.Peers[1].Counts)
	require.EqualValues(t, 2+3+4, s.Peers[1].InFlight)
	require.True(t, s.Peers[0].Ended())
	require.False(t, s.Peers[1].Ended())
}

// JSON names are a public interface.
func TestJSON(t *testing.T) {
	s := stats.New("ann", []stats.Rail{{Name: "net/eth0", Counts: counts(1)}}, []stats.Peer{
		{Agent: "bob", Links: []stats.Link{{Rail: "net/eth0", PeerRail: "net/eth1", Counts: counts(2)}}}})
	b, err := json.Marshal(s)
	require.NoError(t, err)
	var got struct {
		Agent string
		Rails []map[string]any
		Peers []struct {
			Agent        string
			BytesWritten float64 `json:"bytes_written"`
			Links        []map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, "ann", got.Agent)
	for i, name := range []string{"bytes_written", "bytes_read", "work_requests", "completions", "errors", "flushed", "retries", "eagain",
		"messages_sent", "messages_received", "probes", "fences", "stalls"} {
		require.EqualValues(t, i+1, got.Rails[0][name], name)
		require.EqualValues(t, 2*(i+1), got.Peers[0].Links[0][name], name)
	}
	require.EqualValues(t, 2, got.Peers[0].BytesWritten)
	require.Equal(t, "net/eth1", got.Peers[0].Links[0]["peer_rail"])
	for _, name := range []string{"state", "links", "bytes_in_flight", "device", "fabric"} {
		require.Contains(t, got.Rails[0], name)
	}
}

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
