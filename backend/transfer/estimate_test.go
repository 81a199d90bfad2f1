package transfer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Measurements replace the guess. Small transfers set the latency, large transfers the rate.
func TestEstimate(t *testing.T) {
	guess := speed{latency: 50e-6, rate: 1e9}
	var r rates
	check := func(bytes uint64, want time.Duration, known bool) {
		t.Helper()
		d, measured := r.estimate(bytes, guess)
		require.InDelta(t, want.Seconds(), d.Seconds(), 1e-9)
		require.Equal(t, known, measured)
	}
	check(0, 50*time.Microsecond, false)
	check(1e9, time.Second+50*time.Microsecond, false)
	r.add(4096, 10*time.Microsecond)
	check(0, 10*time.Microsecond, true)
	check(1e9, time.Second+10*time.Microsecond, false)
	r.add(2e6, time.Millisecond)
	check(1e9, 500*time.Millisecond+10*time.Microsecond, true)
}
