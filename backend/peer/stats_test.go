package peer

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The names in stats_file do not depend on how Stats is divided into structures.
func TestStatsNames(t *testing.T) {
	b, err := json.Marshal(Stats{})
	require.NoError(t, err)
	var got map[string]uint64
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, []string{"AcceptErrors", "Accepted", "BadFrame", "BadResume", "BadTLS", "BadToken", "BadVersion", "BytesSent", "Closed", "Dialed",
		"Established", "FramesReceived", "FramesSent", "HalfOpen", "In", "Lost", "MadeRoom", "Out", "Overflows", "Refused", "Resent",
		"Resumed", "Stuck", "TimedOut", "WrongEngine"}, slices.Sorted(maps.Keys(got)))
}
