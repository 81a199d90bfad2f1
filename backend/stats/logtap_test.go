package stats_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
)

func TestTap(t *testing.T) {
	var out bytes.Buffer
	tap := stats.NewTap(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))
	log := slog.New(tap).With("agent", "ann").WithGroup("g")
	log.Info("unseen")
	for i := range 40 {
		log.Warn("warned", "i", i)
	}
	log.Error("broken", "why", strings.Repeat("é", 4000))
	require.Equal(t, 1, strings.Count(out.String(), "\n"), "the level of the next handler holds")
	recent := tap.Recent()
	require.Len(t, recent, 32)
	require.Equal(t, "msg=warned agent=ann g.i=9", recent[0].Text)
	require.Equal(t, "warn", recent[0].Level)
	require.Equal(t, "error", recent[31].Level)
	require.False(t, recent[31].Time.IsZero())
	require.LessOrEqual(t, len(recent[31].Text), 1<<10+3)

	require.NoError(t, tap.Start())
	require.ErrorIs(t, tap.Start(), stats.ErrTracing)
	log.Debug("unseen")
	for range 5000 {
		log.Info("seen")
	}
	lines, lost := tap.Stop()
	require.Len(t, lines, 4096)
	require.Equal(t, 5000-4096, lost)
	require.Equal(t, "msg=seen agent=ann", lines[0].Text)
	log.Info("unseen")
	require.NoError(t, tap.Start())
	lines, lost = tap.Stop()
	require.Empty(t, lines)
	require.Zero(t, lost)
}
