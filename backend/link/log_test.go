package link

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/quota"
)

// A link has a burst of lines, then one a second. Lines below the log's level take no place.
func TestLog(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	l := &Link{lines: quota.Lines{Burst: burstLines}}
	for range 100 {
		l.Log(log, slog.LevelDebug, "not at this level")
	}
	for range 1000 {
		l.Log(log, slog.LevelInfo, "rail down", "rail", "a")
	}
	n := strings.Count(text.String(), "rail down")
	require.GreaterOrEqual(t, n, burstLines)
	require.Less(t, n, 100, "a thousand lines take less than a minute")
	require.NotContains(t, text.String(), "not at this level")
}
