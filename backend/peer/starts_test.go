package peer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStarts: as many handshakes go on as there are places. A peer that does not answer gives its place up soon, one that stops later.
func TestStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarts()
		begun := time.Now()
		took := func() time.Duration { return time.Since(begun) }
		var all []*start
		for range cap(s.places) {
			all = append(all, s.take(t.Context()))
		}
		require.Zero(t, took())
		all[0].done()
		all[0].done() // once
		all[0] = s.take(t.Context())
		require.Zero(t, took())
		for _, p := range all[1:] {
			p.answered()
		}
		silent := s.take(t.Context())
		require.Equal(t, startAnswer, took())
		silent.answered()
		late := s.take(t.Context())
		require.Equal(t, startMost, took())
		ended, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		<-ended.Done()
		for len(s.places) < cap(s.places) {
			s.take(t.Context()).answered()
		}
		gone := s.take(ended)
		require.Nil(t, gone)
		gone.answered()
		gone.done()
		late.answered() // too late: no harm
		late.done()
		time.Sleep(time.Second)
		require.Empty(t, s.places)
	})
}
