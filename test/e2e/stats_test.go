package e2e

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
)

// snapshot reads an engine's stats_file.
func snapshot(t testing.TB, file string) (s stats.Snapshot) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	return s
}
