package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/rails"
)

func TestReachOf(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := reachOf{now: func() time.Time { return now }}
	a, b := railPair{"verbs/hca0", "verbs/hca0"}, railPair{"verbs/hca0", "verbs/hca1"}
	m.note("host", rails.Works, a)
	require.Nil(t, m.of("host"), "pairs that work are of interest beside one that does not")
	m.note("host", rails.Apart, b)
	m.note("host", rails.Works, a)
	require.Equal(t, map[railPair]rails.Reach{a: rails.Works, b: rails.Apart}, m.of("host"))
	require.Nil(t, m.of("another"))
	m.note("host", rails.Works, b)
	require.Equal(t, rails.Works, m.of("host")[b], "the last word counts")
	now = now.Add(mostReach)
	require.NotNil(t, m.of("host"))
	now = now.Add(time.Nanosecond)
	require.Nil(t, m.of("host"))
	for i := range mostHosts + 10 {
		now = now.Add(time.Millisecond)
		m.note(fmt.Sprint(i), rails.Apart, a)
	}
	require.Len(t, m.hosts, mostHosts)
	require.Nil(t, m.of("9"))
	require.NotNil(t, m.of("10"))
	for i := range 2*mostReachPairs + 5 {
		m.note("10", rails.Apart, railPair{"verbs/hca0", fmt.Sprint("verbs/hca", i)})
		require.LessOrEqual(t, len(m.of("10")), mostReachPairs)
	}
}
