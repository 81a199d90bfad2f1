package peer

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// source is the n-th address.
func source(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

// One source has a quarter of the turns, and the others are free.
func TestTurnsOfASource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := 0
		turns := newTurns(8, func() {}, func() { waits++ })
		var ends []func()
		for range 2 {
			end, ok := turns.Take(t.Context(), source(1))
			require.True(t, ok)
			ends = append(ends, end)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, ok := turns.Take(short, source(1))
		assert.False(t, ok)
		assert.Equal(t, 1, waits)
		end, ok := turns.Take(t.Context(), source(2))
		assert.True(t, ok)
		end()
		ends[0]()
		end, ok = turns.Take(t.Context(), source(1))
		assert.True(t, ok)
		end()
		ends[1]()
		assert.Empty(t, turns.sources, "nothing is remembered")
	})
}

// All sources together have a number of turns at a time, and a number a second.
func TestTurnsOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := 0
		turns := newTurns(8, func() { waits++ }, func() {})
		var ends []func()
		for n := range 8 {
			end, ok := turns.Take(t.Context(), source(n/2))
			require.True(t, ok)
			ends = append(ends, end)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, ok := turns.Take(short, source(9))
		assert.False(t, ok)
		assert.Equal(t, 1, waits)
		for _, end := range ends {
			end()
		}
		began := time.Now()
		const many = 10 * tlsPerSecond
		for range many {
			end, ok := turns.Take(t.Context(), source(9))
			require.True(t, ok)
			end()
		}
		assert.InDelta(t, 10, time.Since(began).Seconds(), 0.1)
	})
}
