package lifetime

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A step that never ends holds up no later step, and the log names it.
func TestBounded(t *testing.T) {
	var log bytes.Buffer
	b := Bounded{Log: slog.New(slog.NewTextHandler(&log, nil)), Until: time.Now().Add(time.Minute)}
	var order []int
	b.Do("first", func() { order = append(order, 1) })
	require.False(t, b.Late)
	b.Until = time.Now()
	end, ended := make(chan struct{}), make(chan struct{})
	b.Do("second", func() { <-end; close(ended) })
	require.True(t, b.Late)
	require.Contains(t, log.String(), "stays=second")
	next := make(chan struct{})
	b.Do("third", func() { close(next) })
	<-next
	require.Equal(t, []int{1}, order)
	close(end)
	<-ended
}
