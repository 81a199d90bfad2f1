package plugin

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/engine"
	"gorail/backend/errcode"
)

// logged runs f and returns its log at debug level.
func logged(t *testing.T, f func()) string {
	var text strings.Builder
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { slog.SetDefault(old) })
	f()
	slog.SetDefault(old)
	return text.String()
}

func TestAnswer(t *testing.T) {
	text := logged(t, func() {
		require.EqualValues(t, 0, answer("call", func() error { return nil }))
	})
	require.Empty(t, text)

	text = logged(t, func() {
		require.EqualValues(t, errcode.ErrBackend, answer("registerMem", func() error { return io.EOF }))
	})
	require.Contains(t, text, "level=ERROR msg=EOF call=registerMem status=NIXL_ERR_BACKEND")

	// Errors of normal operation are logged at debug level.
	text = logged(t, func() {
		answer("loadRemoteMD", func() error { return errcode.UnknownPeer.Errorf("peer %q", "b") })
	})
	require.Contains(t, text, "level=DEBUG")

	require.EqualValues(t, 1, answerStatus("postXfer", func() (int32, error) { return 1, nil }))
}

// Refusals with the same text are logged once, separately for each peer, and again after a while.
func TestRefusedOften(t *testing.T) {
	refused := func(peer string) error {
		return errcode.PeerGone.Errorf("peer %q is gone: a long story", peer)
	}
	text := logged(t, func() {
		for range 10 {
			for _, peer := range []string{"bob", "eve"} {
				require.EqualValues(t, errcode.ErrRemoteDisconnect, answer("postXfer", func() error { return refused(peer) }))
				answer("genNotif", func() error { return refused(peer) })
			}
		}
	})
	require.Equal(t, 2, strings.Count(text, "level=INFO"))
	require.Equal(t, 38, strings.Count(text, "level=DEBUG"))

	var r repeats
	now := time.Now()
	for i := range 1000 {
		require.False(t, r.seen(strings.Repeat("x", i), now))
		require.True(t, r.seen(strings.Repeat("x", i), now.Add(repeatAfter-1)))
		require.LessOrEqual(t, len(r.logged), 256)
	}
	require.False(t, r.seen(strings.Repeat("x", 999), now.Add(repeatAfter)))
}

func TestAnswerCatchesPanics(t *testing.T) {
	text := logged(t, func() {
		var nothing *engine.Engine
		require.EqualValues(t, errcode.ErrBackend, answer("prepXfer", func() error { return nothing.Close() }))
	})
	require.Contains(t, text, "panic in the plugin")
	require.Contains(t, text, "call=prepXfer")
	require.Contains(t, text, "status_test.go", "the stack")
}
